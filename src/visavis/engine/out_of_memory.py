"""Which exceptions mean that memory ran out."""

from __future__ import annotations

import torch

__all__ = ["first_line", "is_out_of_memory"]

_SAID = ("can't allocate memory", "not enough memory", "out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
"""By torch's CPU allocator on Linux and elsewhere, and by CUDA libraries that raise a plain RuntimeError."""


def is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(said in str(error) for said in _SAID)


def first_line(error: BaseException) -> str:
    """What it says, without the advice on many lines that CUDA's adds."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
