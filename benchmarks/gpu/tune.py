"""Coordinate descent over the launches of a decode step: each tile and overlap in turn, the best is kept.

`python -m benchmarks.gpu.tune MODEL ROWS CONTEXT [OUT.json]` times the whole step in its CUDA graph, prints one JSON
line a launch and last the best of all; of these the products' tiles go to OUT.json, for `run.py --tiles`. With
`--compile I/N` every N-th variant is only compiled: N of these at once first, and the timing waits for no compiler.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import astuple
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.machine import need_cuda, time_ms
from benchmarks.gpu.models import make_engine, weight_bytes
from visavis.engine.kernels.cuda.sampling import GREEDY
from visavis.engine.kernels.cuda.step import COLUMNS, DecodeStep
from visavis.engine.kernels.triton.launch import SKINNY_ROWS, Launcher
from visavis.engine.kernels.triton.tiles import AttentionTile, GemvTile, SkinnyTile

ATTENTION = [
    AttentionTile(*tile) for tile in
    [(64, 64, 2), (64, 64, 4), (32, 32, 2), (32, 32, 4), (64, 64, 8), (128, 128, 4), (128, 128, 8), (64, 128, 2),
     (64, 128, 4), (128, 1024, 4)]
]  # fmt: skip
# Rows and columns of a tile, warps, programs a multiprocessor (0: a block of rows each). Whole rows where columns ≥ K.
GEMV = {
    1536: {
        "qkv": [(2, 2048, 4, 4), (2, 2048, 4, 0), (4, 2048, 4, 0), (4, 2048, 2, 0), (8, 2048, 4, 0), (1, 2048, 2, 0)],
        "output": [(4, 2048, 4, 0), (2, 2048, 4, 0), (4, 2048, 4, 4), (2, 2048, 2, 0)],
        "gate_up": [(2, 2048, 4, 4), (2, 2048, 8, 4), (1, 2048, 2, 8), (4, 2048, 8, 2), (1, 2048, 4, 6),
                    (2, 2048, 4, 3), (2, 2048, 2, 8)],
        "down": [(4, 2048, 8, 0), (8, 1024, 8, 0), (2, 2048, 4, 0), (4, 1024, 8, 0), (2, 1024, 4, 0), (1, 16384, 4, 0)],
        "lm_head": [(8, 256, 4, 0), (16, 256, 4, 0), (16, 128, 4, 0), (2, 2048, 4, 6), (1, 2048, 4, 8)],
    },
    3584: {
        "qkv": [(2, 4096, 4, 0), (2, 4096, 8, 2), (2, 4096, 8, 4), (1, 4096, 4, 8), (4, 512, 4, 0)],
        "output": [(4, 512, 4, 0), (2, 4096, 8, 2), (2, 4096, 8, 4), (2, 4096, 4, 0)],
        "gate_up": [(2, 4096, 8, 2), (1, 4096, 4, 4), (2, 4096, 8, 3)],
        "down": [(4, 512, 4, 0), (8, 512, 4, 0), (8, 1024, 8, 0), (4, 1024, 8, 0), (4, 1024, 4, 0)],
        "lm_head": [(8, 256, 4, 0), (2, 4096, 8, 2)],
    },
}  # fmt: skip
SKINNY = {  # rows and columns of a tile, programs that share a sum, warps, stages
    "qkv": [(64, 128, 6, 4, 3), (64, 128, 4, 4, 3), (32, 128, 4, 4, 3), (32, 128, 2, 4, 4), (16, 128, 1, 4, 6)],
    "output": [(16, 128, 1, 4, 6), (32, 128, 4, 4, 3), (64, 128, 6, 4, 3), (32, 128, 3, 4, 4)],
    "gate_up": [(64, 64, 1, 4, 4), (64, 128, 1, 4, 3), (128, 64, 1, 8, 4), (32, 128, 1, 4, 4)],
    "down": [(32, 128, 5, 4, 4), (64, 128, 5, 4, 4), (32, 128, 8, 4, 4), (64, 128, 10, 4, 3), (32, 128, 7, 4, 4)],
    "lm_head": [(64, 128, 1, 4, 4), (64, 64, 1, 4, 6), (128, 128, 1, 8, 3)],
}
LEAST_GAIN_MS = 0.0025

Parameter = tuple[str, Callable[[Any], None], list[Any]]
"""A name, what sets it (None: by the built-in rule), and the values to try."""


def step_ms(step: DecodeStep, rows: int, context: int) -> float:
    """One captured step of `rows` requests with `context` tokens each. Nobody else may use the device meanwhile."""
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


def parameters(run: Launcher, rows: int, hidden: int) -> Iterator[Parameter]:
    def attention(tile: AttentionTile | None) -> None:
        run.attention_tile = tile

    def setter(store: dict[str, Any], kind: str) -> Callable[[Any], None]:
        return lambda value: store.pop(kind, None) if value is None else store.update({kind: value})

    yield "attention", attention, list(ATTENTION)
    yield "attention overlap", setter(run.overlaps, "attention"), [1, 3]  # see overlap.py
    if rows == 1:
        for kind, tiles in GEMV.get(hidden, {}).items():
            yield kind, setter(run.gemv_tiles, kind), [GemvTile(*tile) for tile in tiles]
            yield f"{kind} overlap", setter(run.overlaps, kind), [1, 3]
        return
    for kind, tiles in SKINNY.items():
        # Up to so many rows it is our kernel: 1 is cuBLAS for these, 64 as far as ours goes.
        yield f"{kind} rows", setter(run.skinny_rows, kind), [1] if rows <= SKINNY_ROWS else [64]
        yield kind, setter(run.skinny_tiles, kind), [SkinnyTile(*tile) for tile in tiles]
        yield f"{kind} overlap", setter(run.overlaps, kind), [1, 3]


def left_out(step: DecodeStep, rows: int, context: int, base: float) -> None:
    """What a step takes without one of its launches."""
    run = step.launcher
    product = run.product
    for kind in SKINNY:
        run.product = lambda k, *a, **o: None if k == kind else product(k, *a, **o)  # type: ignore[method-assign] # noqa: B023
        say(left_out=kind, us=round(1e3 * (step_ms(step, rows, context) - base), 1))
    del run.product
    run.decode_attention = lambda *a, **o: None  # type: ignore[method-assign]
    say(left_out="attention", us=round(1e3 * (step_ms(step, rows, context) - base), 1))
    del run.decode_attention


def compile_only(every: list[Parameter], share: tuple[int, int], run: Callable[[], float]) -> None:
    number = 0
    for _, put, values in every:
        for value in values:
            number += 1
            if number % share[1] == share[0]:
                put(value)
                try_to(run)
        put(None)


def try_to(run: Callable[[], float]) -> float | str:
    try:
        return run()
    except Exception as error:  # a tile the card has no room for is a result too
        return str(error)[:200]


def descend(every: list[Parameter], run: Callable[[], float], passes: int = 2) -> dict[str, Any]:
    now: dict[str, Any] = {}
    for turn in range(passes):
        for name, put, values in every:
            base = run()  # anew: clocks drift
            least, best = base - LEAST_GAIN_MS, now.get(name)
            tried = {}
            for value in [None, *values]:
                if value == now.get(name):
                    continue
                put(value)
                found = try_to(run)
                tried[str(value)] = found if isinstance(found, str) else round(1e3 * (found - base), 1)
                if isinstance(found, float) and found < least:
                    least, best = found, value
            put(best)
            now[name] = best
            say(turn=turn, what=name, base_ms=round(base, 4), chosen=str(best), difference_us=tried)
    return {name: value for name, value in now.items() if value is not None}


def main(name: str, rows: int, context: int, out: Path | None, share: tuple[int, int] | None) -> None:
    engine = make_engine(name, max_num_seqs=max(rows, 8), max_model_len=2048)
    assert engine.ahead is not None
    engine.ahead.ready()  # nobody else is to use the device while a graph is captured
    step = engine.ahead.step
    every = list(parameters(step.launcher, rows, step.hidden.shape[1]))

    def run() -> float:
        return min(step_ms(step, rows, context) for _ in range(2))

    with torch.inference_mode():
        if share is not None:
            compile_only(every, share, run)
            return
        base = run()
        say(model=name, rows=rows, context=context, ms=round(base, 4), gb_s=round(weight_bytes(name) / base / 1e6))
        left_out(step, rows, context, base)
        best = descend(every, run)
        ms = run()
    say(best_ms=round(ms, 4), gb_s=round(weight_bytes(name) / ms / 1e6), chosen={k: str(v) for k, v in best.items()})
    if out is not None:
        tiles = {k: list(astuple(v)) for k, v in best.items() if isinstance(v, GemvTile | SkinnyTile)}
        out.write_text(json.dumps(tiles), encoding="utf-8")
    engine.close()


def say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("rows", type=int)
    parser.add_argument("context", type=int)
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("--compile", metavar="I/N", type=lambda text: tuple(map(int, text.split("/"))))
    args = parser.parse_args()
    need_cuda()
    main(args.model, args.rows, args.context, args.out, args.compile)
