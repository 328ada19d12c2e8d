"""Launching the vision tower's kernels, as `launch.Launcher` launches the decoder's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton

from visavis.engine.kernels.triton import vision
from visavis.engine.kernels.triton.launch import Launcher, pad, precision
from visavis.engine.kernels.triton.vision_attention import stretch_attention_kernel
from visavis.engine.transfer import send

__all__ = ["StretchTile", "Stretches", "VisionLauncher"]


@dataclass(frozen=True, slots=True)
class StretchTile:
    block_m: int
    block_n: int
    warps: int
    stages: int


@dataclass(frozen=True, slots=True)
class Stretches:
    """Neighbouring patches that attend to each other, cut into tiles of queries."""

    tiles: torch.Tensor  # (tiles, 3) int32: first query, first patch of its stretch, patches of that
    tile: StretchTile


class VisionLauncher:
    def __init__(self, launcher: Launcher, head_dim: int, dtype: torch.dtype) -> None:
        self.launcher = launcher
        self.dtype = dtype
        # 80 columns are 64 and 16, 72 are 64 and 16 of which 8 count. 96 as 64 and 32 went wrong on an H200.
        in_two = 64 < head_dim <= 80
        self.first_part = 64 if in_two else pad(head_dim, 16)
        self.second_part = 16 if in_two else 0
        self.head_dim = head_dim
        self.long_tile: StretchTile | None = None  # where a measurement says otherwise

    def tile_for(self, longest: int) -> StretchTile:
        if self.dtype == torch.float32:
            return StretchTile(32, 32, 4, 1)
        if longest <= 64:
            return StretchTile(64, 64, 4, 2)
        if self.long_tile is not None:
            return self.long_tile
        return StretchTile(128, 64, 8, 3) if self.launcher.overlap else StretchTile(64, 64, 4, 2)

    def stretches(self, lengths: Sequence[int]) -> Stretches:
        """Of neighbouring stretches of these lengths, the longest tiles' first."""
        tile = self.tile_for(max(lengths))
        rows, begin = [], 0
        for length in lengths:
            rows += [(first, begin, length) for first in range(begin, begin + length, tile.block_m)]
            begin += length
        return Stretches(send(torch.tensor(rows, dtype=torch.int32), self.launcher.device), tile)

    def attention(self, qkv: torch.Tensor, out: torch.Tensor, stretches: Stretches) -> None:
        """qkv (patches, 3, H, D), queries and keys rotated → out (patches, H · D)."""
        heads, d = qkv.shape[2:]
        tile = stretches.tile
        stretch_attention_kernel[(stretches.tiles.shape[0], heads)](
            qkv, out, stretches.tiles, d**-0.5,
            H=heads, D=d, D0=self.first_part, D1=self.second_part, BLOCK_M=tile.block_m, BLOCK_N=tile.block_n,
            PRECISION=precision(qkv.dtype), num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip

    def patches(
        self, pixels: torch.Tensor, table: torch.Tensor, out: torch.Tensor, patch: int, merge: int, temporal: int
    ) -> None:
        """pixels (H, W, 3) or (T, H, W, 3) uint8, table (3, 256) → out (patches, 3 · temporal · patch²)."""
        still = pixels.ndim == 3
        height, width = pixels.shape[-3:-1]
        vision.patch_kernel[(out.shape[0],)](
            pixels, table, out, 1 if still else pixels.shape[0], height, width,
            P=patch, M=merge, T=temporal, STILL=still, BLOCK=pad(out.shape[1]), num_warps=4,
        )  # fmt: skip

    def join_norm(
        self, x: torch.Tensor, late: torch.Tensor | None, weight: torch.Tensor, bias: torch.Tensor | None, eps: float
    ) -> torch.Tensor:
        """Adds `late` (N,) to x (rows, N) in place, then normalises: LayerNorm with a `bias`, RMSNorm without."""
        out = torch.empty_like(x)
        n = x.shape[1]
        block = pad(n)
        vision.join_norm_kernel[(x.shape[0],)](
            x, weight if late is None else late, weight, weight if bias is None else bias, out, eps,
            N=n, BLOCK=block, JOIN=late is not None, RMS=bias is None, num_warps=max(1, min(8, block // 512)),
        )  # fmt: skip
        return out

    def quick_gelu_(self, x: torch.Tensor) -> None:
        """In place; x contiguous."""
        count = x.numel()
        vision.quick_gelu_kernel[(triton.cdiv(count, 2048),)](x, count, BLOCK=2048, num_warps=4)
