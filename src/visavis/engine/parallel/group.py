"""`WorkerGroup`: rank 0's side of a tensor-parallel group: starts the other ranks, tells them what to do, ends them."""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import torch

from visavis import errors
from visavis.child_process import ChildProcess
from visavis.engine.communicator import Communicator
from visavis.engine.config import EngineSettings
from visavis.engine.model_config import ModelConfig
from visavis.engine.out_of_memory import first_line, is_out_of_memory
from visavis.engine.parallel.collectives import Collectives, open_store
from visavis.engine.parallel.leader import LeadingStep, LeadingTower
from visavis.engine.parallel.memory import reserve
from visavis.engine.parallel.messages import Cache, Close, Failed, Go, Join, Loaded, Ready, Start
from visavis.engine.share import ModelShare
from visavis.errors import BackendError

__all__ = ["TIMEOUT_S", "WorkerGroup"]

WORKER = "visavis.engine.parallel.worker"
TIMEOUT_S = 300.0
"""A step of any rank, the first one's compiling and a whole prompt on a CPU included, takes less."""
START_TIMEOUT_S = 900.0
"""So may loading, from a slow disk."""
WATCH_S = 0.2
PATIENCE_S = 5.0

_T = TypeVar("_T")


class WorkerGroup(Communicator):
    """Not thread-safe, as the engine. After an error all that is left to call is `close`."""

    rank = 0

    def __init__(
        self, folder: Path, config: ModelConfig, settings: EngineSettings, threads: int, *, timeout_s: float = TIMEOUT_S
    ) -> None:
        """Starts the workers, which load at once; `join` waits until they are there. `config` is of one rank."""
        self.size = settings.tensor_parallel_size
        self.device = settings.device
        self.timeout_s = timeout_s
        self.death: str | None = None  # why it is over
        self._store: Any = None
        self._busy_since: float | None = None
        self._closed = threading.Event()
        self._ending = threading.Lock()
        self._workers: list[ChildProcess] = []
        self._pipes: list[Connection] = []
        try:
            for rank in range(1, self.size):
                worker = ChildProcess(WORKER, label=f"rank{rank}")
                self._workers.append(worker)
                self._pipes.append(Connection(worker.connection.detach()))
            for rank in range(1, self.size):
                own = replace(
                    settings, device=torch.device("cuda", rank) if self.device.type == "cuda" else self.device
                )
                self._send(rank, Start(folder, config, own, rank, threads))
        except BaseException:
            self.close()
            raise
        self._finalizer = weakref.finalize(self, _end_all, self._workers)
        threading.Thread(
            target=_watch, args=(weakref.ref(self), self._closed), name="visavis-ranks", daemon=True
        ).start()

    @property
    def pids(self) -> list[int]:
        """Of the processes of ranks 1, 2, …"""
        return [worker.pid for worker in self._workers]

    # ---- the start -----------------------------------------------------------------------------------------------

    def join(self) -> None:
        for rank in range(1, self.size):
            self._hear(rank, Ready, "loading")
        self._store = open_store()
        self._tell_all(Join(self._store.port, self.timeout_s))
        with self._failing("meeting the other ranks"):
            self.collectives = Collectives(self._store, 0, self.size, self.device, self.timeout_s)

    def smallest(self, num_blocks: int) -> int:
        return min(num_blocks, *(self._hear(rank, Loaded, "loading").kv_blocks for rank in range(1, self.size)))

    def make_caches(self, num_blocks: int, max_model_len: int) -> None:
        self._tell_all(Cache(num_blocks, max_model_len))
        for rank in range(1, self.size):
            self._hear(rank, Ready, "making its cache")

    def led(self, share: ModelShare) -> ModelShare:
        share.kernels.warmed_up()  # whose threads would else compute, and sum over ranks, beside the steps
        share.step = LeadingStep(share)
        if share.tower is not None and share.tower.config.shards > 1:
            share.tower = LeadingTower.of(share)
        return share

    # ---- steps --------------------------------------------------------------------------------------------

    def tell(self, message: Any) -> None:
        self._check()
        self._tell_all(message)

    def agree(self, message: Any, num_bytes: int) -> None:
        self.tell(message)
        refusals = []
        try:
            reserve(num_bytes, self.device)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            refusals.append(f"rank 0: {first_line(error)}")
        for rank in range(1, self.size):
            answer = self._hear_any(rank, "reserving memory", self.timeout_s)
            if isinstance(answer, Failed) and answer.kind == "MemoryError":
                refusals.append(f"rank {rank}: {answer.text}")
            elif not isinstance(answer, Ready):
                self._failed(rank, answer)
        self._tell_all(Go(not refusals))
        if refusals:
            raise MemoryError("; ".join(refusals))

    @contextlib.contextmanager
    def guard(self) -> Iterator[None]:
        self._check()
        self._busy_since = time.monotonic()
        try:
            with self._failing("a step"):
                yield
        finally:
            self._busy_since = None
        self._check()  # what was waited for may have been let go by the watch

    # ---- the end -------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Ends the workers and returns when their processes are gone. May be called twice. Raises BackendError when
        one survives."""
        with self._ending:
            if self._closed.is_set():
                return
            self._closed.set()
            polite = self.death is None and self.collectives is not None
            if polite:
                with contextlib.suppress(OSError):
                    for pipe in self._pipes:
                        pipe.send(Close())
            try:
                for worker in self._workers:
                    worker.end(PATIENCE_S if polite else 0.0)
            finally:
                for pipe in self._pipes:
                    pipe.close()
                if self.collectives is not None and self.death is None:
                    self.collectives.abort()
                self.collectives = self._store = None

    def break_off(self, reason: str) -> None:
        """Ends the group from whichever thread: kills the workers, and lets go whoever waits for them."""
        if self.death is not None or self._closed.is_set():
            return
        self.death = reason
        for worker in self._workers:
            worker.kill()
        if self.collectives is not None:
            self.collectives.abort()

    def watch(self) -> None:
        """Called every `WATCH_S` from a thread of its own."""
        for rank, worker in enumerate(self._workers, 1):
            if not worker.alive() and not self._closed.is_set():
                self.break_off(self._how(rank))
                return
        since = self._busy_since
        if since is not None and time.monotonic() - since > self.timeout_s:
            self.break_off(f"tensor parallel: a step has not ended after {self.timeout_s:.0f} s")

    def _how(self, rank: int) -> str:
        worker = self._workers[rank - 1]
        cause = worker.root_cause("")
        tail = worker.log_tail()
        said = f": {cause}" if cause else f"; its last words:\n{tail}" if tail else ""
        return f"tensor parallel: rank {rank} (process {worker.pid}) {worker.how_it_ended()}{said}"

    def _check(self) -> None:
        if self.death is not None:
            raise BackendError(self.death)

    @contextlib.contextmanager
    def _failing(self, what: str) -> Iterator[None]:
        """Any error within leaves the ranks at different places: it ends the group, and the cause is found."""
        try:
            yield
        except BaseException as error:
            if isinstance(error, Exception):
                self._await_death()  # a peer's death shows first as a broken connection
            death = self.death
            self.break_off(f"tensor parallel: {what} was broken off: {type(error).__name__}: {first_line(error)}")
            if death is not None and not isinstance(error, BackendError):
                raise BackendError(death) from error
            raise

    def _await_death(self) -> None:
        """A moment for a dead worker to be seen as one."""
        for _ in range(20):
            if self.death is not None or not all(worker.alive() for worker in self._workers):
                self.watch()
                return
            time.sleep(0.01)

    # ---- talking -------------------------------------------------------------------------------------------------

    def _tell_all(self, message: Any) -> None:
        for rank in range(1, self.size):
            self._send(rank, message)

    def _send(self, rank: int, message: Any) -> None:
        try:
            self._pipes[rank - 1].send(message)
        except OSError:
            self._lost(rank)

    def _hear(self, rank: int, kind: type[_T], doing: str) -> _T:
        answer = self._hear_any(rank, doing, START_TIMEOUT_S)
        if not isinstance(answer, kind):
            self._failed(rank, answer)
        return answer

    def _hear_any(self, rank: int, doing: str, timeout_s: float) -> Any:
        pipe = self._pipes[rank - 1]
        try:
            if pipe.poll(timeout_s):
                return pipe.recv()
        except (EOFError, OSError):
            self._lost(rank)
        self.break_off(f"tensor parallel: rank {rank} said nothing for {timeout_s:.0f} s while {doing}")
        raise BackendError(self.death)

    def _lost(self, rank: int) -> NoReturn:
        self._workers[rank - 1].wait(2.0)  # the pipe closes a moment before the process can be waited for
        self.break_off(self._how(rank))
        raise BackendError(self.death)

    def _failed(self, rank: int, answer: Any) -> NoReturn:
        """A worker's error, as if it were ours."""
        self.break_off(f"tensor parallel: rank {rank} failed: {getattr(answer, 'text', answer)}")
        kind = getattr(errors, answer.kind, BackendError) if isinstance(answer, Failed) else BackendError
        raise kind(self.death)


def _watch(group: weakref.ref[WorkerGroup], closed: threading.Event) -> None:
    while not closed.wait(WATCH_S):
        found = group()
        if found is None:
            return
        found.watch()
        del found


def _end_all(workers: list[ChildProcess]) -> None:
    for worker in workers:
        worker.end()
