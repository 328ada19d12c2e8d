"""Pillow's bicubic resize of 8-bit RGB, bit for bit: its coefficients, its two passes, and which of them comes first.

Pillow's arithmetic (`src/libImaging/Resample.c`): coefficients in double precision, normalised to a sum of 1, rounded
to 22 bits behind the point; each pass sums in integers, rounds and clips to a byte.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from functools import cache, lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from visavis.machine import usable_cores
from visavis.pixel_kernels.library import found
from visavis.pool import MAX_THREADS, worker_pool

__all__ = ["coefficients", "resize_rgb"]

Pixels = npt.NDArray[np.uint8]
PRECISION_BITS = 22
SUPPORT = 2.0  # of the cubic, in source pixels
THREADED_FROM = 300_000  # pixels of source and target: below, a thread would start later than the work is done


class Axis(NamedTuple):
    """How `size` samples are made along an axis: of `taps` from `first[i]` on, times `weights[i]`."""

    first: npt.NDArray[np.int32]  # (size,)
    weights: npt.NDArray[np.int32]  # (size, taps)

    @property
    def taps(self) -> int:
        return int(self.weights.shape[1])


def resize_rgb(pixels: Pixels, size: tuple[int, int], *, threads: int | None = None) -> Pixels | None:
    """(H, W, 3) uint8 → (*size, 3) as Pillow's bicubic resize makes it; None where that cannot be done here.

    `threads`: at most so many, None: as large a picture is worth it.
    """
    library = found()
    if library is None or min(*pixels.shape[:2], *size) < 1:
        return None
    order = _order()
    if order is None:
        return None
    source = np.ascontiguousarray(pixels)
    work = source.shape[0] * source.shape[1] + size[0] * size[1]
    if threads is None:
        threads = min(MAX_THREADS, usable_cores()) if work > THREADED_FROM else 1
    return _resized(library, source, size, order, threads)


Order = Callable[[int, int, int, int], bool]
"""(height, width, new height, new width) → whether the columns come first."""


def _never(height: int, width: int, high: int, wide: int) -> bool:
    return False


def _if_it_shrinks_more(height: int, width: int, high: int, wide: int) -> bool:
    return height - high > 2 * max(width - wide, 0)


ORDERS: tuple[Order, ...] = (_if_it_shrinks_more, _never)  # Pillow 13, and those before it
PROBES = (((40, 30), (17, 23)), ((30, 40), (25, 20)), ((20, 10), (10, 15)), ((50, 40), (29, 30)), ((7, 9), (30, 31)))


@cache
def _order() -> Order | None:
    """The order of the passes of the Pillow that is installed; None if it computes in yet another way."""
    from PIL import Image

    library = found()
    if library is None:
        return None
    rng = np.random.default_rng(0)
    pictures = [rng.integers(0, 2, (*shape, 3), dtype=np.uint8) * np.uint8(255) for shape, _ in PROBES]
    sizes = [size for _, size in PROBES]
    wanted = [
        np.asarray(Image.fromarray(picture).resize((wide, high), Image.Resampling.BICUBIC))
        for picture, (high, wide) in zip(pictures, sizes, strict=True)
    ]
    for order in ORDERS:
        made = (_resized(library, p, size, order, 1) for p, size in zip(pictures, sizes, strict=True))
        if all(map(np.array_equal, made, wanted)):
            return order
    return None


def _resized(library: ctypes.CDLL, pixels: Pixels, size: tuple[int, int], order: Order, threads: int) -> Pixels:
    steps: list[Callable[[Pixels], Pixels]] = []
    if pixels.shape[1] != size[1]:
        steps.append(lambda p: _rows(library, p, size[1], threads))
    if pixels.shape[0] != size[0]:
        steps.append(lambda p: _columns(library, p, size[0], threads))
    if order(pixels.shape[0], pixels.shape[1], *size):
        steps.reverse()
    for step in steps:
        pixels = step(pixels)
    return pixels


def _rows(library: ctypes.CDLL, pixels: Pixels, wide: int, threads: int) -> Pixels:
    height, width, _ = pixels.shape
    axis = coefficients(width, wide)
    out = np.empty((height, wide, 3), dtype=np.uint8)

    def band(begin: int, end: int) -> None:
        library.visavis_resize_rows(
            _at(pixels[begin:]), end - begin, width, _at(out[begin:]), wide, _at(axis.first), _at(axis.weights),
            axis.taps,
        )  # fmt: skip

    _in_bands(band, height, threads)
    return out


def _columns(library: ctypes.CDLL, pixels: Pixels, high: int, threads: int) -> Pixels:
    height, width, _ = pixels.shape
    axis = coefficients(height, high)
    out = np.empty((high, width, 3), dtype=np.uint8)

    def band(begin: int, end: int) -> None:
        library.visavis_resize_columns(
            _at(pixels), height, 3 * width, _at(out), begin, end, _at(axis.first), _at(axis.weights), axis.taps
        )

    _in_bands(band, high, threads)
    return out


def _at(array: npt.NDArray[Any]) -> int:
    return int(array.ctypes.data)


def _in_bands(work: Callable[[int, int], None], rows: int, threads: int) -> None:
    """The compiled functions let go of the interpreter, so bands of rows run side by side."""
    if threads == 1:
        work(0, rows)
        return
    edges = [rows * i // threads for i in range(threads + 1)]
    rest = [worker_pool().submit(work, a, b) for a, b in pairwise(edges[1:])]
    work(edges[0], edges[1])
    for future in rest:
        future.result()


@lru_cache(maxsize=64)
def coefficients(size: int, out_size: int) -> Axis:
    """Of an axis of `size` samples that becomes one of `out_size`, as Pillow's `precompute_coeffs` makes them."""
    scale = size / out_size
    filter_scale = max(scale, 1.0)
    support = SUPPORT * filter_scale
    taps = math.ceil(support) * 2 + 1
    center = (np.arange(out_size) + 0.5) * scale
    first = np.maximum((center - support + 0.5).astype(np.int64), 0)
    count = np.minimum((center + support + 0.5).astype(np.int64), size) - first
    weights = np.zeros((out_size, taps))
    total = np.zeros(out_size)
    for i in range(taps):  # one by one, since the order of the sum shows in its last bit
        weights[:, i] = np.where(i < count, _cubic((i + first - center + 0.5) * (1.0 / filter_scale)), 0.0)
        total += weights[:, i]
    np.divide(weights, total[:, None], out=weights, where=total[:, None] != 0)
    scaled = weights * (1 << PRECISION_BITS)
    fixed = np.trunc(np.where(weights < 0, scaled - 0.5, scaled + 0.5)).astype(np.int32)
    used = int(count.max())
    even = used + used % 2 if used < 8 else used  # the counts that the library has unrolled
    padded = np.zeros((out_size, even), dtype=np.int32)
    padded[:, : min(even, taps)] = fixed[:, : min(even, taps)]
    return Axis(first.astype(np.int32), padded)


def _cubic(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Keys' cubic with a = -1/2 (Keys 1981), in Pillow's order of operations."""
    a = -0.5
    x = np.abs(x)
    near = ((a + 2.0) * x - (a + 3.0)) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * a
    return np.where(x < 1.0, near, np.where(x < 2.0, far, 0.0))
