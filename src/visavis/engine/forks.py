"""A forked child has none of its parent's threads, nor what a device holds: it is told, not left to wait for them."""

from __future__ import annotations

import os

from visavis.errors import BackendError

__all__ = ["check_process", "refuse_fork"]

_first: int | None = None  # the process that loaded an engine first


def refuse_fork(threads: int) -> None:
    """Before an engine is loaded: OpenMP's threads stay behind in a fork, and its next parallel loop waits for them for
    ever. Raises BackendError."""
    global _first
    if _first is None:
        _first = os.getpid()
    elif _first != os.getpid() and threads > 1:
        raise BackendError(
            "this process was forked from one that had loaded an engine, and torch's threads did not come along; "
            "start it by spawn, or load with threads=1"
        )


def check_process(process: int) -> None:
    """Before what `process` loaded is used. Raises BackendError in any other."""
    if os.getpid() != process:
        raise BackendError(
            "the engine was loaded before this process was forked; start the child by spawn, and load it there"
        )
