"""Memory for what a step makes and lets go of."""

from __future__ import annotations

import math
import sys

import numpy as np
import numpy.typing as npt
import torch

from visavis.engine.kernels.cpu.arena import ALIGNMENT

__all__ = ["RecycledMemory"]

SMALL = 1 << 20  # bytes: below, the allocator keeps what it is given back
PATIENCE = 256  # results after which a block that none of them needed goes back


class RecycledMemory:
    """Tensors in memory of earlier ones that nobody holds any more. What comes anew from the system is cleared by it
    page by page when it is first written, which takes a good part of the time that makes a layer's results.

    A result may lie in a block of twice its size: what outlives its step must be copied. For one thread.
    """

    def __init__(self) -> None:
        self._blocks: list[npt.NDArray[np.uint8]] = [np.empty(0, dtype=np.uint8)]
        self._alone = sys.getrefcount(self._blocks[0])  # of a block that no tensor points into
        self._blocks.clear()
        self._last: list[int] = []  # the number of the result that had each block last
        self._count = 0

    def empty(self, *shape: int) -> torch.Tensor:
        """Uninitialised float32, aligned to a cache line."""
        num_bytes = 4 * math.prod(shape)
        if num_bytes < SMALL:
            return torch.empty(shape)
        self._count += 1
        fitting = [i for i in self._free() if num_bytes + ALIGNMENT <= self._blocks[i].nbytes <= 2 * num_bytes]
        if fitting:
            chosen = min(fitting, key=lambda i: self._blocks[i].nbytes)
            self._last[chosen] = self._count
        else:  # smaller ones make room: the new one does for them
            self._drop([i for i in self._free() if self._blocks[i].nbytes < num_bytes + ALIGNMENT])
            chosen = len(self._blocks)
            self._blocks.append(np.empty(num_bytes + ALIGNMENT, dtype=np.uint8))
            self._last.append(self._count)
        block = self._blocks[chosen]
        skip = -block.ctypes.data % ALIGNMENT
        made = torch.from_numpy(block[skip : skip + num_bytes].view(np.float32)).view(shape)
        del block
        self._drop([i for i in self._free() if self._last[i] < self._count - PATIENCE])
        return made

    def give_back(self) -> None:
        """What no tensor points into."""
        self._drop(self._free())

    @property
    def num_bytes(self) -> int:
        """Held in all."""
        return sum(block.nbytes for block in self._blocks)

    def __contains__(self, address: int) -> bool:
        return any(0 <= address - block.ctypes.data < block.nbytes for block in self._blocks)

    def _free(self) -> list[int]:
        return [i for i in range(len(self._blocks)) if sys.getrefcount(self._blocks[i]) == self._alone]

    def _drop(self, which: list[int]) -> None:
        for i in reversed(which):
            del self._blocks[i], self._last[i]
