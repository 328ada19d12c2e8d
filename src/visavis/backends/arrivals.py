"""Requests that come over time: those of a run that are not due yet."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence

from visavis.backends.base import EngineRequest, TokenEvent

__all__ = ["PAUSE_S", "Arrivals"]

PAUSE_S = 0.2
"""How long an engine with nothing to do looks away before it may be told to stop."""

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

    def pause(self) -> TokenEvent:
        """Sleeps until the next is due, but not for long; gives an empty event to yield, so that whoever takes the
        events may abort meanwhile."""
        time.sleep(min(self.next_in_s or 0.0, PAUSE_S))
        return TokenEvent(self._left[0].index)

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
