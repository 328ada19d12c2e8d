"""`RequestStream`: the outputs of one request, from the engine's thread to whoever reads them."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Self

from visavis.completion import FinishReason

if TYPE_CHECKING:
    from visavis.engine.engine import StepOutput

__all__ = ["RequestStream", "Room", "Wakes"]


class Wakes:
    """Readers to wake after a step, gathered so that each event loop is called once."""

    def __init__(self) -> None:
        self._futures: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}

    def add(self, future: asyncio.Future[None]) -> None:
        self._futures.setdefault(future.get_loop(), []).append(future)

    def send(self) -> None:
        for loop, futures in self._futures.items():
            try:
                loop.call_soon_threadsafe(_resolve, futures)
            except RuntimeError:  # the loop was closed: nobody waits there any more
                continue
        self._futures.clear()


class Room:
    """Those who wait for a place in a queue, threads and event loops. `lock` is held by who calls."""

    def __init__(self, lock: threading.Lock) -> None:
        self._changed = threading.Condition(lock)
        self._waiters: list[asyncio.Future[None]] = []

    def wait(self, timeout: float | None) -> None:
        """In a thread, until there may be a place."""
        self._changed.wait(timeout)

    def future(self) -> asyncio.Future[None]:
        """Done when there may be a place; for the running event loop."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        return waiter

    def leave(self, waiter: asyncio.Future[None]) -> Wakes:
        """Somebody gave up: if he was woken for a place, the next is."""
        if waiter in self._waiters:
            self._waiters.remove(waiter)
            return Wakes()
        return self.tell(1)

    def tell(self, places: int | None = None) -> Wakes:
        """Wakes as many as there are places (None: all): threads at once, event loops by what is returned."""
        wakes = Wakes()
        if places is None:
            places = len(self._waiters)
            self._changed.notify_all()
        elif places > 0:
            self._changed.notify(places)
        for waiter in self._waiters[: max(places, 0)]:
            wakes.add(waiter)
        del self._waiters[: max(places, 0)]
        return wakes


class RequestStream:
    """Iterate over it, `for` or `async for`, to get each `StepOutput` as it comes; the last has `finish_reason`. It
    holds what was not read yet, so a slow reader keeps nobody waiting. One reader at a time.

    As a context manager, `with` or `async with`, it aborts a request that is left before its end. An iteration raises
    what made the request impossible (InputError and its kin), or BackendError when the engine died.
    """

    def __init__(self, request_id: str, abort: Callable[[str], object]) -> None:
        self.request_id = request_id
        self.finish_reason: FinishReason | None = None  # set with the last output, read or not
        self._abort = abort
        self._outputs: deque[StepOutput] = deque()
        self._error: BaseException | None = None
        self._changed = threading.Condition()
        self._waiter: asyncio.Future[None] | None = None

    @property
    def ended(self) -> bool:
        """True once no further output will come; some may be left to read."""
        return self.finish_reason is not None or self._error is not None

    def abort(self) -> None:
        """Any thread, any time. A last output with finish_reason "abort" follows, unless the request has ended."""
        if not self.ended:
            self._abort(self.request_id)

    # ---- reading -----------------------------------------------------------------------------------------------

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> StepOutput:
        output = self.get()
        if output is None:
            raise StopIteration
        return output

    def get(self, timeout: float | None = None) -> StepOutput | None:
        """The next output; None after the last. Raises TimeoutError when none came in `timeout` seconds."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._outputs or self.ended, timeout):
                raise TimeoutError(f"request {self.request_id}: no output in {timeout} s")
            return self._next()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> StepOutput:
        while True:
            with self._changed:
                if self._outputs or self.ended:
                    output = self._next()
                    break
                self._waiter = waiter = asyncio.get_running_loop().create_future()
            await waiter
        if output is None:
            raise StopAsyncIteration
        return output

    def _next(self) -> StepOutput | None:
        if self._outputs:
            return self._outputs.popleft()
        if self._error is not None:
            raise self._error
        return None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abort()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abort()

    # ---- the engine's side -------------------------------------------------------------------------------------

    def put(self, output: StepOutput, wakes: Wakes) -> None:
        with self._changed:
            self._outputs.append(output)
            self.finish_reason = output.finish_reason
            self._wake(wakes)

    def fail(self, error: BaseException, wakes: Wakes) -> None:
        """What came before can still be read; then `error` is raised."""
        with self._changed:
            self._error = error
            self._wake(wakes)

    def _wake(self, wakes: Wakes) -> None:
        self._changed.notify_all()
        if self._waiter is not None:
            wakes.add(self._waiter)
            self._waiter = None


def _resolve(futures: list[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():  # its reader may have been cancelled
            future.set_result(None)
