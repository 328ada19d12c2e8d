"""`WorkerModel`: any backend in a child process of its own, with its own interpreter where that is needed.

Prompts are prepared and sampling is resolved here; the child turns requests into token events, stamped there. Its death
is a WorkerDiedError of the requests in it; `load` starts a new one.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn

from visavis.backends.base import Capabilities, EngineRequest, LoadInfo, ModelInterface, Progress, TokenEvent
from visavis.backends.options import EngineOptions
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
    unpack_events,
)
from visavis.child_process import ChildProcess
from visavis.errors import BackendError, InputError, VisavisError, WorkerDiedError

__all__ = ["WorkerModel"]

MODULE = "visavis.backends.worker_main"


class WorkerModel(ModelInterface):
    """One batch at a time; a second one meanwhile is refused."""

    def __init__(
        self,
        backend: str,
        *,
        python: str | None = None,
        env: Mapping[str, str] | None = None,
        start_timeout_s: float = 900.0,
        idle_timeout_s: float = 600.0,
        close_timeout_s: float = 10.0,
    ) -> None:
        """`python`: the interpreter to run it with (None: this one); `env`: added to this process's environment.

        `start_timeout_s` and `idle_timeout_s`: seconds without any news while it loads or runs, after which it is
        killed. `close_timeout_s`: how long it may take to end by itself.
        """
        super().__init__()
        self.name = backend
        self._python = python
        self._env = env
        self._start_timeout_s = start_timeout_s
        self._idle_timeout_s = idle_timeout_s
        self._close_timeout_s = close_timeout_s
        self._model: str | None = None
        self._child: ChildProcess | None = None
        self._channel: Channel | None = None
        self._finalizer: weakref.finalize[Any, Any] | None = None
        self._capabilities = Capabilities()
        self._run_id = 0
        self._usage: Usage | None = None
        self._death = ""  # how it died

    @property
    def pid(self) -> int | None:
        """Of the child; None when there is none."""
        return self._child.pid if self._child is not None else None

    def capabilities(self) -> Capabilities:
        self._info()
        return self._capabilities

    def usage(self) -> Usage:
        """Peak memory and phases; after its end what was last known. Raises WorkerDiedError when it died before it
        could tell, and BackendError while a batch runs."""
        if self._channel is None and self._usage is not None:
            return self._usage
        self._info()
        if not self.serving.acquire(blocking=False):
            raise BackendError(f"{self.name} is serving a batch; ask for its usage afterwards")
        try:
            self._tell(AskUsage())
            told: Usage = self._hear(Usage, self._idle_timeout_s, "telling its memory")
            self._usage = replace(told, phases=self._info().phases)  # with the start, which the child cannot see
            return self._usage
        finally:
            self.serving.release()

    # ---- load and close ----------------------------------------------------------------------------------------

    def _open(self, model: str | None, options: EngineOptions) -> None:
        super()._open(model, options)
        self._model = None if model is None else str(model)

    def _warm_up(self) -> None:
        """The child has done it."""

    def _load(self, options: EngineOptions, progress: Progress) -> LoadInfo:
        from visavis.families.hub import fetch_weights

        fetch_weights(self._family().folder)  # here, where its progress is seen and no time-out holds
        start = self.clock()
        progress("start", 0.0)
        self._usage, self._death = None, ""
        self._child = child = ChildProcess(MODULE, self._python, label=self.name, env=self._env)
        self._finalizer = weakref.finalize(self, child.end)  # also at interpreter exit
        self._channel = channel = Channel(child.connection, child.alive)
        try:
            hello = channel.receive_hello(self._start_timeout_s)
        except ChannelClosedError as error:
            self._died("starting", error)
        if hello.get("protocol") != PROTOCOL:
            raise BackendError(
                f"{self.name}: {child.python} runs another visavis (version {hello.get('visavis')}, protocol "
                f"{hello.get('protocol')} instead of {PROTOCOL})"
            )
        started = self.clock() - start
        self._tell(Load(self.name, self._model, options))

        def relay(phase: str, seconds: float) -> None:
            if phase not in ("tokenizer", "ready"):  # told by `load` here
                progress(phase, seconds + started)

        loaded: Loaded = self._hear(Loaded, self._start_timeout_s, "loading", relay)
        self._capabilities = loaded.capabilities
        return replace(
            loaded.info,
            model=self._family().folder.name,
            phases={"start": started, **loaded.info.phases},
            interpreter=child.python,
        )

    def _close(self) -> None:
        child, self._child = self._child, None
        channel, self._channel = self._channel, None
        if child is None:
            return
        polite = False
        if channel is not None and child.alive():
            try:
                if self.info is not None and not self.serving.locked():
                    channel.send(AskUsage(), timeout=1.0)
                    if isinstance(told := channel.receive(timeout=self._close_timeout_s), Usage):
                        self._usage = replace(told, phases=self.info.phases)
                channel.send(Close(), timeout=1.0)
                polite = True
            except ChannelClosedError:
                pass
        try:
            child.end(self._close_timeout_s if polite else 0.0)
        finally:
            if self._finalizer is not None:
                self._finalizer.detach()

    # ---- requests ----------------------------------------------------------------------------------------------

    def _run(self, requests: Sequence[EngineRequest]) -> Iterator[TokenEvent]:
        self._run_id += 1
        run_id, start = self._run_id, self.clock()
        self._tell(Run(run_id, tuple(requests)))
        ended = False
        try:
            while True:
                message = self._next("answering", self._idle_timeout_s)
                if isinstance(message, Events) and message.run_id == run_id:
                    yield from unpack_events(message.packed, start)
                elif isinstance(message, RunEnded) and message.run_id == run_id:
                    ended = True
                    if message.error is not None:
                        raise message.error
                    return
        finally:
            # Left early: the child must be at rest before the next batch, whose times would count the wait.
            # If it dies meanwhile, nothing of this batch is left to wait for, and the next one says so.
            if not ended and self._channel is not None:
                with contextlib.suppress(WorkerDiedError):
                    self._tell(Abort(run_id, tuple(request.index for request in requests)))
                    while not ended:
                        message = self._next("aborting", self._idle_timeout_s)
                        ended = isinstance(message, RunEnded) and message.run_id == run_id

    def _abort(self, index: int) -> None:
        if self._channel is not None:
            with contextlib.suppress(WorkerDiedError):  # what takes the events raises it
                self._tell(Abort(self._run_id, (index,)))

    # ---- talking to the child ----------------------------------------------------------------------------------

    def _tell(self, message: Any) -> None:
        channel = self._connected()
        try:
            channel.send(message, timeout=self._idle_timeout_s)
        except ChannelClosedError as error:
            self._died("taking a message", error)

    def _next(self, doing: str, timeout: float) -> Any:
        try:
            return self._connected().receive(timeout)
        except ChannelClosedError as error:
            self._died(doing, error)

    def _hear(self, kind: Any, timeout: float, doing: str, progress: Progress | None = None) -> Any:
        """The next message of `kind`; progress is passed on, failures raise."""
        while True:
            message = self._next(doing, timeout)
            if isinstance(message, kind):
                return message
            if isinstance(message, Failed):
                raise self._with_cause(message.error)
            if isinstance(message, Progressed) and progress is not None:
                progress(message.phase, message.seconds)

    def _with_cause(self, error: VisavisError) -> VisavisError:
        """An engine's failure with the last error of its log, where that says more."""
        if isinstance(error, InputError) or self._child is None:
            return error
        cause = self._child.root_cause(str(error))
        return BackendError(f"{error}; the last error in its log: {cause}") if cause else error

    def _connected(self) -> Channel:
        if self._channel is None:
            before = f". {self._death}" if self._death else ""
            raise WorkerDiedError(f"{self.name}: the worker has died; call load() to start a new one{before}")
        return self._channel

    def _died(self, doing: str, error: ChannelClosedError) -> NoReturn:
        """Ends what is left of the child and raises WorkerDiedError with the tail of its log."""
        child = self._child
        assert child is not None
        self._channel = None
        if error.timed_out:
            what = f"said nothing for {error.args[0].removeprefix('no news for ')} while {doing} and was ended"
        else:
            child.wait(2.0)  # the socket closes a moment before the process can be waited for
            what = f"{child.how_it_ended()} while {doing}"
        tail = child.log_tail()
        child.end()
        said = f"; its last words:\n{tail}" if tail else "; it printed nothing"
        self._death = f"{self.name}: the worker (process {child.pid}) {what}{said}"
        raise WorkerDiedError(self._death) from None
