"""Requests that come over time: those of a run that are not due yet."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import closing

from visavis.backends.base import EngineRequest, TokenEvent

__all__ = ["PAUSE_S", "Arrivals"]

PAUSE_S = 0.2
"""How long an engine with nothing to do looks away before it may be told to stop."""

_EXACT_S = 1e-9  # differences of clock readings are no more exact than this


class Arrivals:
    """In the order of their `arrival_s`, counted from the making of this; true while some are left.

    A request that waits for another (`after`) is held until that one has `ended`, which `watching` sees.
    """

    def __init__(self, requests: Sequence[EngineRequest], clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._start = clock()
        here = {request.index for request in requests}
        self._held: dict[int, list[EngineRequest]] = {}  # by what they wait for
        for request in requests:
            if request.after in here:
                self._held.setdefault(request.after, []).append(request)
        first = [request for request in requests if request.after not in here]
        self._due = {request.index: request.arrival_s for request in first}  # seconds after the start
        self._left = deque(sorted(first, key=lambda request: request.arrival_s))  # equal ones keep their order

    def __bool__(self) -> bool:
        return bool(self._left or self._held)

    @property
    def next_in_s(self) -> float | None:
        """Seconds until the next is due, 0 when it is; None when none is left or all wait for others."""
        if not self._left:
            return None
        return max(0.0, self._due[self._left[0].index] - (self._clock() - self._start))

    def due(self) -> list[EngineRequest]:
        """Takes out those whose time has come."""
        passed = self._clock() - self._start
        found = []
        while self._left and self._due[self._left[0].index] <= passed + _EXACT_S:
            found.append(self._left.popleft())
        return found

    def ended(self, index: int) -> None:
        """That request is done, however: those that wait for it are due, now or `arrival_s` later."""
        now = self._clock() - self._start
        for request in self._held.pop(index, ()):
            self._due[request.index] = now + request.arrival_s
            self._left.append(request)
        self._left = deque(sorted(self._left, key=lambda request: self._due[request.index]))

    def watching(self, events: Generator[TokenEvent, None, None]) -> Generator[TokenEvent, None, None]:
        """The same events; what waits for a request that ends in them is due before the next is asked for."""
        with closing(events):
            for event in events:
                if event.finish_reason is not None and self._held:
                    self.ended(event.index)
                yield event

    def pause(self) -> TokenEvent:
        """Sleeps until the next is due, but not for long; gives an empty event to yield, so that whoever takes the
        events may abort meanwhile."""
        time.sleep(min(self.next_in_s or 0.0, PAUSE_S))
        return TokenEvent(self._left[0].index)

    def drop(self, index: int) -> bool:
        """Takes out a request that was aborted before it was due; False when it is not here."""
        for waiting in (self._left, *self._held.values()):
            for request in waiting:
                if request.index == index:
                    waiting.remove(request)
                    self._held = {after: held for after, held in self._held.items() if held}
                    return True
        return False

    def late_s(self, request: EngineRequest) -> float:
        """How long ago it was due: the wait of a request for an engine that was busy with a step."""
        return self._clock() - self._start - self._due[request.index]
