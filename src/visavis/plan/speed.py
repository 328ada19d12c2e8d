"""How fast a card reads its memory and talks to another: enough to say when more cards or fewer bits do not help."""

from __future__ import annotations

from dataclasses import dataclass

from visavis.plan.devices import Device
from visavis.plan.units import GIB

__all__ = ["FOUR_BIT_EVEN", "NATIVE_FOUR_BIT", "Speed", "speed_of"]

PCIE_SUM = 60e-6
"""Seconds of one all-reduce of a decoding step over PCIe without peer access. From document 002: 1/122.9 s a token on
two RTX 4090 instead of 1/164.6 s on one, although each then reads half of 2.88 GiB: (8.14 − 6.08 + 1.53) ms / 57."""
NVLINK_SUM = 10e-6
"""The same over NVLink with an engine's own kernel; an assumption of the usual size."""

FOUR_BIT_EVEN = 128
"""Rows from which 4-bit matrices are no faster than 16-bit ones (Marlin kernels: vLLM pull request 2497)."""

NATIVE_FOUR_BIT = ((1, 1.56), (64, 0.97))
"""(requests at once, tokens a second of native's int4 to those of its bfloat16): Qwen2.5-7B on an H200, as
docs/performance.md has it."""

# (part of the name, bytes a second by the data sheet, NVLink); the first that matches counts.
_CARDS = (
    ("GB200", 8.0e12, True),
    ("B200", 8.0e12, True),
    ("H200", 4.8e12, True),
    ("GH200", 4.9e12, True),
    ("H100 PCIe", 2.0e12, False),
    ("H100 NVL", 3.9e12, True),
    ("H100", 3.35e12, True),
    ("H800", 3.35e12, True),
    ("H20", 4.0e12, True),
    ("A100-PCIE-40GB", 1.56e12, False),
    ("A100 80GB PCIe", 1.94e12, False),
    ("A100-SXM4-40GB", 1.56e12, True),
    ("A100", 2.04e12, True),
    ("A800", 2.04e12, True),
    ("L40S", 0.86e12, False),
    ("L40", 0.86e12, False),
    ("L4", 0.30e12, False),
    ("A10G", 0.60e12, False),
    ("A10", 0.60e12, False),
    ("A40", 0.70e12, False),
    ("T4", 0.32e12, False),
    ("RTX 6000 Ada", 0.96e12, False),
    ("RTX A6000", 0.77e12, False),
    ("RTX PRO 6000", 1.79e12, False),
    ("RTX 5090", 1.79e12, False),
    ("RTX 4090", 1.01e12, False),
    ("RTX 3090", 0.94e12, False),
    ("V100", 0.90e12, True),
)


@dataclass(frozen=True, slots=True)
class Speed:
    bandwidth: float  # bytes a second
    bandwidth_words: str
    all_reduce: float  # seconds of one small sum over the cards
    link_words: str
    four_bit_even: int = FOUR_BIT_EVEN


def speed_of(device: Device) -> Speed:
    """By the card's name; for a card of which only the size was said, a usual one of that size, and so it says."""
    for name, bandwidth, nvlink in _CARDS:
        if name.lower() in device.name.lower():
            words = f"{bandwidth / 1e12:.2g} TB/s"
            return Speed(bandwidth, words, *((NVLINK_SUM, "over NVLink") if nvlink else (PCIE_SUM, "over PCIe")))
    if device.total_bytes > 130 * GIB:
        return Speed(4.8e12, "4.8 TB/s (assumed: an H200)", NVLINK_SUM, "over NVLink (assumed)")
    if device.total_bytes > 70 * GIB:
        return Speed(2.0e12, "2 TB/s (assumed: a data-centre card of this size)", NVLINK_SUM, "over NVLink (assumed)")
    return Speed(1.0e12, "1 TB/s (assumed: a card of this size, such as an RTX 4090)", PCIE_SUM, "over PCIe (assumed)")
