"""The worker process: loads one backend and serves its parent until that goes away. Run by `child_process`."""

from __future__ import annotations

import atexit
import contextlib
import os
import platform
import queue
import signal
import socket
import sys
import threading
from collections.abc import Collection, Iterator
from typing import Any

import visavis
from visavis.backends.base import ModelInterface, TokenEvent
from visavis.backends.devices import gpu_bytes_of
from visavis.backends.protocol import (
    PROTOCOL,
    Abort,
    AskUsage,
    Channel,
    ChannelClosedError,
    Close,
    Events,
    Failed,
    Load,
    Loaded,
    Progressed,
    Run,
    RunEnded,
    Usage,
    pack_events,
    portable_error,
)
from visavis.backends.registry import new
from visavis.child_process import descendants, peak_rss_bytes

__all__ = ["main"]


def main(arguments: list[str]) -> None:
    """`arguments`: the socket's file descriptor, and the parent's process id where its death may be signalled."""
    connection = socket.socket(fileno=int(arguments[0]))
    connection.set_inheritable(False)  # an engine's own children must not keep it open
    parent = os.getppid()
    if int(arguments[1]):
        _die_with_parent()
    channel = Channel(connection, alive=lambda: os.getppid() == parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    channel.send_hello(
        {
            "protocol": PROTOCOL,
            "visavis": visavis.__version__,
            "python": platform.python_version(),
            "pid": os.getpid(),
        }
    )
    _Worker(channel).serve()
    _leave()


def _leave() -> None:
    """Ends at once, after what was registered to be done at the end: taking an engine's modules apart one by one takes
    seconds, and the system frees everything anyway."""
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _die_with_parent() -> None:
    if sys.platform != "linux":
        return
    import ctypes

    PR_SET_PDEATHSIG = 1  # noqa: N806
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _end_everything() -> None:
    """The parent is gone: so are we and what we started, at once."""
    for pid in descendants(os.getpid()):
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


class _Worker:
    """Engines run in the main thread; one thread reads what the parent says, one writes token events."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._model: ModelInterface | None = None
        threading.Thread(target=self._read, name="visavis-reader", daemon=True).start()

    def serve(self) -> None:
        while True:
            message = self._inbox.get()
            if isinstance(message, Load):
                self._load(message)
            elif isinstance(message, Run):
                if not self._run(message):
                    break
            elif isinstance(message, AskUsage):
                self._channel.send(self._usage())
            elif isinstance(message, Close):
                break
        if self._model is not None:
            self._model.close()

    def _read(self) -> None:
        try:
            while True:
                self._inbox.put(self._channel.receive())
        except ChannelClosedError:
            _end_everything()

    def _load(self, message: Load) -> None:
        try:
            self._model = model = new(message.backend, in_worker=True)
            model.load(message.model, message.options, lambda p, s: self._channel.send(Progressed(p, s)))
            assert model.info is not None
            self._channel.send(Loaded(model.info, model.capabilities()))
        except BaseException as error:
            import traceback

            traceback.print_exc()  # into the log
            self._channel.send(Failed(portable_error(error, f"{message.backend} failed to load")))

    def _run(self, message: Run) -> bool:
        """False when the parent asked to close meanwhile."""
        model = self._model
        assert model is not None
        start = model.clock()
        writer = _EventWriter(self._channel, message.run_id, start)
        error = None
        go_on = True
        events: Iterator[TokenEvent] = model._run(message.requests)
        try:
            for event in events:
                writer.put(event)
                go_on = self._take_orders(message.run_id) and go_on
                if not go_on:
                    break
        except BaseException as caught:
            import traceback

            traceback.print_exc()
            error = portable_error(caught, f"{model.name} failed")
        finally:
            close = getattr(events, "close", None)
            if close is not None:
                close()
        writer.finish()
        self._channel.send(RunEnded(message.run_id, error))
        return go_on

    def _take_orders(self, run_id: int) -> bool:
        """Aborts, in the thread that runs the engine. False: close."""
        assert self._model is not None
        while not self._inbox.empty():
            order = self._inbox.get()
            if isinstance(order, Close):
                return False
            if isinstance(order, Abort) and order.run_id == run_id:
                for index in order.indices:
                    self._model._abort(index)
        return True

    def _usage(self) -> Usage:
        me = os.getpid()
        peaks = [peak_rss_bytes(pid) for pid in (me, *descendants(me))]
        known = [p for p in peaks if p is not None]
        info = self._model.info if self._model is not None else None
        return Usage(
            sum(known) if known else None, _gpu_peak_bytes({me, *descendants(me)}), dict(info.phases) if info else {}
        )


class _EventWriter:
    """Sends events from a thread of its own, as many in one frame as have gathered: the engine never waits for it."""

    def __init__(self, channel: Channel, run_id: int, start: float) -> None:
        self._channel, self._run_id, self._start = channel, run_id, start
        self._queue: queue.SimpleQueue[TokenEvent | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._write, name="visavis-writer", daemon=True)
        self._thread.start()

    def put(self, event: TokenEvent) -> None:
        self._queue.put(event)

    def finish(self) -> None:
        """Returns when everything is sent."""
        self._queue.put(None)
        self._thread.join()

    def _write(self) -> None:
        ended = False
        while not ended:
            gathered = [self._queue.get()]
            while not self._queue.empty():
                gathered.append(self._queue.get())
            events = [event for event in gathered if event is not None]
            ended = len(events) < len(gathered)
            if events:
                try:
                    self._channel.send(Events(self._run_id, pack_events(events, self._start)))
                except ChannelClosedError:
                    return  # the reader sees it too


def _gpu_peak_bytes(pids: Collection[int]) -> int | None:
    """What torch reserved at most in this process; of an engine that runs in processes of its own, what all hold now
    (such engines keep what they once took)."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return None
    reserved = 0
    if torch.cuda.is_initialized():
        reserved = sum(int(torch.cuda.max_memory_reserved(i)) for i in range(torch.cuda.device_count()))
    return reserved or gpu_bytes_of(pids)


if __name__ == "__main__":
    main(sys.argv[1:])
