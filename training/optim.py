"""Muon for the hidden matrices, AdamW for the rest, an exponential average of the weights, and the schedule."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

NS = (3.4445, -4.7750, 2.0315)


def orthogonalise(g: Tensor, steps: int = 5) -> Tensor:
    """Newton–Schulz on a stack of matrices (n, r, c): singular values to about one (Jordan et al. 2024, Muon)."""
    x = g.bfloat16() if g.is_cuda else g
    wide = x.shape[-2] > x.shape[-1]
    if wide:
        x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        a = x @ x.mT
        b = torch.baddbmm(a, a, a, beta=NS[1], alpha=NS[2])
        x = torch.baddbmm(x, b, x, beta=NS[0])
    return (x.mT if wide else x).to(g.dtype)


def is_hidden_matrix(name: str, p: Tensor) -> bool:
    """Matrices inside blocks, layers and the merger; not embeddings, patches, helpers."""
    return p.ndim == 2 and ("blocks." in name or "layers." in name or "merger.mlp" in name)


class Flat:
    """All parameters of a module in one float32 vector, so that casting, averaging and updating are single kernels.

    Hidden matrices come first, those of equal shape side by side: Muon sees each group as a stack (n, r, c).
    """

    def __init__(self, module: nn.Module) -> None:
        named = dict(module.named_parameters())
        shapes: dict[tuple[int, ...], list[str]] = {}
        for name, p in named.items():
            if is_hidden_matrix(name, p):
                shapes.setdefault(tuple(p.shape), []).append(name)
        rest = [n for n, p in named.items() if not is_hidden_matrix(n, p)]
        self.names = [n for group in shapes.values() for n in group] + rest
        self.shapes = [named[n].shape for n in self.names]
        self.sizes = [named[n].numel() for n in self.names]
        self.stacks: list[tuple[int, tuple[int, ...]]] = []  # where each stack starts, and its shape
        start = 0
        for shape, group in shapes.items():
            self.stacks.append((start, (len(group), *shape)))
            start += len(group) * math.prod(shape)
        self.hidden = start
        self.value = torch.cat([named[n].detach().flatten() for n in self.names]).requires_grad_()
        self.average = self.value.detach().clone()

    def cast(self, dtype: torch.dtype) -> dict[str, Tensor]:
        """The parameters in another dtype, differentiable."""
        parts = self.value.to(dtype).split(self.sizes)
        return {n: p.view(s) for n, p, s in zip(self.names, parts, self.shapes, strict=True)}

    def averaged(self) -> dict[str, Tensor]:
        """The averaged parameters, float32."""
        parts = self.average.split(self.sizes)
        return {n: p.view(s) for n, p, s in zip(self.names, parts, self.shapes, strict=True)}


class Optimizer:
    """Muon with AdamW-like step sizes (update scaled by 0.2·sqrt(longer side)) on stacks, Adam on the rest."""

    def __init__(self, flat: Flat, momentum: float = 0.95, decay: float = 0.02) -> None:
        self.flat, self.momentum, self.decay = flat, momentum, decay
        zeros = torch.zeros_like(flat.value.detach())
        self.first, self.second = zeros, zeros[flat.hidden :].clone()
        self.steps = 0

    @torch.no_grad()
    def step(self, lr: float, adam_lr: float, average: float) -> Tensor:
        """One update from ``flat.value.grad``, which is cleared. Returns the gradient's norm."""
        value, cut = self.flat.value, self.flat.hidden
        grad = value.grad
        assert grad is not None
        norm = grad.norm()
        grad.mul_((1.0 / (norm + 1e-6)).clamp(max=1.0).nan_to_num())
        self.steps += 1
        b1, b2 = 0.9, 0.98
        self.first[:cut].lerp_(grad[:cut], 1 - self.momentum)
        nesterov = grad[:cut].lerp(self.first[:cut], self.momentum)
        value[:cut].mul_(1 - lr * self.decay)
        for start, shape in self.flat.stacks:
            n, r, c = shape
            stop = start + n * r * c
            fused = r == 3 * c  # q, k and v in one: three matrices
            stack = nesterov[start:stop].view((3 * n, c, c) if fused else shape)
            update = orthogonalise(stack).reshape(-1)
            value[start:stop].add_(update, alpha=-lr * 0.2 * math.sqrt(c if fused else max(r, c)))
        first, rest = self.first[cut:], grad[cut:]
        first.lerp_(rest, 1 - b1)
        self.second.mul_(b2).addcmul_(rest, rest, value=1 - b2)
        scale = (self.second / (1 - b2**self.steps)).sqrt_().add_(1e-8)
        value[cut:].addcdiv_(first, scale, value=-adam_lr / (1 - b1**self.steps))
        value.grad = None
        self.flat.average.lerp_(value.detach(), 1 - average)
        return norm

    def state_dict(self) -> dict[str, object]:
        """Everything but the schedule: values, average and moments."""
        value = self.flat.value.detach()
        return {
            "value": value,
            "average": self.flat.average,
            "first": self.first,
            "second": self.second,
            "steps": self.steps,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        with torch.no_grad():
            self.flat.value.copy_(state["value"])
            self.flat.average.copy_(state["average"])
            self.first.copy_(state["first"])
            self.second.copy_(state["second"])
        self.steps = state["steps"]


def rate(progress: float) -> float:
    """Share of the peak learning rate: 1.5 % warm-up, flat to 35 %, then straight down to nothing."""
    if progress < 0.015:
        return max(0.02, progress / 0.015)
    if progress < 0.35:
        return 1.0
    return max(0.0, (1 - progress) / 0.65)
