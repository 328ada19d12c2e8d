"""`CudaVision`: what a vision tower does between its products in our Triton kernels; products stay cuBLAS's, attention
torch's."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import torch

from visavis.engine.kernels.base import Linear, Norm
from visavis.engine.kernels.cuda.kernels import CudaKernels
from visavis.engine.kernels.triton.launch_vision import VisionLauncher
from visavis.engine.kernels.vision import LayerNorm, VisionOps
from visavis.engine.models.vision_layout import Grid
from visavis.patches import byte_values
from visavis.prompt import PatchRule, PreparedMedia

__all__ = ["CudaVision"]

PLANNED_FROM = 256
"""Patches of a frame: windows are too short for a plan to pay."""


class CudaVision(VisionOps):
    def __init__(self, kernels: CudaKernels) -> None:
        super().__init__(kernels)
        self.launcher = kernels.launcher
        self.vision = VisionLauncher(kernels.launcher)
        self._tables: dict[PatchRule, torch.Tensor] = {}
        self._frames: Counter[int] = Counter()  # seen so far, by their number of patches

    def patches(self, media: Sequence[PreparedMedia], rules: Sequence[PatchRule]) -> torch.Tensor:
        """In the tower's dtype, from the bytes: a quarter or an eighth of what the floats would be to send."""
        counts = [math.prod(_grid(item)) for item in media]
        for frames, rows, columns in map(_grid, media):
            self._frames[rows * columns] += frames
        size = 3 * rules[0].temporal_patch_size * rules[0].patch_size ** 2
        out = torch.empty((sum(counts), size), device=self.kernels.device, dtype=self.kernels.dtype)
        for item, rule, part in zip(media, rules, out.split(counts), strict=True):
            self.vision.patches(
                self._sent(item), self._table(rule), part, rule.patch_size, rule.merge_size, rule.temporal_patch_size
            )
        return out

    def attention(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """On Hopper cuDNN's, which torch prefers there, takes two thirds of FlashAttention-2's time, but plans for
        40 ms before the first call of a shape. So it gets frames of a size that was seen before, one by one, which is
        one plan however many they are. So a picture's bfloat16 output may differ from its first one in the last bits.
        """
        length, head_dim = q.shape[2:]
        if q.dtype == torch.float32 or not self.launcher.hopper or head_dim % 8:
            return super().attention(q, k, v)
        if length < PLANNED_FROM or self._frames[length] < 2:
            return flash_attention(q, k, v)
        frames = zip(q.split(1), k.split(1), v.split(1), strict=True)
        parts = [super(CudaVision, self).attention(*frame) for frame in frames]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def join(self, x: torch.Tensor, linear: Linear, inner: torch.Tensor, norm: Norm) -> torch.Tensor:
        bias = norm.bias if isinstance(norm, LayerNorm) else None
        return self.vision.join_norm(x, linear(inner), norm.weight, bias, norm.eps)

    def activate(self, name: str, inner: torch.Tensor) -> torch.Tensor:
        if name != "quick_gelu":
            return super().activate(name, inner)
        self.vision.quick_gelu_(inner)
        return inner

    def gate(self, name: str, inner: torch.Tensor) -> torch.Tensor:
        return self.kernels.silu_mul(inner) if name == "silu" else super().gate(name, inner)

    def _sent(self, item: PreparedMedia) -> torch.Tensor:
        """The pixels on the device, the copy under way."""
        pinned = torch.empty(item.pixels.shape, dtype=torch.uint8, pin_memory=self.launcher.gpu)
        pinned.numpy()[...] = item.pixels
        return pinned.to(self.kernels.device, non_blocking=True)

    def _table(self, rule: PatchRule) -> torch.Tensor:
        table = self._tables.get(rule)
        if table is None:
            table = self._tables[rule] = byte_values(rule).to(self.kernels.device, self.kernels.dtype)
        return table


def flash_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """FlashAttention-2 by name: `sdpa_kernel` would choose it for the whole process, other threads' calls included."""
    out: torch.Tensor = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v)[0]
    return out


def _grid(item: PreparedMedia) -> Grid:
    assert item.grid is not None  # checked on arrival
    return item.grid
