"""The rows of docs/performance.md: `python -m benchmarks.gpu.run [row …]` prints one JSON line each.

Random weights of real dimensions made on the device, random unique prompts, bf16, medians of three rounds. "decode" is
batch · (new - 1) / (time of the whole run - time of the same run with one new token); "whole" counts everything.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.gpu.machine import ceilings, describe, need_cuda
from benchmarks.gpu.mixed_load import Arrivals, measure
from benchmarks.gpu.models import (
    CONFIGS,
    kv_bytes_per_token,
    make_engine,
    picture_prompt,
    random_prompt,
    weight_bytes,
)
from visavis.engine import NativeEngine
from visavis.prompt import Prompt
from visavis.sampling import ResolvedSampling

SAMPLED = {"temperature": 0.7, "top_p": 0.8, "repetition_penalty": 1.05}


@dataclass(frozen=True)
class Row:
    model: str
    batch: int
    prompt: int
    new: int
    sampling: dict[str, float] = field(default_factory=dict)
    quantization: str | None = None
    picture: bool = False  # a prompt of one 1920 × 1080 picture
    memory_gib: int | None = None  # all that this process may take of the card; nothing else is asked for
    arrivals: Arrivals | None = None  # prompts that come while the batch decodes; `new` is then more than it gets to

    @property
    def engine(self) -> tuple[str, str | None, int | None]:
        """Rows of which this is the same share an engine."""
        return self.model, self.quantization, self.memory_gib


ROWS = {
    "1.5b-1": Row("Qwen2.5-1.5B", 1, 37, 512),
    "1.5b-1-sampled": Row("Qwen2.5-1.5B", 1, 37, 512, SAMPLED),
    "1.5b-8": Row("Qwen2.5-1.5B", 8, 512, 256),
    "1.5b-64": Row("Qwen2.5-1.5B", 64, 512, 256),
    "1.5b-256": Row("Qwen2.5-1.5B", 256, 512, 256),
    "1.5b-1-16k": Row("Qwen2.5-1.5B", 1, 16384, 256),
    "1.5b-16-8k": Row("Qwen2.5-1.5B", 16, 8192, 256),
    "7b-1": Row("Qwen2.5-7B", 1, 37, 512),
    "7b-64": Row("Qwen2.5-7B", 64, 512, 256),
    "7b-1-int8": Row("Qwen2.5-7B", 1, 37, 512, quantization="int8"),
    "7b-64-int8": Row("Qwen2.5-7B", 64, 512, 256, quantization="int8"),
    "7b-1-int4": Row("Qwen2.5-7B", 1, 37, 512, quantization="int4"),
    "7b-64-int4": Row("Qwen2.5-7B", 64, 512, 256, quantization="int4"),
    "vl-7b-picture": Row("Qwen2-VL-7B", 1, 1262, 128, picture=True),
    "vl-7b-picture-16gib": Row("Qwen2-VL-7B", 1, 1262, 128, picture=True, memory_gib=16),
    "untuned-1": Row("Qwen3-4B", 1, 37, 512),
    "untuned-8": Row("Qwen3-4B", 8, 512, 256),
    "mixed-load": Row("Qwen2.5-1.5B", 32, 512, 16384, arrivals=Arrivals(40, 0.05, 2048, 64)),
    "tiny-2": Row("tiny", 2, 5, 6, SAMPLED),
    "tiny-mixed": Row("tiny", 2, 5, 1900, arrivals=Arrivals(3, 0.005, 30, 4, quiet_steps=20)),
}
ROUNDS = 3


def generate(
    engine: NativeEngine, prompts: Sequence[Prompt], new: int, sampling: dict[str, float]
) -> tuple[float, float]:
    """(seconds in all, seconds to the last request's first token); checks that every request got all its tokens."""
    begin = time.perf_counter()
    for i, prompt in enumerate(prompts):
        engine.add_request(str(i), prompt, ResolvedSampling(max_tokens=new, seed=i, **sampling))  # type: ignore[arg-type]
    counts = [0] * len(prompts)
    first = 0.0
    while engine.has_work:
        for output in engine.step():
            index = int(output.request_id)
            if counts[index] == 0:
                first = time.perf_counter() - begin
            counts[index] += len(output.token_ids)
            if output.error:
                raise RuntimeError(output.error)
    if counts != [new] * len(prompts):
        raise RuntimeError(f"some requests got fewer tokens than {new}: {sorted(set(counts))}")
    return time.perf_counter() - begin, first


def run_row(name: str, row: Row, engine: NativeEngine, limits: dict[str, float]) -> dict[str, Any]:
    rng = np.random.default_rng(len(name))
    vocab = CONFIGS[row.model]["vocab_size"]

    def prompts() -> list[Prompt]:
        if row.picture:
            return [picture_prompt(rng, CONFIGS[row.model]) for _ in range(row.batch)]
        return [random_prompt(rng, row.prompt, vocab) for _ in range(row.batch)]

    if row.arrivals is not None:
        found = measure(engine, row.model, prompts, row.new, row.arrivals, rng, limits, ROUNDS)
        return {"row": name, "model": row.model, "batch": row.batch, "prompt": row.prompt, **found}
    generate(engine, prompts(), min(4, row.new), row.sampling)  # compiles and captures
    whole, single, firsts = [], [], []
    for _ in range(ROUNDS):
        single.append(generate(engine, prompts(), 1, row.sampling)[0])
        seconds, first = generate(engine, prompts(), row.new, row.sampling)
        whole.append(seconds)
        firsts.append(first)
    took, one = statistics.median(whole), statistics.median(single)
    decode = row.batch * (row.new - 1) / (took - one)
    steps = decode / row.batch
    context = row.prompt + row.new / 2
    read = weight_bytes(row.model, engine.settings.quantization) + row.batch * context * kv_bytes_per_token(row.model)
    return {
        "row": name, "model": row.model, "batch": row.batch, "prompt": row.prompt, "new": row.new,
        "sampling": row.sampling, "quantization": engine.settings.quantization, "said": engine.fitting,
        "decode_tok_s": round(decode, 1), "whole_tok_s": round(row.batch * row.new / took, 1),
        "first_token_ms": round(1e3 * statistics.median(firsts), 2), "seconds": [round(s, 4) for s in whole],
        "seconds_one_token": [round(s, 4) for s in single], "read_gb_s": round(read * steps / 1e9),
        "of_read_ceiling": round(read * steps / 1e9 / limits["read_gb_s"], 3) if limits else None,
    }  # fmt: skip


def start(row: Row) -> NativeEngine:
    if torch.cuda.is_available():
        total = torch.cuda.mem_get_info()[1]
        torch.cuda.set_per_process_memory_fraction(1.0 if row.memory_gib is None else (row.memory_gib << 30) / total)
    if row.memory_gib is not None:
        return make_engine(row.model, quantization=row.quantization)
    longest = min(32768, CONFIGS[row.model]["max_position_embeddings"])
    return make_engine(row.model, max_model_len=longest, quantization=row.quantization)


def load_tiles(engine: NativeEngine, path: str) -> None:
    """Tiles that `tune.py` wrote, instead of the built-in ones."""
    from visavis.engine.kernels.triton.tiles import GemvTile, SkinnyTile

    assert engine.ahead is not None
    launcher = engine.ahead.step.launcher
    for kind, values in json.loads(Path(path).read_text(encoding="utf-8")).items():
        if len(values) == 4:
            launcher.gemv_tiles[kind] = GemvTile(*values)
        else:
            launcher.skinny_tiles[kind] = SkinnyTile(*values)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", nargs="*", default=[r for r in ROWS if not r.startswith("tiny-")])
    parser.add_argument("--tiles", action="append", default=[])
    parser.add_argument("--warm", action="store_true", help="only make the kernels; several of these may run at once")
    args = parser.parse_args()
    if any(not name.startswith("tiny-") for name in args.rows):
        need_cuda()
    gpu = torch.cuda.is_available()
    limits = ceilings() if gpu and not args.warm else {}
    print(json.dumps({"machine": describe() if gpu else None, "ceilings": limits}), flush=True)
    engine: NativeEngine | None = None
    loaded: tuple[str, str | None, int | None] | None = None
    for name in args.rows:
        row = ROWS[name]
        if args.warm:
            row = replace(row, memory_gib=row.memory_gib or 24)
            if row.arrivals is None:
                row = replace(row, new=4)
            else:
                row = replace(row, arrivals=replace(row.arrivals, count=2, new=4, quiet_steps=4))
        if row.engine != loaded or engine is None:
            if engine is not None:
                engine.close()
                gc.collect()
                torch.cuda.empty_cache()
            begin = time.perf_counter()
            engine = start(row)
            loaded = row.engine
            for path in args.tiles:
                load_tiles(engine, path)
            print(json.dumps({"engine": loaded, "seconds": round(time.perf_counter() - begin, 2)}), flush=True)
        try:
            print(json.dumps(run_row(name, row, engine, limits)), flush=True)
        except Exception as error:  # the other rows are still worth their device time
            print(json.dumps({"row": name, "error": repr(error)[:500]}), flush=True)
            engine.close()
            engine, loaded = None, None


if __name__ == "__main__":
    main()
