"""Scripted engines on the bundled model's text side: every figure is known beforehand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from visavis.backends.base import EngineRequest, LoadInfo, ModelInterface, Progress, TokenEvent
from visavis.backends.fake import FakeModel, FakeScript
from visavis.backends.options import EngineOptions
from visavis.bench.plan import BenchPlan, sweep
from visavis.bench.prompts import PromptMaker
from visavis.bench.report import FileReport, make_report
from visavis.bench.result import Bench, Cell
from visavis.bench.rows import Row
from visavis.bench.runner import Runner
from visavis.bench.work import Made
from visavis.families import Family, load_family

ANSWER = list(range(20, 500))  # longer than any length asked for, without an end token
PROMPT_TOKENS = 48


class Scripted(FakeModel):
    """A fake engine with moods, counted over all its requests and batches."""

    def __init__(self, name: str, family: Family, **script: Any) -> None:
        self.first_call_s = script.pop("first_call_s", 0.0)  # what its very first batch takes longer
        self.drift = script.pop("drift", 1.0)  # each batch takes so many times the one before
        self.fail_every = script.pop("fail_every", 0)
        self.early_every = script.pop("early_every", 0)  # every nth answer ends after 5 tokens
        self.serial = script.pop("serial", False)  # answers one after the other
        self.die_in_batch = script.pop("die_in_batch", -1)
        self.interrupt_in_batch = script.pop("interrupt_in_batch", -1)
        self.dtype = script.pop("dtype", "float32")
        self.settings = script.pop("settings", {})
        super().__init__(FakeScript(**{"answers": ANSWER, **script}), family=family, name=name)
        self.pace = self.script
        self.count = 0

    def _load(self, options: EngineOptions, progress: Progress) -> LoadInfo:
        return replace(super()._load(options, progress), dtype=self.dtype, settings=self.settings)

    def _run(self, requests: Sequence[EngineRequest]) -> Iterator[TokenEvent]:
        number = len(self.batches)
        if number == self.interrupt_in_batch:
            raise KeyboardInterrupt
        factor = self.drift**number
        fail = {}
        answers: list[list[int]] = []
        for place in range(len(requests)):
            self.count += 1
            if self.fail_every and self.count % self.fail_every == 0:
                fail[place] = "out of luck"
            early = self.early_every and self.count % self.early_every == 0
            answers.append(ANSWER[:5] if early else ANSWER)
        self.script = replace(
            self.pace,
            answers=answers,
            fail=fail,
            first_token_s=self.pace.first_token_s * factor,
            per_token_s=self.pace.per_token_s * factor,
            queue_s=self.first_call_s if number == 0 else 0.0,
            fail_after=0 if number == self.die_in_batch else None,
        )
        if not self.serial:
            yield from super()._run(requests)
            return
        start = self.clock()
        for request in sorted(requests, key=lambda r: r.arrival_s):
            passed = self.clock() - start
            yield from super()._run([replace(request, arrival_s=max(0.0, request.arrival_s - passed))])


@dataclass
class Rig:
    """Runs a bench on scripted engines in this process."""

    family: Family
    engines: dict[str, Scripted] = field(default_factory=dict)
    said: list[tuple[str, str]] = field(default_factory=list)
    saves: int = 0

    def add(self, name: str, **script: Any) -> Scripted:
        engine = Scripted(name, self.family, **{"first_token_s": 0.2, "per_token_s": 0.02, **script})
        self.engines[name] = engine
        return engine

    def plan(self, **changes: Any) -> BenchPlan:
        return BenchPlan(**{"backends": tuple(self.engines), "rounds": 3, "latency_requests": 2, **changes})

    def cells(self, workload: str = "latency", **axes: Any) -> tuple[Cell, ...]:
        usual: dict[str, Any] = {
            "images": (None,),
            "prompt_tokens": (PROMPT_TOKENS,),
            "output_tokens": (16,),
            "concurrency": (4,),
            "rates": (1.0,),
        }
        return sweep(workloads=(workload,), **{**usual, **axes})  # type: ignore[arg-type]

    def new(self, plan: BenchPlan, cells: tuple[Cell, ...]) -> Bench:
        return Bench(
            model="tiny-screen",
            visavis_version="0",
            started="2026-01-01T00:00:00+00:00",
            command=("visavis", "bench"),
            machine={
                "cpu": "a cpu", "cores": 2, "load_average": 0.1, "memory_bytes": None, "gpus": [], "system": "Linux 6",
                "python": "3.11", "packages": {}, "environment": {},
            },
            config={**plan.as_dict(), "cache": plan.cache(cells[0])},
            cells=cells,
        )  # fmt: skip

    def open(self, name: str, progress: Progress) -> AbstractContextManager[ModelInterface]:
        return self.engines[name].load(None, EngineOptions(), progress)

    def run(
        self, plan: BenchPlan | None = None, cells: tuple[Cell, ...] | None = None, bench: Bench | None = None
    ) -> Bench:
        plan, cells = plan or self.plan(), cells or self.cells()
        bench = bench or self.new(plan, cells)

        def save() -> None:
            self.saves += 1

        work = Made(plan, PromptMaker(self.family, plan.seed))
        say = lambda engine, what, done, total: self.said.append((engine, what))  # noqa: E731
        Runner(plan, cells, work, bench, self.open, save, say).run()
        return bench


def file_of(bench: Bench) -> FileReport:
    return make_report([("a.json", bench)]).files[0]


def only_row(bench: Bench) -> Row:
    (row,) = file_of(bench).rows
    return row


@pytest.fixture(scope="session")
def family() -> Family:
    return load_family(None)


@pytest.fixture
def rig(family: Family) -> Rig:
    return Rig(family)
