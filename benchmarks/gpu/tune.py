"""Times the whole decode step with one product's tile changed at a time, and prints the best as JSON.

`python -m benchmarks.gpu.tune Qwen2.5-1.5B 1 [OUT.json]`: model and requests in the batch.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.machine import time_ms
from benchmarks.gpu.models import make_engine, weight_bytes
from visavis.engine.kernels.cuda.sampling import GREEDY
from visavis.engine.kernels.cuda.step import COLUMNS, DecodeStep
from visavis.engine.kernels.triton.launch import GemvTile, SkinnyTile

GEMV = {
    "qkv": [(2, 512, 4), (4, 512, 4), (8, 512, 4), (8, 256, 4), (4, 512, 2), (8, 512, 8), (2, 512, 2)],
    "output": [(2, 512, 4), (4, 512, 4), (8, 512, 4), (8, 256, 4), (4, 512, 2), (2, 512, 2)],
    "gate_up": [(4, 512, 4), (8, 512, 4), (8, 256, 4), (8, 512, 8), (4, 512, 2), (4, 256, 2), (16, 256, 8)],
    "down": [
        (2, 512, 4),
        (4, 256, 4),
        (4, 512, 4),
        (4, 1024, 4),
        (8, 512, 4),
        (2, 1024, 4),
        (4, 1024, 8),
        (4, 2048, 8),
    ],
    "lm_head": [(4, 512, 4), (8, 512, 4), (16, 512, 4), (16, 256, 4), (16, 512, 8), (32, 256, 8)],
}
SKINNY = {
    "qkv": [(16, 128, 1, 4, 4), (16, 256, 1, 4, 3), (16, 256, 1, 4, 4), (16, 512, 1, 8, 2), (32, 128, 1, 4, 4)],
    "output": [(16, 128, 2, 4, 4), (16, 256, 2, 4, 4), (32, 128, 4, 4, 4), (16, 128, 1, 4, 6), (64, 128, 6, 4, 3)],
    "gate_up": [(16, 128, 1, 4, 4), (32, 128, 1, 4, 3), (16, 256, 1, 4, 3), (32, 256, 1, 4, 3), (64, 128, 1, 8, 3)],
    "down": [(16, 256, 4, 4, 4), (32, 128, 8, 4, 4), (32, 256, 7, 4, 3), (16, 128, 2, 4, 6), (64, 128, 8, 4, 4)],
    "lm_head": [(16, 256, 1, 4, 3), (32, 128, 1, 4, 6), (32, 256, 1, 4, 3), (64, 128, 1, 4, 4), (64, 256, 1, 8, 3)],
}


def step_ms(step: DecodeStep, rows: int, context: int) -> float:
    """One captured step of `rows` requests with `context` tokens each."""
    columns = torch.tensor([[-1, 5, r, context, context, 1, -1, 0] for r in range(rows)], dtype=torch.int32).t()
    step.packed[: len(COLUMNS) * rows].copy_(columns.reshape(-1))
    blocks = -(-(context + 1) // step.cache.block_size)
    table = torch.arange(rows * blocks, dtype=torch.int32).view(rows, blocks)
    step.tables[:rows, :blocks].copy_(table)
    step(rows, GREEDY)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        graph.capture_begin()
        step(rows, GREEDY)
        graph.capture_end()
    torch.cuda.current_stream().wait_stream(stream)
    return time_ms(graph.replay, 15)


def main(name: str, rows: int, out: str | None) -> None:
    engine = make_engine(name, max_num_seqs=max(rows, 8), max_model_len=2048)
    assert engine.ahead is not None
    step = engine.ahead.step
    launcher = step.launcher
    single = rows == 1
    tiles: dict[str, Any] = launcher.gemv_tiles if single else launcher.skinny_tiles  # type: ignore[assignment]
    context = 290
    with torch.inference_mode():
        base = step_ms(step, rows, context)
        say(what="default", rows=rows, ms=base, gb_s=weight_bytes(name) / base / 1e6)
        for overlap in {0, 1, 2} - {launcher.overlap}:
            kept, launcher.overlap = launcher.overlap, overlap
            ms = step_ms(step, rows, context)
            launcher.overlap = kept
            say(what="overlap", overlap=overlap, ms=ms, delta_us=round(1e3 * (ms - base), 1))
        for splits in (8, 16, 32):
            kept_splits, launcher.fixed_splits = launcher.fixed_splits, splits
            ms = step_ms(step, rows, context)
            launcher.fixed_splits = kept_splits
            say(what="attention splits", splits=splits, ms=ms, delta_us=round(1e3 * (ms - base), 1))
        best: dict[str, Any] = {}
        for kind, candidates in (GEMV if single else SKINNY).items():
            least = base - 0.002
            for candidate in candidates:
                tile = GemvTile(*candidate) if single else SkinnyTile(*candidate)  # type: ignore[misc]
                tiles[kind] = tile
                begin = time.perf_counter()
                try:
                    ms = step_ms(step, rows, context)
                except Exception as error:  # a tile the card has no room for is a result too
                    say(what=kind, tile=candidate, error=str(error)[:200])
                    continue
                say(what=kind, tile=candidate, ms=round(ms, 4), delta_us=round(1e3 * (ms - base), 1),
                    took_s=round(time.perf_counter() - begin, 2))  # fmt: skip
                if ms < least:
                    least, best[kind] = ms, tile
            tiles.pop(kind)
        tiles.update(best)
        ms = step_ms(step, rows, context)
        say(
            what="best",
            rows=rows,
            ms=ms,
            gb_s=weight_bytes(name) / ms / 1e6,
            tiles={k: asdict(v) for k, v in best.items()},
        )
    if out:
        Path(out).write_text(json.dumps({k: list(asdict(v).values()) for k, v in best.items()}))


def say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else None)
