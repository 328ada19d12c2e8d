"""How many threads torch takes in a step."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache

import torch

__all__ = ["TorchThreads"]


class TorchThreads:
    """One for kernels with threads of their own: after a parallel loop of torch its threads spin for milliseconds
    (OpenMP's way to be ready for the next one), on the cores that the kernels' own need.

    Only of the thread that asks: others keep theirs.
    """

    def __init__(self, *, kernels_have_own: bool) -> None:
        self._limits = kernels_have_own
        self._all = torch.get_num_threads()

    def one(self) -> AbstractContextManager[None]:
        """For what is done sooner than the threads are gone."""
        return _number(1) if self._limits else nullcontext()

    def all(self) -> AbstractContextManager[None]:
        """Inside `one`: for what is worth them all the same."""
        return _number(self._all) if self._limits else nullcontext()


@contextmanager
def _number(threads: int) -> Iterator[None]:
    before = torch.get_num_threads()
    _setter()(threads)
    try:
        yield
    finally:
        _setter()(before)


@cache
def _setter() -> Callable[[int], None]:
    """OpenMP's own, which is of the calling thread; torch's also becomes the default of threads that begin later."""
    try:
        setter = ctypes.CDLL(None).omp_set_num_threads
    except (OSError, AttributeError, TypeError):  # TypeError: Windows
        return torch.set_num_threads
    setter.argtypes, setter.restype = [ctypes.c_int], None
    return setter
