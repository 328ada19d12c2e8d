"""`CudaVision`: what a vision tower does between its products in our Triton kernels; products stay cuBLAS's, attention
torch's."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from visavis.engine.kernels.base import Linear, Norm
from visavis.engine.kernels.cuda.kernels import CudaKernels, CudaLinear
from visavis.engine.kernels.triton.launch_vision import VisionLauncher
from visavis.engine.kernels.vision import LayerNorm, VisionOps
from visavis.patches import byte_values
from visavis.prompt import PatchRule, PreparedMedia

__all__ = ["CudaVision"]


class CudaVision(VisionOps):
    def __init__(self, kernels: CudaKernels) -> None:
        super().__init__(kernels)
        self.launcher = kernels.launcher
        self.vision = VisionLauncher(kernels.launcher)
        self._tables: dict[PatchRule, torch.Tensor] = {}

    def patches(self, media: Sequence[PreparedMedia], rules: Sequence[PatchRule]) -> torch.Tensor:
        """In the tower's dtype, from the bytes: a quarter or an eighth of what the floats would be to send."""
        counts = [_num_patches(item) for item in media]
        size = 3 * rules[0].temporal_patch_size * rules[0].patch_size ** 2
        out = torch.empty((sum(counts), size), device=self.kernels.device, dtype=self.kernels.dtype)
        for item, rule, part in zip(media, rules, out.split(counts), strict=True):
            self.vision.patches(
                self._sent(item), self._table(rule), part, rule.patch_size, rule.merge_size, rule.temporal_patch_size
            )
        return out

    def join(self, x: torch.Tensor, linear: Linear, inner: torch.Tensor, norm: Norm) -> torch.Tensor:
        bias = linear.bias
        if type(linear) is CudaLinear:
            x.addmm_(inner, linear.weight.t())
        else:  # whatever it is made of, it knows how to add its bias
            x, bias = linear.add_to(x, inner), None
        return self.vision.join_norm(x, bias, norm.weight, norm.bias if isinstance(norm, LayerNorm) else None, norm.eps)

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


def _num_patches(item: PreparedMedia) -> int:
    assert item.grid is not None  # checked on arrival
    t, h, w = item.grid
    return t * h * w
