"""The requests of each round: made to measure, or those of a file. Equal for every engine of a round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Protocol

from visavis.backends.base import ModelInterface
from visavis.bench.plan import BenchPlan, poisson
from visavis.bench.prompts import PromptMaker
from visavis.bench.result import Cell, Kind
from visavis.errors import ContextLengthError
from visavis.prompt import Prompt

__all__ = ["Given", "Made", "Schedule", "Work"]

_SETTLE_TOKENS = 4
_WARM_UP_BATCH = 8
_KEPT_ROUNDS = 3  # the one being measured and those that settle engines


@dataclass(frozen=True, slots=True)
class Schedule:
    """Waves of requests, one after the other. Of a single wave: when each comes (seconds), or how many users share it,
    each of whom asks again when answered."""

    waves: tuple[tuple[Prompt, ...], ...]
    arrivals: Sequence[float] | None = None
    users: int | None = None


class Work(Protocol):
    """Where requests come from."""

    def of(self, cell: Cell, kind: Kind, number: int, model: ModelInterface) -> Schedule:
        """The requests of a round. Raises ContextLengthError."""
        ...

    def settle(self, model: ModelInterface, cell: Cell) -> None:
        """A short request like those of the cell, not measured."""
        ...


class Base:
    """What both share: how the prompts of a round are laid out in time."""

    def __init__(self, plan: BenchPlan) -> None:
        self._plan = plan
        self._settled = count()
        self._kept: dict[tuple[str, str, int, int], tuple[Prompt, ...]] = {}

    def of(self, cell: Cell, kind: Kind, number: int, model: ModelInterface) -> Schedule:
        if cell.workload == "load" and kind == "timed":
            assert cell.rate is not None
            prompts = self._prompts(cell, kind, number, self._plan.load_requests)
            # Every rate has its own draw: the same gaps, only closer, would repeat one accident at each rate.
            arrivals = poisson(cell.rate, len(prompts), f"{self._plan.seed}/{cell.id}/{number}")
            _check_room(model.name, prompts, cell, _context(model))
            return Schedule((prompts,), arrivals)
        if cell.workload == "users" and kind == "timed":
            prompts = self._prompts(cell, kind, number, self._plan.requests_of_users(cell.concurrency))
            _check_room(model.name, prompts, cell, _context(model))
            return Schedule((prompts,), users=cell.concurrency)
        requests, together = self._layout(cell, kind)
        prompts = self._prompts(cell, kind, number, requests)
        _check_room(model.name, prompts, cell, _context(model))
        return Schedule(tuple(prompts[i : i + together] for i in range(0, len(prompts), together)))

    def settle(self, model: ModelInterface, cell: Cell) -> None:
        prompts = self._prompts(cell, "settle", next(self._settled), 1)[:1]
        tokens = min(cell.output_tokens, _SETTLE_TOKENS)
        model.complete(prompts, replace(self._plan.sampling_of(cell), max_tokens=tokens))

    def check(self, cells: Sequence[Cell], context: int) -> None:
        """Refuses what no engine could do, before one is started. Raises ContextLengthError, OptionError."""
        for cell in cells:
            for prompt in self._samples(cell):
                _check_room("the model", [prompt], cell, context)

    def _samples(self, cell: Cell) -> tuple[Prompt, ...]:
        """Prompts as long as any of the cell's."""
        raise NotImplementedError

    def _layout(self, cell: Cell, kind: Kind) -> tuple[int, int]:
        """How many requests, and how many of them together."""
        if cell.workload == "latency":
            return (1 if kind == "cold" else self._plan.latency_requests), 1
        if cell.workload == "load":
            together = min(_WARM_UP_BATCH, self._plan.load_requests)
            return together, together
        return cell.concurrency, cell.concurrency

    def _prompts(self, cell: Cell, kind: str, number: int, count: int) -> tuple[Prompt, ...]:
        """Made once for all engines of the round."""
        key = (cell.id, kind, number, count)
        if key not in self._kept:
            if len(self._kept) == _KEPT_ROUNDS:
                del self._kept[next(iter(self._kept))]
            self._kept[key] = self._make(cell, kind, number, count)
        return self._kept[key]

    def _make(self, cell: Cell, kind: str, number: int, count: int) -> tuple[Prompt, ...]:
        raise NotImplementedError


class Made(Base):
    """Prompts of exact lengths; no two alike unless the plan repeats them."""

    def __init__(self, plan: BenchPlan, maker: PromptMaker) -> None:
        super().__init__(plan)
        self._maker = maker

    def _make(self, cell: Cell, kind: str, number: int, count: int) -> tuple[Prompt, ...]:
        assert cell.prompt_tokens is not None
        place = "" if self._plan.repeat_prompts else f"{kind}/{number}/"
        return tuple(self._maker.make(f"{cell.id}/{place}{i}", cell.prompt_tokens, cell.image) for i in range(count))

    def _samples(self, cell: Cell) -> tuple[Prompt, ...]:
        return self._make(cell, "cold", -1, 1)


class Given(Base):
    """The prompts of a file, all of them in every round, in their order; so they repeat from round to round."""

    def __init__(self, plan: BenchPlan, prompts: Sequence[Prompt]) -> None:
        super().__init__(plan)
        self._given = tuple(prompts)

    def _layout(self, cell: Cell, kind: Kind) -> tuple[int, int]:
        _, together = super()._layout(cell, kind)
        whole = len(self._given)
        if cell.workload == "latency":
            return (1 if kind == "cold" else whole), 1
        return max(whole, together), together

    def _make(self, cell: Cell, kind: str, number: int, count: int) -> tuple[Prompt, ...]:
        return tuple(self._given[i % len(self._given)] for i in range(count))

    def _samples(self, cell: Cell) -> tuple[Prompt, ...]:
        return self._given


def _context(model: ModelInterface) -> int:
    return model.info.max_model_len if model.info is not None else 0


def _check_room(who: str, prompts: Sequence[Prompt], cell: Cell, context: int) -> None:
    """Else the answer would be cut short and the row be void for no fault of the engine."""
    longest = max(len(p) for p in prompts)
    if longest + cell.output_tokens > context:
        raise ContextLengthError(
            f"{who}: a prompt of {longest} tokens and {cell.output_tokens} of answer do not fit the context of "
            f"{context}; lower --output-tokens, --prompt-tokens or --image-size, or raise --max-model-len"
        )
