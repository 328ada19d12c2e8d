"""What a vision tower needs beside products, in plain torch: the CPU path and the reference for other devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from visavis.engine.kernels.base import Kernels, Linear, Norm, Rotation
from visavis.engine.models.vision_layout import Run
from visavis.patches import patchify_all
from visavis.prompt import PatchRule, PreparedMedia

__all__ = ["ACTIVATIONS", "LayerNorm", "Order", "VisionOps"]


def _quick_gelu(x: torch.Tensor) -> torch.Tensor:
    """x · sigmoid(1.702 x), in place: three passes over memory and none of it new."""
    return F.silu(x.mul_(1.702), inplace=True).mul_(1 / 1.702)


ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "quick_gelu": _quick_gelu,
    "gelu": F.gelu,
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
}
"""They may write over what they are given."""


class LayerNorm:
    def __init__(self, size: int, eps: float, kernels: Kernels) -> None:
        self.weight = torch.empty(size, device=kernels.device, dtype=kernels.activation_dtype)
        self.bias = torch.empty(size, device=kernels.device, dtype=kernels.activation_dtype)
        self.eps = eps

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


class Order(NamedTuple):
    """How attention sees the patches: `runs` in the order that `gather` brings about (None: as they lie); `prepared`:
    what a device made of the runs, once for all layers."""

    runs: list[Run]
    gather: torch.Tensor | None = None
    scatter: torch.Tensor | None = None
    prepared: Any = None


class VisionOps:
    windows_by_size = True
    """Windows of one size lie together and share an attention call; else those of a frame do."""

    def __init__(self, kernels: Kernels) -> None:
        self.kernels = kernels

    def torch_threads(self) -> AbstractContextManager[None]:
        """What the tower is run under: products of torch are worth its threads."""
        return self.kernels.torch_threads.all()

    def patches(self, media: Sequence[PreparedMedia], rules: Sequence[PatchRule]) -> torch.Tensor:
        """All patches of `media`, one item after the other: (n, patch size) of any float dtype, on any device."""
        parts = [patchify_all([item], rule) for item, rule in zip(media, rules, strict=True)]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def order(self, runs: list[Run], gather: torch.Tensor | None = None, scatter: torch.Tensor | None = None) -> Order:
        return Order(runs, gather, scatter)

    def join(self, x: torch.Tensor, linear: Linear, inner: torch.Tensor, norm: Norm) -> torch.Tensor:
        """Adds linear(inner) to x (n, hidden) in place → x normalised."""
        return norm(linear.add_to(x, inner))

    def activate(self, name: str, inner: torch.Tensor) -> torch.Tensor:
        """(n, m) → (n, m); may write over what it is given."""
        return ACTIVATIONS[name](inner)

    def gate(self, name: str, inner: torch.Tensor) -> torch.Tensor:
        """(n, 2·m), gates first → (n, m): act(gate) · up."""
        gate, up = inner.chunk(2, dim=-1)
        return ACTIVATIONS[name](gate).mul_(up)

    def attention(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Of stretches of one length: each (repeats, H, length, D) → the same."""
        return F.scaled_dot_product_attention(q, k, v)

    def attend(self, qkv: torch.Tensor, turn: Rotation, order: Order) -> torch.Tensor:
        """Rotates queries and keys of qkv (n, 3, H, D), then attends within each stretch of `order` → (n, H·D)."""
        heads = qkv.shape[2]
        queries_keys = qkv[:, :2].flatten(1, 2)
        if queries_keys.dtype == torch.float32 or self.kernels.rotates_in_float32:
            self.kernels.rotate_(queries_keys, turn)
        else:  # the reference rotates in float32 whatever the model's dtype
            wide = queries_keys.float()
            self.kernels.rotate_(wide, turn)
            queries_keys.copy_(wide)
        if order.gather is not None:
            qkv = qkv.index_select(0, order.gather)
        parts = []
        for run, part in zip(order.runs, qkv.split([run.repeats * run.length for run in order.runs]), strict=True):
            q, k, v = part.view(run.repeats, run.length, 3, heads, -1).permute(2, 0, 3, 1, 4)
            out = self.attention(q, k, v)
            parts.append(out.transpose(1, 2).reshape(run.repeats * run.length, -1))
        joined = parts[0] if len(parts) == 1 else torch.cat(parts)
        return joined if order.scatter is None else joined.index_select(0, order.scatter)
