"""Fake engines on the bundled model's text side; their clocks are scripted, so every figure is known beforehand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import pytest

from visavis.backends.base import EngineRequest, ModelInterface, Progress, TokenEvent
from visavis.backends.fake import FakeModel, FakeScript
from visavis.backends.options import EngineOptions
from visavis.compare.cases import Case
from visavis.compare.result import Comparison, Expected
from visavis.compare.runner import Plan, compare
from visavis.compare.setups import Setup, make_setup, options_of
from visavis.completion import TokenLogprobs
from visavis.families import Family, load_family
from visavis.sampling import SamplingParams

Rule = Callable[[EngineRequest, "Scripted"], Sequence[int]]
"""The answer's ids, by what was asked and how the engine was loaded."""


class Scripted(FakeModel):
    """A fake engine that also has scripted log-probabilities: token → its position's best tokens."""

    def __init__(
        self, name: str, family: Family, tops: Mapping[int, Sequence[tuple[int, float]]], **script: Any
    ) -> None:
        super().__init__(FakeScript(**script), family=family, name=name)
        self.tops = tops
        self.dtype = "float32"
        self.marks: tuple[str, ...] = ()
        self.rule: Rule | None = None  # instead of the script's answers
        self.counted: int | None = None  # prompt tokens it says it saw
        self.gives_ids = True  # False: text alone, as some servers do
        self.loads: list[EngineOptions] = []

    def _load(self, options: EngineOptions, progress: Progress) -> Any:
        self.loads.append(options)
        if len(self.loads) == 1:
            self.scripted = self.script
        self.script = self.scripted  # what an earlier load was told in `extra` is forgotten
        dtype = self.dtype if options.dtype == "auto" else options.dtype
        return replace(super()._load(options, progress), dtype=dtype, marks=self.marks)

    def _answer(self, place: int, request: EngineRequest) -> list[int]:
        return super()._answer(place, request) if self.rule is None else list(self.rule(request, self))

    def _run(self, requests: Sequence[EngineRequest]) -> Iterator[TokenEvent]:
        for event in super()._run(requests):
            if event.finish_reason is not None and self.counted is not None:
                event = replace(event, usage=(self.counted, None))
            if not self.gives_ids:
                yield replace(event, text=self._family().tokenizer.decode(event.token_ids), token_ids=(), logprobs=())
                continue
            if not event.logprobs:
                yield event
                continue
            seen = []
            for entry in event.logprobs:
                top = tuple(self.tops.get(entry.token_id, ((entry.token_id, -0.01), (0, -9.0))))
                seen.append(TokenLogprobs(entry.token_id, dict(top)[entry.token_id], top))
            yield replace(event, logprobs=tuple(seen))


@pytest.fixture(scope="session")
def family() -> Family:
    return load_family(None)


@pytest.fixture
def cases(family: Family) -> list[Case]:
    questions = {"a": "say alpha", "b": "say beta", "c": "say gamma"}
    return [
        Case(name, text, family.prepare_messages([{"role": "user", "content": text}]), Expected(text="Settings"))
        for name, text in questions.items()
    ]


class Bench:
    """Runs `compare` on fake engines, keeping them to look at."""

    def __init__(self, family: Family, cases: list[Case]) -> None:
        self.family, self.cases = family, cases
        self.engines: dict[str, Scripted] = {}
        self.said: list[tuple[str, str]] = []

    def add(
        self,
        name: str,
        *,
        tops: Mapping[int, Any] | None = None,
        dtype: str = "float32",
        rule: Rule | None = None,
        **script: Any,
    ) -> Scripted:
        self.engines[name] = Scripted(name, self.family, tops or {}, **script)
        self.engines[name].dtype = dtype
        self.engines[name].rule = rule
        return self.engines[name]

    def ids(self, text: str) -> list[int]:
        return self.family.tokenizer.encode(text, allow_special=True)

    def open(
        self, setup: Setup, engine: Mapping[str, Any], progress: Progress
    ) -> AbstractContextManager[ModelInterface]:
        model = self.engines[setup.name]
        model.use_generation_config = setup.generation_config
        return model.load(None, options_of(EngineOptions(warmup=False), engine), progress)

    def run(self, **plan: Any) -> Comparison:
        """`own`: {backend: {setting: value}}; `backend`: what all of them are."""
        sampling = plan.setdefault("sampling", SamplingParams(max_tokens=32))
        own, backend = plan.pop("own", {}), plan.pop("backend", None)
        setups = tuple(make_setup(name, backend or name, own.get(name, {}), sampling) for name in self.engines)
        return compare(
            Plan(model="tiny-screen", setups=setups, **plan),
            self.cases,
            self.open,
            lambda backend, what, done, total: self.said.append((backend, what)),
        )


@pytest.fixture
def bench(family: Family, cases: list[Case]) -> Bench:
    return Bench(family, cases)
