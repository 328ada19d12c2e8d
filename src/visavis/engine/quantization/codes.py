"""`Codes`: a quantised matrix as plain numbers, between a checkpoint's layout and ours; and how codes are made."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

__all__ = ["Codes", "quantize"]

INT8_MAX = 127
INT4_MAX = 15


@dataclass(frozen=True, slots=True)
class Codes:
    """weight[:, order] = (values - zeros) · scales, a scale and a zero for each `group` columns of a row."""

    bits: int
    values: torch.Tensor  # (n, k): int8 with 8 bits, uint8 from 0 to 15 with 4
    scales: torch.Tensor  # (n, k / group) floating
    zeros: torch.Tensor | None  # (n, k / group) uint8 with 4 bits; None: 0
    group: int
    order: torch.Tensor | None = None  # (k,) int64: the input that each column of `values` is for; None: as they come

    def narrow(self, dim: int, start: int, length: int) -> Codes:
        """Some rows (dim 0), or some columns (dim 1: whole groups, inputs in their order) of the matrix."""
        if dim == 0:
            zeros = None if self.zeros is None else self.zeros.narrow(0, start, length)
            values, scales = self.values.narrow(0, start, length), self.scales.narrow(0, start, length)
            return replace(self, values=values, scales=scales, zeros=zeros)
        group = self.group if self.group < self.values.shape[1] else length  # one scale a row goes with any columns
        if self.order is not None or start % group or length % group:
            raise ValueError(f"columns {start} … {start + length} are no whole groups of {self.group} in order")
        first, count = (start // group, length // group) if group == self.group else (0, 1)
        zeros = None if self.zeros is None else self.zeros.narrow(1, first, count)
        values, scales = self.values.narrow(1, start, length), self.scales.narrow(1, first, count)
        return replace(self, values=values, scales=scales, zeros=zeros, group=group)

    def dequantize(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """(n, k) in `dtype`, computed in float32, inputs in their order."""
        wide = self.values.float().unflatten(1, (-1, self.group))
        if self.zeros is not None:
            wide -= self.zeros.float().unsqueeze(2)
        dense = (wide * self.scales.float().unsqueeze(2)).flatten(1).to(dtype)
        if self.order is None:
            return dense
        out = torch.empty_like(dense)
        out[:, self.order] = dense
        return out


def quantize(weight: torch.Tensor, bits: int, group: int) -> Codes:
    """Rounds a (n, k) matrix to the nearest codes.

    8 bits are symmetric: the largest of a group becomes 127. 4 bits reach from a group's least to its largest value
    with a zero between, and the scales are float16, as in checkpoints of that kind.
    """
    wide = weight.float().unflatten(1, (-1, group))
    if bits == 8:
        scales = wide.abs().amax(2).div_(INT8_MAX)
        steps = torch.where(scales > 0, scales, 1.0).unsqueeze(2)
        return Codes(8, (wide / steps).round_().to(torch.int8).flatten(1), scales, None, group)
    low, high = wide.amin(2).clamp_(max=0), wide.amax(2).clamp_(min=0)
    scales = ((high - low) / INT4_MAX).to(torch.float16)
    steps = torch.where(scales > 0, scales, 1.0).float()
    zeros = (-low / steps).round_().clamp_(0, INT4_MAX)
    values = (wide / steps.unsqueeze(2)).add_(zeros.unsqueeze(2)).round_().clamp_(0, INT4_MAX)
    return Codes(4, values.to(torch.uint8).flatten(1), scales, zeros.to(torch.uint8), group)
