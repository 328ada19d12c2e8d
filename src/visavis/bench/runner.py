"""`Runner`: engines in turn, round after round, until every cell has its rounds on every engine."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

from visavis.backends.base import ModelInterface, Progress
from visavis.backends.runner import check_arrivals
from visavis.backends.worker import WorkerModel
from visavis.bench.measure import measure_round
from visavis.bench.plan import BenchPlan
from visavis.bench.result import Bench, Cell, CellRun, Kind, Round
from visavis.bench.steady import headline
from visavis.bench.work import Work
from visavis.errors import BackendError, InputError

__all__ = ["Opener", "Runner", "Say"]

Opener = Callable[[str, Progress], AbstractContextManager[ModelInterface]]
"""(backend, progress) → the loaded model, closed at the end."""

Say = Callable[[str, str, int, int], None]
"""Called as (backend, what it does, rounds done, rounds in all)."""


class Runner:
    """Fills a `Bench`, calling `save` after each round, so that whatever ends it, what was measured stays."""

    def __init__(
        self,
        plan: BenchPlan,
        cells: Sequence[Cell],
        work: Work,
        bench: Bench,
        opener: Opener,
        save: Callable[[], None],
        say: Say,
    ) -> None:
        self._plan, self._cells, self._work, self._bench = plan, cells, work, bench
        self._opener, self._save, self._say = opener, save, say
        self._total = plan.rounds * len(cells) * len(plan.backends)

    def run(self) -> None:
        """Measures what is missing. An engine that cannot be loaded, or dies, is part of the result with its error;
        the others go on. Raises InputError when the only engine cannot be loaded."""
        if self._plan.reload:
            for number in range(self._plan.rounds):
                for engine in self._turns(number):
                    self._session((engine,), up_to=number + 1)
        else:
            self._session(self._plan.backends, up_to=self._plan.rounds)
        self._bench.complete = True
        self._bench.finished = datetime.now(UTC).isoformat(timespec="seconds")
        self._save()

    # ---- one start of the engines ------------------------------------------------------------------------------

    def _session(self, engines: Sequence[str], up_to: int) -> None:
        """Loads the engines that still owe rounds, and lets them take turns cell by cell."""
        owing = [e for e in engines if any(self._owes(c, e, up_to) for c in self._cells)]
        with ExitStack() as stack:
            loaded: dict[str, ModelInterface] = {}
            try:
                for engine in owing:
                    model = self._load(engine, stack)
                    if model is not None:
                        loaded[engine] = model
                for cell in self._cells:
                    self._cell(cell, loaded, up_to)
            finally:
                for engine, model in loaded.items():
                    self._memory(engine, model)

    def _owes(self, cell: Cell, engine: str, up_to: int) -> bool:
        run = self._bench.run_of(cell.id, engine)
        return not run.refused and len(run.timed()) < up_to

    def _load(self, engine: str, stack: ExitStack) -> ModelInterface | None:
        record = self._bench.engine(engine)
        record.error = None
        start = time.perf_counter()
        self._tell(engine, "start")
        try:
            model = stack.enter_context(self._opener(engine, lambda phase, seconds: self._tell(engine, phase)))
        except (BackendError, InputError) as error:
            if isinstance(error, InputError) and len(self._plan.backends) == 1:
                raise
            record.error = f"could not be loaded: {error}"
            self._save()
            return None
        info = model.info
        assert info is not None
        record.version, record.device, record.dtype = info.version, info.device, info.dtype
        record.max_model_len, record.settings, record.marks = info.max_model_len, dict(info.settings), info.marks
        record.interpreter = info.interpreter
        record.sessions.append({**info.phases, "in all": time.perf_counter() - start})
        self._save()
        return model

    def _memory(self, engine: str, model: ModelInterface) -> None:
        if not isinstance(model, WorkerModel):
            return
        try:
            usage = model.usage()
        except BackendError:
            return
        record = self._bench.engine(engine)
        record.peak_memory_bytes = _most(record.peak_memory_bytes, usage.peak_rss_bytes)
        record.peak_device_memory_bytes = _most(record.peak_device_memory_bytes, usage.gpu_peak_bytes)
        self._save()

    # ---- one cell ----------------------------------------------------------------------------------------------

    def _cell(self, cell: Cell, loaded: dict[str, ModelInterface], up_to: int) -> None:
        owing = [e for e in loaded if self._owes(cell, e, up_to)]
        for engine in owing:
            self._guarded(engine, loaded, cell, partial(self._warm_up, cell))
        for number in range(up_to):
            for engine in self._turns(number):
                if engine in loaded and engine in owing and self._owes(cell, engine, number + 1):
                    self._guarded(engine, loaded, cell, partial(self._timed, cell, number))

    def _guarded(
        self,
        engine: str,
        loaded: dict[str, ModelInterface],
        cell: Cell,
        do: Callable[[CellRun, ModelInterface], None],
    ) -> None:
        """What an engine refuses is kept with the row; one that died takes no further part."""
        if engine not in loaded:
            return
        run = self._bench.run_of(cell.id, engine)
        try:
            do(run, loaded[engine])
        except InputError as error:
            run.refused = str(error)
        except BackendError as error:
            self._bench.engine(engine).error = str(error)
            del loaded[engine]
        self._save()

    def _warm_up(self, cell: Cell, run: CellRun, model: ModelInterface) -> None:
        """The cold round, then rounds until the criterion holds."""
        if cell.workload == "load" or (cell.workload == "users" and cell.concurrency > 1):
            check_arrivals(model.name, model.capabilities(), (0.0, 1.0), 2)  # refused before any work is done
        self._tell(model.name, f"{cell.id}: first requests")
        self._round(cell, run, model, "cold", self._count(run, "cold"))
        figures: list[float] = []
        first = self._count(run, "warm-up")
        for number in range(self._plan.criterion.most):
            self._tell(model.name, f"{cell.id}: warm-up")
            done = self._round(cell, run, model, "warm-up", first + number)
            figure = headline(done)
            if figure is None:
                break  # every request failed: warm-up will not mend that
            figures.append(figure)
            if self._plan.criterion.steady(figures):
                break
        run.steady = self._plan.criterion.steady(figures)

    def _timed(self, cell: Cell, number: int, run: CellRun, model: ModelInterface) -> None:
        self._tell(model.name, f"{cell.id}: round {number + 1} of {self._plan.rounds}")
        if len(self._plan.backends) > 1 and not self._plan.reload:
            # Another engine had the processor: its caches and threads are woken by a request that does not count.
            self._work.settle(model, cell)
        self._round(cell, run, model, "timed", number)
        self._save()

    def _round(self, cell: Cell, run: CellRun, model: ModelInterface, kind: Kind, number: int) -> Round:
        schedule = self._work.of(cell, kind, number, model)
        sampling = self._plan.sampling_of(cell)
        session = max(0, len(self._bench.engine(run.engine).sessions) - 1)
        done = measure_round(model, schedule, sampling, kind=kind, number=number, session=session)
        run.rounds.append(_rounded(done))
        return done

    @staticmethod
    def _count(run: CellRun, kind: Kind) -> int:
        return sum(r.kind == kind for r in run.rounds)

    def _turns(self, number: int) -> tuple[str, ...]:
        """Engines in the order of this round: the one that began the last round ends this one."""
        names = self._plan.backends
        first = number % len(names)
        return (*names[first:], *names[:first])

    def _tell(self, engine: str, what: str) -> None:
        done = sum(len(run.timed()) for run in self._bench.runs)
        self._say(engine, what, done, self._total)


def _most(a: int | None, b: int | None) -> int | None:
    known = [v for v in (a, b) if v is not None]
    return max(known) if known else None


def _rounded(done: Round) -> Round:
    """Token times to the microsecond: what the file keeps is what the figures are made of."""
    requests = tuple(replace(r, token_times_s=tuple(round(t, 6) for t in r.token_times_s)) for r in done.requests)
    return replace(done, requests=requests)
