"""The one resize: which size an image or video gets, and Pillow's bicubic that makes it.

The size rules are transformers' `smart_resize` (not qwen-vl-utils', which first raises each side to one cell): sides
become multiples of the cell (patch × merge pixels), the area stays between two bounds, the aspect ratio may be 200 at
most. Python's `round` (half to even) is part of the rule: 434/28 = 15.5 → 16, 406/28 = 14.5 → 14.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import Image as PILImage

from visavis.chat.types import PixelLimits
from visavis.errors import MediaError
from visavis.pixel_kernels import resize_rgb

__all__ = [
    "MAX_ASPECT_RATIO",
    "PixelBounds",
    "frame_share",
    "resize_all",
    "resize_pixels",
    "smart_resize",
    "smart_resize_video",
]

MAX_ASPECT_RATIO = 200
_THREADED_FROM = 200_000  # pixels read and written together: smaller jobs are done before a thread would start


@dataclass(frozen=True, slots=True)
class PixelBounds:
    """Area bounds in pixels: of one image, of one video frame (Qwen2-VL), or of all frames together (Qwen3-VL)."""

    min_pixels: int
    max_pixels: int

    def within(self, limits: PixelLimits, where: str) -> PixelBounds:
        """These bounds with what the item itself asks for. Raises MediaError when that contradicts itself."""
        given = {
            "min_pixels": limits.min_pixels,
            "max_pixels": limits.max_pixels,
            "resized_height": limits.resized_height,
            "resized_width": limits.resized_width,
        }
        for name, value in given.items():
            if value is not None and value < 1:
                raise MediaError(f"{where}: {name} {value} must be 1 or more")
        if (limits.resized_height is None) != (limits.resized_width is None):
            raise MediaError(f"{where}: resized_height and resized_width go together; give both or use max_pixels")
        low = self.min_pixels if limits.min_pixels is None else limits.min_pixels
        high = self.max_pixels if limits.max_pixels is None else limits.max_pixels
        if low > high:
            if limits.min_pixels is not None and limits.max_pixels is not None:
                raise MediaError(f"{where}: min_pixels {low} is more than max_pixels {high}")
            # One bound asked for lies beyond the model's other default: the wish wins.
            low = high = low if limits.max_pixels is None else high
        return PixelBounds(low, high)


def smart_resize(height: int, width: int, *, cell: int, bounds: PixelBounds, where: str = "image") -> tuple[int, int]:
    """(height, width) of an image or a Qwen2-VL video frame after the resize.

    Raises MediaError, naming `where`, when one side is more than 200 times the other.
    """
    _check_aspect(height, width, where)
    high, wide = round(height / cell) * cell, round(width / cell) * cell
    if high * wide > bounds.max_pixels:
        shrink = math.sqrt((height * width) / bounds.max_pixels)
        high = max(cell, math.floor(height / shrink / cell) * cell)
        wide = max(cell, math.floor(width / shrink / cell) * cell)
    elif high * wide < bounds.min_pixels:
        grow = math.sqrt(bounds.min_pixels / (height * width))
        high = math.ceil(height * grow / cell) * cell
        wide = math.ceil(width * grow / cell) * cell
    return high, wide


def smart_resize_video(
    frames: int, height: int, width: int, *, cell: int, temporal: int, bounds: PixelBounds, where: str = "video"
) -> tuple[int, int]:
    """(height, width) of every frame of a Qwen3-VL video: the bounds hold for frames × height × width.

    `temporal` is the frames per patch; a shorter video is taken as that many frames, as it is padded to them later.
    Raises MediaError, naming `where`, when one side is more than 200 times the other.
    """
    frames = max(frames, temporal)
    if height < cell or width < cell:
        scale = max(cell / height, cell / width)
        height, width = int(height * scale), int(width * scale)
    _check_aspect(height, width, where)
    high, wide = round(height / cell) * cell, round(width / cell) * cell
    long = round(frames / temporal) * temporal
    if long * high * wide > bounds.max_pixels:
        shrink = math.sqrt((frames * height * width) / bounds.max_pixels)
        high = max(cell, math.floor(height / shrink / cell) * cell)
        wide = max(cell, math.floor(width / shrink / cell) * cell)
    elif long * high * wide < bounds.min_pixels:
        grow = math.sqrt(bounds.min_pixels / (frames * height * width))
        high = math.ceil(height * grow / cell) * cell
        wide = math.ceil(width * grow / cell) * cell
    return high, wide


def frame_share(bounds: PixelBounds, total_pixels: int, frames: int, temporal: int) -> PixelBounds:
    """Bounds of one Qwen2-VL video frame when all frames together may have `total_pixels`.

    Each frame gets an even share, `temporal` frames counting as one because they share their tokens, and never less
    than 1.05 times the lower bound (qwen-vl-utils' rule, transformers' `cap_pixels_per_frame`).
    """
    share = total_pixels * temporal // frames
    return PixelBounds(bounds.min_pixels, max(min(bounds.max_pixels, share), int(bounds.min_pixels * 1.05)))


def resize_pixels(
    pixels: npt.NDArray[np.uint8], size: tuple[int, int], *, threads: int | None = None
) -> npt.NDArray[np.uint8]:
    """(H, W, 3) uint8 → (*size, 3) uint8 by Pillow's bicubic; the same array when it has that size already.

    Compiled code computes the same bytes in less time where there is some (`threads`: see `resize_rgb`).
    """
    if pixels.shape[:2] == size:
        return pixels
    if (made := resize_rgb(pixels, size, threads=threads)) is not None:
        return made
    resized = PILImage.fromarray(pixels).resize((size[1], size[0]), PILImage.Resampling.BICUBIC)
    return np.asarray(resized)


def resize_all(
    jobs: Sequence[tuple[npt.NDArray[np.uint8], tuple[int, int]]],
) -> list[npt.NDArray[np.uint8]]:
    """Images (H, W, 3) and videos (T, H, W, 3) to their (height, width), in a small thread pool: Pillow lets go of
    the interpreter while it works, and so does compiled code."""
    pieces = [
        (frame, size) for pixels, size in jobs for frame in (pixels if pixels.ndim == 4 else (pixels,))
    ]  # every frame is a piece of work of its own
    work = sum(f.shape[0] * f.shape[1] + s[0] * s[1] for f, s in pieces if f.shape[:2] != s)
    if len(pieces) > 1 and work > _THREADED_FROM:
        with ThreadPoolExecutor(max_workers=min(len(pieces), os.cpu_count() or 1, 8)) as pool:
            done = iter(list(pool.map(lambda piece: resize_pixels(*piece, threads=1), pieces)))
    else:
        done = iter([resize_pixels(*piece) for piece in pieces])
    results: list[npt.NDArray[np.uint8]] = []
    for pixels, size in jobs:
        if pixels.ndim == 3:
            results.append(np.ascontiguousarray(next(done)))
        elif pixels.shape[1:3] == size:
            results.append(np.ascontiguousarray(pixels))
            for _ in pixels:
                next(done)
        else:
            results.append(np.stack([next(done) for _ in pixels]))
    return results


def _check_aspect(height: int, width: int, where: str) -> None:
    if min(height, width) < 1:
        raise MediaError(f"{where}: {width}×{height} pixels, there is nothing in it")
    ratio = max(height, width) / min(height, width)
    if ratio > MAX_ASPECT_RATIO:
        raise MediaError(
            f"{where}: {width}×{height} pixels, one side is {ratio:.1f} times the other, and at most "
            f"{MAX_ASPECT_RATIO} is possible; crop it or cut it into pieces"
        )
