"""The random numbers answers are drawn with: a function of the request's seed and the token's index alone.

splitmix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014) of seed and index.
"""

from __future__ import annotations

import torch

__all__ = ["mixed_seed", "uniform", "uniforms"]

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_START = 0x632BE59BD9B4E019
_MIX = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)


def uniform(seed: int, index: int) -> float:
    """The number in [0, 1) with which the token at `index` of an answer is drawn."""
    state = _mix64((mixed_seed(seed) + (index + 1) * _GOLDEN) & _MASK)
    return (state >> 11) * 2.0**-53


def mixed_seed(seed: int) -> int:
    """Where a seed's numbers begin, in [0, 2^64): the half of `uniform` that no index changes."""
    return _mix64((seed * _GOLDEN + _START) & _MASK)


def uniforms(seeds: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """`uniform` of many: seeds (n,) int64 and index (n,) int64 on any device → (n,) float64, equal bit for bit."""
    state = _mix(seeds * _signed(_GOLDEN) + _signed(_START))
    state = _mix(state + (index + 1) * _signed(_GOLDEN))
    return _shifted(state, 11).double() * 2.0**-53


def _mix64(z: int) -> int:
    z = ((z ^ (z >> 30)) * _MIX[0]) & _MASK
    z = ((z ^ (z >> 27)) * _MIX[1]) & _MASK
    return z ^ (z >> 31)


def _mix(z: torch.Tensor) -> torch.Tensor:
    z = (z ^ _shifted(z, 30)) * _signed(_MIX[0])
    z = (z ^ _shifted(z, 27)) * _signed(_MIX[1])
    return z ^ _shifted(z, 31)


def _shifted(z: torch.Tensor, by: int) -> torch.Tensor:
    """A shift of the 64 bits without their sign, which torch has no type for."""
    return (z >> by) & ((1 << (64 - by)) - 1)


def _signed(number: int) -> int:
    """The same 64 bits as torch's int64, whose products wrap around."""
    return number - (1 << 64) if number >= 1 << 63 else number
