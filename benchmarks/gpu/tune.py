"""Times the whole decode step with one product's tile changed at a time, and prints the best as JSON.

`python -m benchmarks.gpu.tune Qwen2.5-1.5B:1:OUT.json …`: model, requests in the batch, where the best go.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.machine import time_ms
from benchmarks.gpu.models import make_engine, weight_bytes
from visavis.engine.kernels.cuda.sampling import GREEDY
from visavis.engine.kernels.cuda.step import COLUMNS, DecodeStep
from visavis.engine.kernels.triton.tiles import AttentionTile, GemvTile, SkinnyTile

# Rows and columns of a tile, warps, programs a multiprocessor (0: a block of rows each). Whole rows where columns ≥ K.
GEMV = {
    1536: {
        "qkv": [(4, 2048, 4, 0), (2, 2048, 4, 0), (4, 2048, 8, 0), (4, 2048, 4, 4), (2, 2048, 4, 4), (8, 2048, 8, 1)],
        "output": [(4, 2048, 4, 0), (2, 2048, 4, 0), (4, 2048, 4, 4), (2, 2048, 2, 0)],
        "gate_up": [(2, 2048, 4, 4), (2, 2048, 4, 5), (2, 2048, 4, 6), (4, 2048, 8, 2), (1, 2048, 4, 6),
                    (4, 2048, 8, 3), (2, 2048, 4, 3), (1, 2048, 2, 8)],
        "down": [(4, 2048, 8, 0), (8, 1024, 8, 0), (4, 1024, 4, 0), (2, 2048, 4, 0), (4, 4096, 8, 0), (4, 1024, 8, 0)],
        "lm_head": [(8, 256, 4, 0), (2, 2048, 4, 4), (4, 512, 4, 0), (2, 2048, 4, 6)],
    },
    3584: {
        "qkv": [(2, 4096, 4, 0), (2, 4096, 8, 2), (2, 4096, 8, 4), (1, 4096, 4, 8), (4, 512, 4, 0)],
        "output": [(4, 512, 4, 0), (2, 4096, 8, 2), (2, 4096, 8, 4), (2, 4096, 4, 0)],
        "gate_up": [(2, 4096, 8, 2), (1, 4096, 4, 4), (2, 4096, 8, 3)],
        "down": [(4, 512, 4, 0), (8, 512, 4, 0), (8, 1024, 8, 0), (4, 1024, 8, 0), (4, 1024, 4, 0), (4, 2048, 8, 0)],
        "lm_head": [(8, 256, 4, 0), (2, 4096, 8, 2), (2, 4096, 8, 3)],
    },
}  # fmt: skip
SKINNY = {  # rows and columns of a tile, programs that share a sum, warps, stages
    "qkv": [(16, 128, 1, 4, 6), (32, 128, 4, 4, 3), (16, 256, 1, 4, 4)],
    "output": [(16, 128, 1, 4, 6), (16, 256, 1, 4, 4), (32, 128, 3, 4, 4)],
    "gate_up": [(64, 64, 1, 4, 5), (64, 64, 1, 4, 6), (32, 64, 1, 4, 6), (64, 64, 1, 8, 6), (32, 128, 1, 4, 3)],
    "down": [(32, 128, 8, 4, 4), (32, 64, 8, 4, 6), (32, 256, 5, 4, 3), (64, 64, 10, 4, 6)],
    "lm_head": [(64, 64, 1, 4, 6), (128, 64, 1, 4, 6), (64, 128, 1, 4, 4)],
}
ATTENTION = [
    (64, 64, 2),
    (64, 64, 4),
    (32, 32, 2),
    (128, 128, 4),
    (128, 1024, 4),
]  # tokens a tile, tokens a split at least, warps


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


def _without(left_out: str, product: Callable[..., None]) -> Callable[..., None]:
    return lambda kind, *args, **options: None if kind == left_out else product(kind, *args, **options)


def main(name: str, rows: int, out: str | None) -> None:
    engine = make_engine(name, max_num_seqs=max(rows, 8), max_model_len=2048)
    assert engine.ahead is not None
    engine.ahead.ready()  # nobody else is to use the device while a graph is captured
    step = engine.ahead.step
    launcher = step.launcher
    single = rows == 1
    tiles: dict[str, Any] = launcher.gemv_tiles if single else launcher.skinny_tiles  # type: ignore[assignment]
    context = 290
    with torch.inference_mode():
        base = step_ms(step, rows, context)
        say(what="default", rows=rows, ms=base, gb_s=weight_bytes(name) / base / 1e6)
        launcher.overlap = 0
        ms = step_ms(step, rows, context)
        launcher.overlap = 1
        say(what="overlap", value=0, ms=round(ms, 4), delta_us=round(1e3 * (ms - base), 1))
        for kind in ("attention", *SKINNY):
            for value in (1, 2, 3):  # see overlap.py
                launcher.overlaps[kind] = value
                ms = step_ms(step, rows, context)
                say(what="overlap", kind=kind, value=value, ms=round(ms, 4), delta_us=round(1e3 * (ms - base), 1))
            launcher.overlaps.pop(kind)
        for values in ATTENTION:
            launcher.attention_tile = AttentionTile(*values)
            ms = step_ms(step, rows, context)
            say(what="attention", tile=values, ms=round(ms, 4), delta_us=round(1e3 * (ms - base), 1))
        launcher.attention_tile = None
        for kind in SKINNY:
            if not single:
                launcher.skinny_rows[kind] = 1
                ms = step_ms(step, rows, context)
                launcher.skinny_rows.pop(kind)
                say(what=kind, tile="cuBLAS", ms=round(ms, 4), delta_us=round(1e3 * (ms - base), 1))
            product = launcher.product
            launcher.product = _without(kind, product)  # type: ignore
            ms = step_ms(step, rows, context)
            del launcher.product
            say(what=kind, tile="left out", delta_us=round(1e3 * (ms - base), 1))
        launcher.decode_attention = lambda *a, **o: None  # type: ignore
        ms = step_ms(step, rows, context)
        del launcher.decode_attention
        say(what="attention", tile="left out", delta_us=round(1e3 * (ms - base), 1))
        best: dict[str, Any] = {}
        for kind, candidates in (GEMV[step.hidden.shape[1]] if single else SKINNY).items():
            base = step_ms(step, rows, context)  # anew: clocks drift
            least = base - 0.002
            for candidate in candidates:
                tile = GemvTile(*candidate) if single else SkinnyTile(*candidate)  # type: ignore[misc]
                tiles[kind] = tile
                try:
                    ms = step_ms(step, rows, context)
                except Exception as error:  # a tile the card has no room for is a result too
                    say(what=kind, tile=candidate, error=str(error)[:200])
                    continue
                say(what=kind, tile=candidate, ms=round(ms, 4), delta_us=round(1e3 * (ms - base), 1))  # fmt: skip
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
    engine.close()
    if out:
        Path(out).write_text(json.dumps({k: list(asdict(v).values()) for k, v in best.items()}))


def say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    for wish in sys.argv[1:]:
        model, count, *file = wish.split(":")
        main(model, int(count), file[0] if file else None)
