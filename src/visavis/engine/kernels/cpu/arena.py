"""Weights on huge pages: streaming them is limited by address translation with 4 KiB pages (Linux; elsewhere plain)."""

from __future__ import annotations

import ctypes
import mmap
import sys

import torch

__all__ = ["Arena"]

HUGE_PAGE = 2 << 20
CHUNK_BYTES = 64 << 20
ALIGNMENT = 64  # a cache line: loads that cross one cost two


class Arena:
    """Hands out tensors cut from large mappings that ask the kernel for huge pages. They live as long as a tensor
    points into them."""

    def __init__(self) -> None:
        self._chunk: torch.Tensor | None = None
        self._used = 0
        self.untouched_bytes = 0  # mapped and not handed out: address space, which costs no memory until written

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """An uninitialised CPU tensor, aligned to a cache line."""
        count = 1
        for size in shape:
            count *= size
        num_bytes = count * dtype.itemsize
        self._used = -(-self._used // ALIGNMENT) * ALIGNMENT
        if self._chunk is None or self._used + num_bytes > self._chunk.numel():
            self._chunk, self._used = _map(max(CHUNK_BYTES, num_bytes)), 0
            self.untouched_bytes += self._chunk.untyped_storage().nbytes()
        place = self._chunk[self._used : self._used + num_bytes]
        self._used += num_bytes
        self.untouched_bytes -= num_bytes
        return place.view(dtype).view(shape)


def _map(num_bytes: int) -> torch.Tensor:
    """(num_bytes,) uint8, beginning at a huge page."""
    if not sys.platform.startswith("linux"):
        return torch.empty(num_bytes, dtype=torch.uint8)
    size = -(-num_bytes // HUGE_PAGE) * HUGE_PAGE
    # Private, not Python's default of shared: shared memory gets huge pages only where an administrator said so.
    mapping = mmap.mmap(-1, size + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    whole = torch.frombuffer(mapping, dtype=torch.uint8)
    skip = -whole.data_ptr() % HUGE_PAGE
    advise = ctypes.CDLL(None).madvise
    advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    advise(whole.data_ptr() + skip, size, mmap.MADV_HUGEPAGE)  # a wish: refused, the pages are small ones
    return whole[skip : skip + num_bytes]
