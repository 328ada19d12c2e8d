"""Rotary position embedding tables, in float32 as the reference implementations compute them."""

from __future__ import annotations

import math

import torch

from visavis.engine.kernels.base import Rotation
from visavis.engine.model_config import Llama3Scaling, RopeConfig

__all__ = ["RotaryEmbedding", "inverse_frequencies", "rotation"]


class RotaryEmbedding:
    """cos and sin of a step's tokens. With `mrope_section` each frequency takes its angle from one of three axes
    (time, height, width): in three runs (Qwen2-VL) or alternating (Qwen3-VL)."""

    def __init__(self, config: RopeConfig, head_dim: int, device: torch.device, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.inv_freq = inverse_frequencies(config, head_dim).to(device)
        axes = _axis_of_frequency(config, head_dim // 2)
        self.axis_of_frequency = None if axes is None else axes.to(device)
        self._table = Rotation(torch.empty(0), torch.empty(0))  # rows 0… of equal positions on all axes

    def __call__(self, positions: torch.Tensor) -> Rotation:
        """positions: (axes, n) int64 → cos and signed sin, each (n, 1, head_dim) in the model's dtype."""
        by_frequency = positions[0, :, None] if self.axis_of_frequency is None else positions[self.axis_of_frequency].T
        return rotation(by_frequency.float() * self.inv_freq, self.dtype)

    def rows(self, positions: torch.Tensor, largest: int) -> Rotation:
        """The same for generated tokens, whose position (n,) is one number for all axes; read from a table that grows
        with `largest`, the greatest of them."""
        if self._table.cos.shape[0] <= largest:
            size = max(1024, 1 << largest.bit_length())
            self._table = rotation(self.angles(size), self.dtype)
        return Rotation(self._table.cos.index_select(0, positions), self._table.signed_sin.index_select(0, positions))

    def angles(self, size: int) -> torch.Tensor:
        """(size, head_dim / 2) float32: of positions 0 … size - 1, equal on all axes."""
        return torch.arange(size, device=self.inv_freq.device)[:, None].float() * self.inv_freq


def rotation(angles: torch.Tensor, dtype: torch.dtype) -> Rotation:
    """angles: (n, head_dim / 2) float32. The second half repeats the first; the sign of rotate_half is in the sine."""
    cos, sin = angles.cos(), angles.sin()
    return Rotation(
        torch.cat((cos, cos), dim=-1).unsqueeze(1).to(dtype), torch.cat((-sin, sin), dim=-1).unsqueeze(1).to(dtype)
    )


def inverse_frequencies(config: RopeConfig, head_dim: int) -> torch.Tensor:
    """(head_dim / 2,) float32: theta^(-2i/head_dim), scaled as Llama 3.1 does where the checkpoint says so."""
    inv_freq = 1.0 / (config.theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim))
    return inv_freq if config.scaling is None else _scale_llama3(inv_freq, config.scaling)


def _scale_llama3(inv_freq: torch.Tensor, scaling: Llama3Scaling) -> torch.Tensor:
    context = scaling.original_max_position
    wavelength = 2 * math.pi / inv_freq
    ramp = (context / wavelength - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    smooth = (1 - ramp) * inv_freq / scaling.factor + ramp * inv_freq
    slowed = torch.where(wavelength > context / scaling.low_freq_factor, inv_freq / scaling.factor, smooth)
    return torch.where(wavelength < context / scaling.high_freq_factor, inv_freq, slowed)


def _axis_of_frequency(config: RopeConfig, num_frequencies: int) -> torch.Tensor | None:
    """(head_dim / 2,) which axis each frequency reads; None with a single axis."""
    if config.mrope_section is None:
        return None
    time, height, width = config.mrope_section
    if not config.interleaved:
        return torch.tensor([0] * time + [1] * height + [2] * width)
    axes = torch.zeros(num_frequencies, dtype=torch.long)
    axes[1 : 3 * height : 3] = 1
    axes[2 : 3 * width : 3] = 2
    return axes
