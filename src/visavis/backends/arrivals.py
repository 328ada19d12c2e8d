"""Requests that come over time: those of a run that are not due yet."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from visavis.backends.base import EngineRequest

__all__ = ["Arrivals"]

_EXACT_S = 1e-9  # differences of clock readings are no more exact than this


class Arrivals:
    """In the order of their `arrival_s`, counted from the making of this; true while some are left."""

    def __init__(self, requests: Sequence[EngineRequest], clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._start = clock()
        self._left = deque(sorted(requests, key=lambda request: request.arrival_s))  # equal ones keep their order

    def __bool__(self) -> bool:
        return bool(self._left)

    @property
    def next_in_s(self) -> float | None:
        """Seconds until the next is due, 0 when it is; None when none is left."""
        if not self._left:
            return None
        return max(0.0, self._left[0].arrival_s - (self._clock() - self._start))

    def due(self) -> list[EngineRequest]:
        """Takes out those whose time has come."""
        passed = self._clock() - self._start
        found = []
        while self._left and self._left[0].arrival_s <= passed + _EXACT_S:
            found.append(self._left.popleft())
        return found

    def drop(self, index: int) -> bool:
        """Takes out a request that was aborted before it was due; False when it is not here."""
        for request in self._left:
            if request.index == index:
                self._left.remove(request)
                return True
        return False

    def late_s(self, request: EngineRequest) -> float:
        """How long ago it was due: the wait of a request for an engine that was busy with a step."""
        return self._clock() - self._start - request.arrival_s
