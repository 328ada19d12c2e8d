"""What a worker process and its parent say to each other, and the frames they say it in.

A frame is a count of parts, their lengths, and the parts: a pickle (protocol 5) and the buffers it refers to, so that
pixels are neither copied into the pickle nor out of it. The first frame of each side is JSON, so that two versions of
visavis can still tell each other that they do not fit. Both sides are this project's own code and trust each other.
"""

from __future__ import annotations

import json
import pickle
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any

from visavis.backends.base import Capabilities, EngineRequest, LoadInfo, TokenEvent
from visavis.backends.options import EngineOptions
from visavis.errors import BackendError, VisavisError

__all__ = [
    "PROTOCOL",
    "Abort",
    "AskUsage",
    "Channel",
    "ChannelClosedError",
    "Close",
    "Events",
    "Failed",
    "Load",
    "Loaded",
    "Progressed",
    "Run",
    "RunEnded",
    "Usage",
    "pack_events",
    "portable_error",
    "unpack_events",
]

PROTOCOL = 2
_TICK_S = 0.5  # how often a waiting side looks whether the other is alive
_COUNT = struct.Struct("<I")
_MAX_PARTS = 100_000


# ---- messages: parent to child -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Load:
    backend: str
    model: str | None
    options: EngineOptions


@dataclass(frozen=True, slots=True)
class Run:
    run_id: int
    requests: tuple[EngineRequest, ...]


@dataclass(frozen=True, slots=True)
class Abort:
    run_id: int
    indices: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AskUsage:
    pass


@dataclass(frozen=True, slots=True)
class Close:
    pass


# ---- messages: child to parent -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Progressed:
    phase: str
    seconds: float  # since the child began to load


@dataclass(frozen=True, slots=True)
class Loaded:
    info: LoadInfo
    capabilities: Capabilities


@dataclass(frozen=True, slots=True)
class Failed:
    """Loading failed."""

    error: VisavisError


@dataclass(frozen=True, slots=True)
class Events:
    """Token events of a run, as `pack_events` packs them; times count from when the child took up the run."""

    run_id: int
    packed: tuple[tuple[Any, ...], ...]


@dataclass(frozen=True, slots=True)
class RunEnded:
    run_id: int
    error: VisavisError | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """Memory of a worker and its own children, in bytes, and how long it took to load."""

    peak_rss_bytes: int | None  # sum of each process's peak; None where the system does not tell
    gpu_peak_bytes: int | None  # reserved by torch in the worker itself; None without a GPU
    phases: Mapping[str, float]


_EVENT = tuple(f.name for f in fields(TokenEvent))
_TIMES = _EVENT.index("times")
_all_fields = attrgetter(*_EVENT)


def pack_events(events: Sequence[TokenEvent], start: float) -> tuple[tuple[Any, ...], ...]:
    """Plain tuples (three times as fast to pickle as dataclasses); times relative to `start`."""
    packed = []
    for event in events:
        values = _all_fields(event)
        times = tuple(t - start for t in event.times)
        packed.append((*values[:_TIMES], times, *values[_TIMES + 1 :]))
    return tuple(packed)


def unpack_events(packed: Sequence[tuple[Any, ...]], start: float) -> list[TokenEvent]:
    """The events, with times on the clock on which the run began at `start`."""
    events = []
    for values in packed:
        times = tuple(t + start for t in values[_TIMES])
        events.append(TokenEvent(*(*values[:_TIMES], times, *values[_TIMES + 1 :])))
    return events


def portable_error(error: BaseException, doing: str) -> VisavisError:
    """The error itself where it is one of ours and can be pickled, else a BackendError with its type and text."""
    if isinstance(error, VisavisError):
        try:
            pickle.loads(pickle.dumps(error))
            return error
        except Exception:
            return BackendError(str(error))
    text = " ".join(str(error).split())
    return BackendError(
        f"{doing}: {type(error).__name__}: {text[:1000]}" if text else f"{doing}: {type(error).__name__}"
    )


# ---- frames ------------------------------------------------------------------------------------------------------


class ChannelClosedError(Exception):
    """The other side is gone, or said nothing for too long (`timed_out`)."""

    def __init__(self, text: str, *, timed_out: bool = False) -> None:
        super().__init__(text)
        self.timed_out = timed_out


class Channel:
    """Frames over a connected stream socket. One thread may receive while any send."""

    def __init__(self, connection: socket.socket, alive: Callable[[], bool] = lambda: True) -> None:
        """`alive` is asked every half second of waiting; False ends the waiting with ChannelClosedError."""
        self._socket = connection
        self._socket.settimeout(_TICK_S)
        self._alive = alive
        self._sending = threading.Lock()
        # An interruption (Ctrl-C) in the middle of a frame leaves the stream between two frames' borders: whatever is
        # read or written after it would be taken for something else.
        self._torn_in = self._torn_out = False

    def send(self, message: Any, timeout: float | None = None) -> None:
        """Raises ChannelClosedError."""
        buffers: list[pickle.PickleBuffer] = []
        payload = pickle.dumps(message, protocol=5, buffer_callback=buffers.append)
        self._send_parts([payload, *(b.raw() for b in buffers)], timeout)

    def receive(self, timeout: float | None = None) -> Any:
        """The next message. Raises ChannelClosedError; with `timeout` seconds of silence `timed_out` is set."""
        payload, *buffers = self._receive_parts(timeout)
        return pickle.loads(payload, buffers=buffers)

    def send_hello(self, values: Mapping[str, Any], timeout: float | None = None) -> None:
        self._send_parts([json.dumps(values).encode()], timeout)

    def receive_hello(self, timeout: float | None = None) -> dict[str, Any]:
        """Raises ChannelClosedError, also for a frame that is no hello."""
        parts = self._receive_parts(timeout)
        try:
            hello = json.loads(bytes(parts[0]))
        except ValueError:
            raise ChannelClosedError("the other side does not speak this protocol") from None
        if not isinstance(hello, dict):
            raise ChannelClosedError("the other side does not speak this protocol")
        return hello

    def close(self) -> None:
        self._socket.close()

    def _send_parts(self, parts: Sequence[Any], timeout: float | None) -> None:
        views = [memoryview(part).cast("B") for part in parts]
        lengths = b"".join(struct.pack("<Q", len(view)) for view in views)
        head = memoryview(_COUNT.pack(len(views)) + lengths)
        with self._sending:
            if self._torn_out:
                raise ChannelClosedError("the last message was interrupted half-way")
            waited = _Patience(timeout, self._alive)
            self._torn_out = True
            for view in (head, *views):
                while len(view):
                    try:
                        view = view[self._socket.send(view) :]
                        waited.restart()
                    except TimeoutError:
                        waited.tick()
                    except OSError as error:
                        raise ChannelClosedError(f"the connection broke: {error}") from None
            self._torn_out = False

    def _receive_parts(self, timeout: float | None) -> list[bytearray]:
        waited = _Patience(timeout, self._alive)
        if self._torn_in:
            raise ChannelClosedError("the last message was interrupted half-way")
        self._await_frame(waited)
        self._torn_in = True
        (count,) = _COUNT.unpack(self._read(_COUNT.size, waited))
        if not 1 <= count <= _MAX_PARTS:
            raise ChannelClosedError("the other side does not speak this protocol")
        lengths = struct.unpack(f"<{count}Q", self._read(8 * count, waited))
        parts = [self._read(length, waited) for length in lengths]
        self._torn_in = False
        return parts

    def _await_frame(self, waited: _Patience) -> None:
        """Until there is something to read; takes nothing, so that an interruption here does no harm."""
        while True:
            try:
                self._socket.recv(1, socket.MSG_PEEK)
                return
            except TimeoutError:
                waited.tick()
            except OSError as error:
                raise ChannelClosedError(f"the connection broke: {error}") from None

    def _read(self, length: int, waited: _Patience) -> bytearray:
        data = bytearray(length)
        view = memoryview(data)
        while len(view):
            try:
                got = self._socket.recv_into(view)
            except TimeoutError:
                waited.tick()
                continue
            except OSError as error:
                raise ChannelClosedError(f"the connection broke: {error}") from None
            if got == 0:
                raise ChannelClosedError("the connection was closed")
            view = view[got:]
            waited.restart()
        return data


class _Patience:
    """How long one side waits for the other."""

    def __init__(self, timeout: float | None, alive: Callable[[], bool]) -> None:
        self._timeout = timeout
        self._alive = alive
        self._since = time.monotonic()

    def restart(self) -> None:
        self._since = time.monotonic()

    def tick(self) -> None:
        if not self._alive():
            raise ChannelClosedError("the other process has ended")
        if self._timeout is not None and time.monotonic() - self._since >= self._timeout:
            raise ChannelClosedError(f"no news for {self._timeout:g} s", timed_out=True)
