"""Launching the vision tower's kernels, as `launch.Launcher` launches the decoder's."""

from __future__ import annotations

import torch
import triton

from visavis.engine.kernels.triton import vision
from visavis.engine.kernels.triton.launch import Launcher
from visavis.engine.kernels.triton.tiles import pad

__all__ = ["VisionLauncher"]


class VisionLauncher:
    def __init__(self, launcher: Launcher) -> None:
        self.launcher = launcher

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
        """Adds `late` to x, both (rows, N), in place, then normalises: LayerNorm with a `bias`, RMSNorm without."""
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
