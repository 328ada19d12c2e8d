"""Products with quantised weights by themselves: `python -m benchmarks.gpu.quantized [--compile I/N] [rows …]`.

Each product of a 7B's layer, over enough layers that no weight is still in the L2 cache, in one CUDA graph: µs a
product and the bytes of weights over that. One JSON line each, the tiles tried one by one.
With `--compile` every N-th variant is only compiled: N of these at once first, and the timing waits for no compiler.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.gpu.machine import time_ms
from visavis.engine.kernels.triton.launch import DecodeScratch, Launcher
from visavis.engine.kernels.triton.launch_quantized import QuantizedLauncher, Tile
from visavis.engine.kernels.triton.tiles import GemvTile
from visavis.engine.quantization.weight import QuantizedWeight

SHAPES = {"qkv": (4608, 3584), "output": (3584, 3584), "gate_up": (18944, 3584), "down": (3584, 18944)}
FORMATS = {"int4": (4, 128), "int8": (8, 0)}
# One row: rows and words of a tile, warps, programs a multiprocessor (0: one block of rows each).
WHOLE4 = [(4, 512, 4, 4), (4, 512, 4, 3), (8, 512, 4, 2), (4, 512, 4, 0), (2, 512, 4, 6), (2, 512, 4, 4),
          (8, 512, 4, 0), (4, 512, 4, 5), (2, 512, 4, 8)]  # fmt: skip
LONG4 = [
    (8, 512, 4, 0),
    (4, 512, 4, 0),
    (8, 256, 4, 0),
    (4, 1024, 8, 0),
    (8, 1024, 8, 0),
    (4, 256, 4, 0),
    (4, 256, 2, 0),
]
WHOLE8 = [(2, 1024, 4, 4), (1, 1024, 4, 6), (4, 1024, 4, 3), (4, 1024, 8, 2), (2, 1024, 4, 5), (2, 1024, 4, 0),
          (4, 1024, 4, 2), (2, 1024, 4, 6)]  # fmt: skip
LONG8 = [
    (8, 512, 8, 0),
    (8, 512, 4, 0),
    (4, 1024, 8, 0),
    (8, 1024, 8, 0),
    (4, 512, 4, 0),
    (4, 1024, 4, 0),
    (8, 256, 4, 0),
]
# Several rows: rows of a tile, programs that share a sum, warps, stages, registers a thread.
TILES = [(64, 1, 4, 3), (64, 1, 4, 3, 168), (64, 1, 4, 2, 168), (64, 1, 4, 2, 128), (64, 1, 8, 3, 128),
         (64, 1, 4, 4, 168), (128, 1, 8, 3, 168), (128, 1, 8, 2, 128)]  # fmt: skip
SPLITS = [(64, 4, 4, 4), (64, 5, 4, 3, 168), (64, 7, 4, 3, 168), (64, 4, 4, 3, 168), (128, 8, 4, 3),
          (128, 4, 8, 3, 128), (64, 2, 4, 3, 168), (64, 7, 4, 4, 168), (128, 9, 8, 3, 128)]  # fmt: skip


def graph_us(launch: Callable[[int], None], count: int) -> float:
    """µs of one of `count` launches that follow each other."""
    launch(0)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(count):
            launch(i)
    return 1e3 * time_ms(graph.replay, 15) / count


def say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


def weights(n: int, k: int, bits: int, group: int, count: int) -> list[QuantizedWeight]:
    made = []
    for _ in range(count):
        weight = QuantizedWeight.empty(
            n, k, bits=bits, group=group or k, scale_dtype=torch.float16 if group else torch.float32,
            device=torch.device("cuda"),
        )  # fmt: skip
        weight.data.view(torch.int32).random_(-(2**31), 2**31 - 1)
        weight.scales.uniform_(1e-3, 1e-2)
        if weight.zeros is not None:
            weight.zeros.random_(0, 16)
        made.append(weight)
    return made


def main(all_rows: list[int], share: tuple[int, int] | None) -> None:
    variant = 0
    device = torch.device("cuda")
    launcher = Launcher(device)
    run = QuantizedLauncher(launcher)
    scratch = DecodeScratch.make(64 << 20, 1 << 16, device)
    for kind, (n, k) in SHAPES.items():
        silu = kind == "gate_up"
        high = n * (2 if silu else 1)
        count = max(4, int(300e6 / (high * k / 2)))
        dense = [
            torch.randn(high, k, device=device).to(torch.bfloat16) for _ in range(1 if share else max(2, count // 4))
        ]
        norm = torch.ones(k, device=device, dtype=torch.bfloat16)
        for rows in all_rows:
            x = torch.randn(rows, k, device=device).to(torch.bfloat16)
            out = torch.zeros(rows, n, device=device, dtype=torch.bfloat16)
            wide = torch.zeros(rows, high, device=device, dtype=torch.bfloat16)
            gain = norm if rows == 1 and kind in ("qkv", "gate_up") else None
            flags = {"norm": gain, "eps": 1e-6, "residual": kind in ("output", "down"), "silu": silu}

            def bfloat16(i: int) -> None:
                weight = dense[i % len(dense)]  # noqa: B023
                if rows <= 16:  # noqa: B023
                    launcher.product(kind, x, weight, out, **flags, scratch=scratch)  # noqa: B023
                else:
                    torch.mm(x, weight.t(), out=wide)  # noqa: B023

            if share is not None and share[0] == 0:
                bfloat16(0)
            us = graph_us(bfloat16, count) if share is None else 1.0
            say(kind=kind, rows=rows, format="bf16", us=round(us, 2), gb_s=round(high * k * 2 / us / 1e3))
            for name, (bits, group) in FORMATS.items():
                made = weights(high, k, bits, group, 1 if share else count if bits == 4 else count // 2)
                size = made[0].nbytes
                whole = kind != "down"
                if rows == 1:
                    tiles = {(4, True): WHOLE4, (4, False): LONG4, (8, True): WHOLE8, (8, False): LONG8}[bits, whole]
                else:
                    tiles = TILES if silu else SPLITS
                for tile in [None, *tiles]:
                    run.gemv_tiles.clear()
                    run.tile_tiles.clear()
                    if tile is not None and rows == 1:
                        run.gemv_tiles[kind] = GemvTile(*tile)  # type: ignore[misc]
                    elif tile is not None:
                        run.tile_tiles[kind] = Tile(*tile)  # type: ignore[misc]
                    variant += 1
                    if share is not None and variant % share[1] != share[0]:
                        continue
                    try:
                        if share is not None:
                            run.product(kind, x, made[0], out, **flags, scratch=scratch)
                            continue
                        us = graph_us(
                            lambda i: run.product(kind, x, made[i % len(made)], out, **flags, scratch=scratch),  # noqa: B023
                            count,
                        )
                    except Exception as error:  # a tile the card has no room for is a result too
                        say(kind=kind, rows=rows, format=name, tile=tile, error=str(error)[:150])
                        continue
                    say(kind=kind, rows=rows, format=name, tile=tile, us=round(us, 2), gb_s=round(size / us / 1e3))


if __name__ == "__main__":
    words = sys.argv[1:]
    part = None
    if words[:1] == ["--compile"]:
        first, _, of = words[1].partition("/")
        part, words = (int(first), int(of)), words[2:]
    with torch.inference_mode():
        main([int(rows) for rows in words] or [1, 8, 64], part)
