"""Positions of tokens: counting for text, three axes (time, height, width) for mrope families.

Multimodal rope (Qwen2-VL, arXiv:2409.12191, section 2.1): text tokens have the same position on all three axes; the
tokens of a visual block get (start + time, start + row, start + column), and text goes on after the larger of the
block's two sides.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["VisualBlock", "mrope_positions", "plain_positions"]


@dataclass(frozen=True, slots=True)
class VisualBlock:
    """`frames` × `rows` × `columns` visual tokens in a row from token `start` on; `interval` is the step of the time
    axis from frame to frame (1 except for Qwen2.5-VL videos, where it is seconds × tokens per second)."""

    start: int
    frames: int
    rows: int
    columns: int
    interval: float = 1.0

    @property
    def length(self) -> int:
        return self.frames * self.rows * self.columns


def plain_positions(length: int) -> npt.NDArray[np.int64]:
    """(1, length): 0, 1, 2, …"""
    return np.arange(length, dtype=np.int64)[None]


def mrope_positions(length: int, blocks: Iterable[VisualBlock]) -> tuple[npt.NDArray[np.int64], int]:
    """(3, length) positions of a prompt with visual `blocks` in order, and the rope delta: generated token k sits at
    length + delta + k on every axis.

    As transformers' `generate`, the answer goes on behind the prompt's last position. Its `get_rope_index` counts from
    the largest, which is another one when a video reaches beyond the text after it.
    """
    positions = np.empty((3, length), dtype=np.int64)
    at, position = 0, 0
    for block in blocks:
        text = block.start - at
        positions[:, at : block.start] = position + np.arange(text)
        position += text
        span = positions[:, block.start : block.start + block.length].reshape(
            3, block.frames, block.rows, block.columns
        )
        # float32 and truncation, as the model itself computes the time axis
        steps = (np.arange(block.frames, dtype=np.float32) * np.float32(block.interval)).astype(np.int64)
        span[0] = position + steps[:, None, None]
        span[1] = position + np.arange(block.rows)[:, None]
        span[2] = position + np.arange(block.columns)
        position += max(block.rows, block.columns)
        at = block.start + block.length
    positions[:, at:] = position + np.arange(length - at)
    last = int(positions[:, -1].max()) if length else -1
    return positions, last + 1 - length
