"""Memory for what a step makes and lets go of."""

from __future__ import annotations

import sys

import numpy as np
import numpy.typing as npt
import torch

from visavis.engine.kernels.cpu.arena import map_memory

__all__ = ["RecycledMemory"]

SMALL = 128 << 10  # bytes: below, the allocator keeps what it is given back


class RecycledMemory:
    """Tensors in memory of earlier ones that nobody holds any more. What comes anew from the system is cleared by it
    page by page when it is first written, which takes a good part of the time that makes a layer's results.

    Keeps what was in use at once at most, and gives back what has become too small. For one thread.
    """

    def __init__(self) -> None:
        self._blocks: list[npt.NDArray[np.uint8]] = [np.empty(0, dtype=np.uint8)]
        self._alone = sys.getrefcount(self._blocks[0])  # of a block that no tensor points into
        self._blocks.clear()

    def empty(self, *shape: int) -> torch.Tensor:
        """Uninitialised float32."""
        num_bytes = 4 * int(np.prod(shape))
        if num_bytes < SMALL:
            return torch.empty(shape)
        free = [i for i in range(len(self._blocks)) if sys.getrefcount(self._blocks[i]) == self._alone]
        fitting = [i for i in free if self._blocks[i].nbytes >= num_bytes]
        if fitting:
            chosen = min(fitting, key=lambda i: self._blocks[i].nbytes)
        else:
            for i in reversed(free):
                del self._blocks[i]
            chosen = len(self._blocks)
            self._blocks.append(map_memory(num_bytes + num_bytes // 8).numpy())
        return torch.from_numpy(self._blocks[chosen][:num_bytes].view(np.float32)).view(shape)
