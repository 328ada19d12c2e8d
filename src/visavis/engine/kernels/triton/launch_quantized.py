"""Launching the products with quantised weights: which kernel for how many rows, and its tiles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton

from visavis.engine.kernels.triton import quantized, quantized_gemv
from visavis.engine.kernels.triton.launch import DecodeScratch, Launcher, precision
from visavis.engine.kernels.triton.tiles import GemvTile, pad
from visavis.engine.quantization.weight import QuantizedWeight

__all__ = ["TILE_ROWS", "QuantizedLauncher", "Tile"]

TILE_ROWS = 64
"""Up to as many rows of x a program of the tile kernel takes."""
DENSE_ROWS = 256
"""Above, the weight is made dense, some rows at a time, for cuBLAS."""
DENSE_BYTES = 32 << 20
"""Of the part that is dense at a time: cuBLAS finds it in the L2 cache of a large card."""


MAX_SPLIT = 9
PAIRS = {torch.bfloat16: 1, torch.float16: 2}


@dataclass(frozen=True, slots=True)
class Tile:
    block_n: int
    split: int
    warps: int
    stages: int
    registers: int | None = None  # a thread; fewer let more programs share a multiprocessor


class QuantizedLauncher:
    """Beside the `Launcher` of the engine, whose settings hold here too."""

    def __init__(self, launcher: Launcher) -> None:
        self.launcher = launcher
        self.asm = launcher.gpu or launcher.device.type == "meta"  # the interpreter has none
        self.gemv_tiles: dict[str, GemvTile] = {}  # by kind of product, where a measurement says otherwise
        self.tile_tiles: dict[str, Tile] = {}
        self.dense_rows = DENSE_ROWS

    def gemv_tile(self, kind: str, n: int, row: int, bits: int, *, whole: bool) -> GemvTile:
        """In words of four bytes."""
        if kind in self.gemv_tiles:
            return self.gemv_tiles[kind]
        width = pad(row, 16)  # what was fastest on an H200 (benchmarks/gpu/quantized.py) for the products of a 7B
        if not whole and width > 1024:
            return GemvTile(4, 512, 4)
        if bits == 4:
            return GemvTile(8, width, 4) if n <= 4096 else GemvTile(4, width, 4 if width <= 1024 else 8, 4)
        return GemvTile(2, width, 4 if width <= 1024 else 8, 4 if n > 8192 else 5)

    def product(
        self,
        kind: str,
        x: torch.Tensor,
        weight: QuantizedWeight,
        out: torch.Tensor,
        *,
        bias: torch.Tensor | None = None,
        norm: torch.Tensor | None = None,
        eps: float = 0.0,
        residual: bool = False,
        silu: bool = False,
        scratch: DecodeScratch,
    ) -> None:
        """As `Launcher.product`; `norm` of a single row only."""
        if weight.order is not None:
            if norm is not None:
                raise ValueError("inputs in another order are normalised before")
            x = x.index_select(1, weight.order)
        if x.shape[0] == 1:
            self._single(kind, x, weight, out, bias, norm, eps, residual, silu)
        elif norm is not None:
            raise ValueError("several rows are normalised before")
        else:
            self._tile(kind, x, weight, out, bias, residual, silu, scratch)

    def _single(
        self,
        kind: str,
        x: torch.Tensor,
        weight: QuantizedWeight,
        out: torch.Tensor,
        bias: torch.Tensor | None,
        norm: torch.Tensor | None,
        eps: float,
        residual: bool,
        silu: bool,
    ) -> None:
        run, k, n = self.launcher, weight.shape[1], out.shape[1]
        data = weight.data.view(torch.int32)
        zeros = weight.zeros if weight.zeros is not None else data
        row = data.shape[1]
        tile = self.gemv_tile(kind, n, row, weight.bits, whole=norm is not None or silu)
        blocks = triton.cdiv(n, tile.block_n)
        per_word = 32 // weight.bits
        same = {
            "K": k, "ROW": row, "GROUP": weight.group, "BITS": weight.bits, "BLOCK_N": tile.block_n,
            "RUNS": tile.block_k // (4 if weight.bits == 4 else 2), "FINE": x.dtype == torch.float32,
            "PAIRED": PAIRS.get(x.dtype, 0) if k % per_word == 0 else 0, "ASM": self.asm,
            "BIAS": bias is not None, "RESIDUAL": residual, "PDL": run.overlap, "num_warps": tile.warps, **run.options,
        }  # fmt: skip
        nothing = data  # a pointer that is not followed
        bias, norm_weight = (nothing if t is None else t for t in (bias, norm))
        if tile.block_k >= row:
            grid = (min(blocks, tile.programs * run.processors or blocks),)
            quantized_gemv.gemv_rows_kernel[grid](
                x, data, weight.scales, zeros, bias, norm_weight, out, n, eps,
                NORM=norm is not None, SILU=silu, **same,
            )  # fmt: skip
        else:
            quantized_gemv.gemv_kernel[(blocks,)](x, data, weight.scales, zeros, bias, out, n, **same)

    def fuses(self, rows: int, dtype: torch.dtype) -> bool:
        """Whether so many rows of x go through `product`; the matrix units have no float32, which is for parity."""
        return rows <= (16 if dtype == torch.float32 else self.dense_rows)

    def tile_tile(self, kind: str, rows: int, bits: int, item: int, n: int, k: int, *, silu: bool) -> Tile:
        if kind in self.tile_tiles:
            return self.tile_tiles[kind]
        if item == 4:
            return Tile(16 if silu else 32, 1, 4, 2)
        hopper = self.launcher.hopper
        if silu and not hopper:
            return Tile(64, 1, 8 if rows > 16 else 4, 3)
        if silu:
            return Tile(64, 1, 4, 3, 168 if rows <= 16 else None)
        if not hopper:
            return Tile(64, self._split(n, k, 64, 2), 4, 3)
        if rows > 16 and k > 8192 and bits == 4:
            return Tile(128, self._split(n, k, 128, 2), 8, 3, 128)
        return Tile(64, self._split(n, k, 64, 3), 4, 3, 168)

    def _split(self, n: int, k: int, block_n: int, each: int) -> int:
        """Programs that share a sum, so that `each` on every multiprocessor are just busy; a unit each at least."""
        blocks = triton.cdiv(n, block_n)
        return max(1, min(each * self.launcher.processors // blocks, MAX_SPLIT, triton.cdiv(k, 128) // 4))

    def _tile(
        self,
        kind: str,
        x: torch.Tensor,
        weight: QuantizedWeight,
        out: torch.Tensor,
        bias: torch.Tensor | None,
        residual: bool,
        silu: bool,
        scratch: DecodeScratch | None,
    ) -> None:
        run, (rows, k), n = self.launcher, x.shape, out.shape[1]
        data = weight.data.view(torch.int16) if weight.bits == 4 else weight.data
        m_pad = min(pad(rows, 16), TILE_ROWS)
        tile = self.tile_tile(kind, rows, weight.bits, x.element_size(), n, k, silu=silu)
        partial, arrived = (data, data) if scratch is None else (scratch.partial, scratch.arrived)
        blocks = triton.cdiv(n, tile.block_n)
        room = 0 if scratch is None or rows > m_pad else partial.numel() // (blocks * tile.block_n * m_pad)
        split = max(1, min(tile.split, room))
        grid = (blocks, split, triton.cdiv(rows, m_pad))
        options: dict[str, Any] = {}
        if tile.registers is not None and run.gpu:
            options["maxnreg"] = tile.registers
        quantized.tile_kernel[grid](
            x, data, weight.scales, weight.zeros if weight.zeros is not None else data,
            bias if bias is not None else data, out, partial, arrived, rows, n,
            K=k, GROUP=weight.group, BITS=weight.bits, M_PAD=m_pad, BLOCK_N=tile.block_n, SPLIT=split,
            BIAS=bias is not None, RESIDUAL=residual, SILU=silu, ASM=self.asm and x.dtype in PAIRS,
            PRECISION=precision(x.dtype), STAGES=tile.stages, num_warps=tile.warps,
            **options,
        )  # fmt: skip

    def linear(
        self, x: torch.Tensor, weight: QuantizedWeight, bias: torch.Tensor | None, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        """(rows, K) → (rows, N) for prompts and large batches; given `out`, added to what it holds."""
        residual = out is not None
        if weight.order is not None:
            x = x.index_select(1, weight.order)
        x = x.contiguous()
        if out is None:
            out = x.new_empty((x.shape[0], weight.shape[0]))
        if self.fuses(x.shape[0], x.dtype):
            self._tile("prompt", x, weight, out, bias, residual, False, None)
            return out
        n, k = weight.shape
        chunk = max(128, DENSE_BYTES // (k * x.element_size()) // 128 * 128)
        dense = x.new_empty((min(chunk, n), k))
        for start in range(0, n, chunk):
            stop = min(start + chunk, n)
            part = self.dequantize(weight.rows(start, stop), dense[: stop - start]).t()
            if residual and bias is not None:  # not added by itself: the residual is rounded once
                out[:, start:stop] += torch.addmm(bias[start:stop], x, part)
            elif residual:
                out[:, start:stop].addmm_(x, part)
            elif bias is not None:
                torch.addmm(bias[start:stop], x, part, out=out[:, start:stop])
            else:
                torch.mm(x, part, out=out[:, start:stop])
        return out

    def dequantize(self, weight: QuantizedWeight, out: torch.Tensor) -> torch.Tensor:
        """Dense into `out` (N, K), columns as they are stored."""
        n, k = weight.shape
        data = weight.data.view(torch.int16) if weight.bits == 4 else weight.data
        grid = (triton.cdiv(n, 64), triton.cdiv(k, 128))
        quantized.dequantize_kernel[grid](
            data, weight.scales, weight.zeros if weight.zeros is not None else data, out, n,
            K=k, GROUP=weight.group, BITS=weight.bits, BLOCK_N=64, num_warps=4,
        )  # fmt: skip
        return out
