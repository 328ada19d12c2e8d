"""Decoding over several GPUs: `python -m benchmarks.gpu.parallel` prints one JSON line for each size and batch.

Random weights of real dimensions, made on each rank; see `run` for what "decode" means.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from typing import Any

import numpy as np
import torch

import visavis.engine.parallel.group as group_module
import visavis.engine.share as share_module
from benchmarks.gpu.machine import describe
from benchmarks.gpu.models import CONFIGS, make_engine, picture_prompt, randomise
from benchmarks.gpu.run import Row, generate, run_row
from visavis.engine.parallel import worker

ROWS = {"1": (1, 37, 512), "8": (8, 512, 256), "64": (64, 512, 256)}


def measure(model: str, size: int, batches: list[str], settings: dict[str, Any]) -> None:
    begin = time.perf_counter()
    engine = make_engine(model, tensor_parallel_size=size, max_model_len=4096, **settings)
    started = time.perf_counter() - begin
    try:
        for batch in batches:
            name = f"{model} tp{size} x{batch}"
            if batch == "picture":
                rng = np.random.default_rng(0)
                times = [generate(engine, [picture_prompt(rng, CONFIGS[model])], 1, {})[0] for _ in range(6)]
                found: dict[str, Any] = {"row": name, "first_token_ms": [round(1e3 * t, 1) for t in times]}
            else:
                found = run_row(name, Row(model, *ROWS[batch]), engine, {})
            found |= {"tensor_parallel_size": size, "start_s": round(started, 1), **settings}
            found["blocks"] = engine.num_blocks
            print(json.dumps(found), flush=True)
    finally:
        engine.close()
        gc.collect()
        torch.cuda.empty_cache()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="Qwen2.5-7B")
    parser.add_argument("--sizes", default="1,2")
    parser.add_argument("--batches", default="1,64")
    parser.add_argument("--eager", action="store_true")
    args = parser.parse_args()
    gpu = torch.cuda.is_available()
    print(json.dumps({"machine": describe() if gpu else None, "gpus": torch.cuda.device_count()}), flush=True)
    group_module.WORKER = "benchmarks.gpu.parallel"  # whose weights are random too
    for size in args.sizes.split(","):
        settings = {"enforce_eager": True} if args.eager else {}
        measure(args.model, int(size), args.batches.split(","), settings)


if __name__ == "__main__":
    if len(sys.argv) == 3 and all(argument.isdigit() for argument in sys.argv[1:]):  # as `ChildProcess` starts it
        share_module.load_weights = randomise  # type: ignore[assignment]
        worker.main(sys.argv[1:])
    else:
        main()
