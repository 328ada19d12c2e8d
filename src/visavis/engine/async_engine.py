"""`AsyncNativeEngine`: one engine thread that many threads and event loops submit requests to."""

from __future__ import annotations

import asyncio
import atexit
import itertools
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Self

import torch

from visavis.engine.engine import NativeEngine, StepOutput
from visavis.engine.sequence import Sequence
from visavis.engine.statistics import EngineStatistics
from visavis.engine.stream import RequestStream, Room, Wakes
from visavis.errors import BackendError, OptionError, QueueFullError, VisavisError, shorten
from visavis.prompt import Prompt
from visavis.sampling import ResolvedSampling

__all__ = ["AsyncNativeEngine", "MakeRequest"]

MakeRequest = Callable[[], tuple[Prompt, ResolvedSampling]]
"""Decodes, resizes and renders: whatever makes a request, for `submit_from`."""


class AsyncNativeEngine:
    """Takes over a loaded engine: from now on its own thread alone touches it, and `close` closes it.

    Every method may be called from any thread. At most `max_waiting` requests wait for their turn; what comes beyond
    waits in `submit`, or is a QueueFullError. Images are made ready in `prepare_threads` threads while the engine
    decodes: what `submit_from` is given, and the patches of prompts that come ready.
    """

    def __init__(self, engine: NativeEngine, *, max_waiting: int = 256, prepare_threads: int = 2) -> None:
        for name, value in (("max_waiting", max_waiting), ("prepare_threads", prepare_threads)):
            if value < 1:
                raise OptionError(f"{name} {value} is out of range: 1 or more")
        self.max_waiting = max_waiting
        self._engine = engine
        self._numbers = itertools.count()
        self._threads = torch.get_num_threads()
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)  # for the engine's thread
        self._room = Room(self._lock)
        self._streams: dict[str, RequestStream] = {}
        self._preparing: dict[str, RequestStream] = {}
        self._ready: list[Sequence] = []
        self._to_abort: list[str] = []
        self._num_waiting = 0  # in the scheduler, as of the last step
        self._closing: str | None = None  # "drain" or "abort"
        self._death: BaseException | None = None
        self._pool = ThreadPoolExecutor(prepare_threads, "visavis-prepare")
        # A daemon, so that a forgotten engine does not keep the process from ending; `_at_exit` ends it in order.
        self._thread = threading.Thread(target=self._run, name="visavis-engine", daemon=True)
        self._thread.start()
        atexit.register(_at_exit, weakref.ref(self))

    # ---- submitting --------------------------------------------------------------------------------------------

    def submit(
        self,
        prompt: Prompt,
        sampling: ResolvedSampling,
        *,
        request_id: str | None = None,
        priority: int = 0,
        wait_s: float | None = 0.0,
    ) -> RequestStream:
        """Queues a request; lower `priority` numbers go first. Raises InputError for one that can never run.

        Where the queue is full: waits up to `wait_s` seconds (None: as long as it takes), then raises QueueFullError.
        """
        self._check_open()
        seq = self._engine.prepare(self._name(request_id), prompt, sampling, priority)
        stream = self._enter(seq.request_id, wait_s)
        return self._start(stream, seq)

    async def submit_async(
        self, prompt: Prompt, sampling: ResolvedSampling, *, request_id: str | None = None, priority: int = 0
    ) -> RequestStream:
        """As `submit`; awaits a place in the queue without blocking the event loop."""
        self._check_open()
        prepare = partial(self._engine.prepare, self._name(request_id), prompt, sampling, priority)
        # A grammar that nobody asked for before takes its time to compile; all else is done in a moment.
        seq = prepare() if sampling.structured is None else await self._awaited(prepare)
        return self._start(await self._enter_async(seq.request_id), seq)

    def submit_from(
        self, make: MakeRequest, *, request_id: str | None = None, priority: int = 0, wait_s: float | None = 0.0
    ) -> RequestStream:
        """As `submit`, for a request that is still to be made: `make` runs in a thread of the pool, and what it raises
        is raised where the stream is read."""
        return self._start_from(make, self._enter(self._name(request_id), wait_s), priority)

    async def submit_from_async(
        self, make: MakeRequest, *, request_id: str | None = None, priority: int = 0
    ) -> RequestStream:
        """As `submit_from`; awaits a place in the queue without blocking the event loop."""
        return self._start_from(make, await self._enter_async(self._name(request_id)), priority)

    def abort(self, request_id: str) -> bool:
        """True when the request had not ended. Its stream then ends with finish_reason "abort"."""
        with self._work:
            if request_id not in self._streams:
                return False
            self._to_abort.append(request_id)
            self._work.notify()
            return True

    # ---- the whole ---------------------------------------------------------------------------------------------

    def statistics(self) -> EngineStatistics:
        """As of now; waits for nothing."""
        now = self._engine.statistics()
        return replace(now, waiting=now.waiting + len(self._ready), preparing=len(self._preparing))

    @property
    def running(self) -> bool:
        """False once the engine died or was closed."""
        return self._thread.is_alive() and self._closing is None

    def close(self, *, drain: bool = False, timeout: float | None = None) -> None:
        """Takes no more requests, ends those it has (with `drain` by letting them finish, else by aborting them), and
        frees the engine. Raises TimeoutError when that took longer than `timeout` seconds; it goes on, and may be
        waited for again, or be cut short by a `close` without `drain`. May be called twice."""
        with self._work:
            if self._closing != "abort":
                self._closing = "drain" if drain else "abort"
            self._work.notify()
            wakes = self._room.tell()
        wakes.send()
        self._pool.shutdown(wait=False, cancel_futures=not drain)
        self._thread.join(timeout)
        if self._thread.is_alive():
            raise TimeoutError(f"the engine is still answering {len(self._streams)} requests after {timeout} s")
        self._pool.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ---- a place in the queue ----------------------------------------------------------------------------------

    def _name(self, request_id: str | None) -> str:
        return f"request-{next(self._numbers)}" if request_id is None else request_id

    def _check_open(self) -> None:
        if self._death is not None:
            raise BackendError(f"the engine has stopped: {_said(self._death)}") from self._death
        if self._closing is not None:
            raise BackendError("the engine is closed")

    def _num_queued(self) -> int:
        return len(self._preparing) + len(self._ready) + self._num_waiting

    def _try_enter(self, request_id: str) -> RequestStream | None:
        """With the lock held: a stream that counts as preparing, or None when the queue is full."""
        self._check_open()
        if request_id in self._streams:
            raise OptionError(f"request id {shorten(request_id)} is already running")
        if self._num_queued() >= self.max_waiting:
            return None
        stream = self._streams[request_id] = RequestStream(request_id, self.abort)
        self._preparing[request_id] = stream
        return stream

    def _enter(self, request_id: str, wait_s: float | None) -> RequestStream:
        until = None if wait_s is None else time.monotonic() + wait_s
        with self._lock:
            while (stream := self._try_enter(request_id)) is None:
                left = None if until is None else until - time.monotonic()
                if left is not None and left <= 0:
                    raise QueueFullError(
                        f"{self.max_waiting} requests are waiting already; try again later, wait longer (wait_s), "
                        "or raise max_waiting"
                    )
                self._room.wait(left)
        return stream

    async def _enter_async(self, request_id: str) -> RequestStream:
        while True:
            with self._lock:
                stream = self._try_enter(request_id)
                if stream is not None:
                    return stream
                waiter = self._room.future()
            try:
                await waiter
            except asyncio.CancelledError:
                with self._lock:
                    wakes = self._room.leave(waiter)
                wakes.send()
                raise

    def _tell_room(self) -> Wakes:
        """With the lock held: wakes as many of those who wait as there are places."""
        return self._room.tell(self.max_waiting - self._num_queued())

    # ---- making ready ------------------------------------------------------------------------------------------

    def _start(self, stream: RequestStream, seq: Sequence) -> RequestStream:
        if self._engine.needs_patches(seq):
            self._in_pool(stream, lambda: seq)
        else:
            self._hand_over(stream, seq)
        return stream

    def _start_from(self, make: MakeRequest, stream: RequestStream, priority: int) -> RequestStream:
        arrival_time = time.perf_counter()

        def made() -> Sequence:
            seq = self._engine.prepare(stream.request_id, *make(), priority)
            seq.arrival_time = arrival_time  # its turn counts from when it was submitted
            return seq

        self._in_pool(stream, made)
        return stream

    def _in_pool(self, stream: RequestStream, make: Callable[[], Sequence]) -> None:
        def work() -> None:
            if self._preparing.get(stream.request_id) is not stream:
                return  # aborted meanwhile
            try:
                seq = make()
                self._engine.make_patches(seq)
            except BaseException as error:
                self._drop(stream, error)
            else:
                self._hand_over(stream, seq)

        try:
            self._pool.submit(work)
        except RuntimeError:  # shut down between the check and here
            self._drop(stream, BackendError("the engine is closed"))

    async def _awaited(self, prepare: Callable[[], Sequence]) -> Sequence:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, prepare)
        except RuntimeError:
            self._check_open()  # the pool was shut down meanwhile
            raise

    def _hand_over(self, stream: RequestStream, seq: Sequence) -> None:
        with self._work:
            if self._preparing.get(stream.request_id) is stream:
                del self._preparing[stream.request_id]
                self._ready.append(seq)
                self._work.notify()
                return
        self._engine.discard(seq)  # aborted meanwhile

    def _drop(self, stream: RequestStream, error: BaseException) -> None:
        """Fails a request that never reached the engine."""
        with self._work:
            if self._preparing.get(stream.request_id) is not stream:
                return
            del self._preparing[stream.request_id], self._streams[stream.request_id]
            wakes = self._tell_room()
            self._work.notify()
        if not isinstance(error, VisavisError):
            error = BackendError(f"the request could not be made: {_said(error)}").with_traceback(error.__traceback__)
        stream.fail(error, wakes)
        wakes.send()

    # ---- the engine's thread -----------------------------------------------------------------------------------

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            if self._engine.settings.device.type == "cpu":
                torch.set_num_threads(self._threads)  # each thread has its own setting
            while self._turn():
                pass
        except BaseException as failure:  # whatever it is, whoever waits for an answer must hear of it
            error = failure
        self._end(error)

    def _turn(self) -> bool:
        """Takes what was submitted and aborted, computes a step, hands the outputs out. False: the end has come."""
        with self._work:
            self._work.wait_for(self._has_something_to_do)
            if self._is_over():
                return False
            ready, self._ready = self._ready, []
            to_abort, self._to_abort = self._to_abort, []
            for seq in ready:
                self._engine.add(seq)
            self._num_waiting = self._engine.num_waiting
        wakes = Wakes()
        for request_id in to_abort:
            self._engine.abort(request_id)
            self._put(StepOutput(request_id, finish_reason="abort"), wakes)
        for output in self._engine.step():
            self._put(output, wakes)
        wakes.send()
        with self._work:
            self._num_waiting = self._engine.num_waiting
            wakes = self._tell_room()
        wakes.send()
        return True

    def _has_something_to_do(self) -> bool:
        return bool(self._ready or self._to_abort or self._engine.has_work or self._is_over())

    def _is_over(self) -> bool:
        return self._closing == "abort" or (self._closing == "drain" and not self._streams)

    def _put(self, output: StepOutput, wakes: Wakes) -> None:
        stream = self._streams.get(output.request_id)
        if stream is None:
            return
        if output.finish_reason is not None:
            with self._lock:
                del self._streams[output.request_id]
                self._preparing.pop(output.request_id, None)
        stream.put(output, wakes)

    def _end(self, error: BaseException | None) -> None:
        with self._work:
            self._death = error
            self._closing = self._closing or "abort"
            streams, self._streams = self._streams, {}
            self._preparing.clear()
            self._ready.clear()
            room = self._room.tell()
        wakes = Wakes()
        for stream in streams.values():
            if error is None:
                stream.put(StepOutput(stream.request_id, finish_reason="abort"), wakes)
            else:
                failure = BackendError(f"the engine has stopped: {_said(error)}")
                failure.__cause__ = error
                stream.fail(failure, wakes)
        wakes.send()
        room.send()
        with suppress(Exception) if error is not None else nullcontext():
            self._engine.close()


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _at_exit(reference: weakref.ref[AsyncNativeEngine]) -> None:
    engine = reference()
    if engine is not None:
        engine.close()
