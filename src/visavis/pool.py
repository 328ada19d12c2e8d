"""A few threads that the process keeps for work on pixels which lets go of the interpreter."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

__all__ = ["MAX_THREADS", "worker_pool"]

MAX_THREADS = 4


def worker_pool() -> ThreadPoolExecutor:
    """What is submitted must not itself wait for the pool."""
    return _of(os.getpid())


@lru_cache(maxsize=1)
def _of(process: int) -> ThreadPoolExecutor:
    """Of this process: a forked child has none of its parent's threads."""
    return ThreadPoolExecutor(MAX_THREADS, "visavis-pixels")
