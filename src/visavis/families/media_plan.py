"""What an image or video will become, known from its size alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from visavis.chat.types import Image, Video
from visavis.errors import MediaError

__all__ = ["MediaPlan", "asked_size", "check_total", "pixels_of"]

MAX_MEDIA_TOKENS = 10_000_000
"""Of one prompt, beyond any model's context: asked for by a slip in min_pixels, they would fill the memory as ids."""


@dataclass(frozen=True, slots=True)
class MediaPlan:
    """One item after the resize."""

    item: Image | Video
    size: tuple[int, int]  # (height, width) after the resize
    grid: tuple[int, int, int]  # (t, h, w) in patches
    tokens_per_frame: int  # visual tokens of one step of t

    @property
    def kind(self) -> str:
        return "image" if isinstance(self.item, Image) else "video"

    @property
    def tokens(self) -> int:
        return self.grid[0] * self.tokens_per_frame


def check_total(plans: Sequence[MediaPlan]) -> None:
    """Raises MediaError, naming the largest item, before more ids are written than any context holds."""
    total = sum(plan.tokens for plan in plans)
    if total > MAX_MEDIA_TOKENS:
        largest = max(plans, key=lambda plan: plan.tokens)
        raise MediaError(
            f"{largest.item.where or largest.kind}: would be resized to {largest.size[1]}×{largest.size[0]} = "
            f"{largest.tokens:,} tokens, beyond any context; lower min_pixels, resized_height and resized_width"
        )


def pixels_of(item: Image | Video) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    return item.pixels if isinstance(item, Image) else item.frames


def asked_size(item: Image | Video) -> tuple[int, int]:
    """(height, width) to start from: `resized_height` and `resized_width` where they are given."""
    limits = item.limits
    if limits.resized_height is not None and limits.resized_width is not None:
        return limits.resized_height, limits.resized_width
    return item.size
