"""Why the times differ, in words: what each start costs, what a question costs, and when a longer start pays back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations

from visavis.compare.result import BackendResult
from visavis.report.units import duration

__all__ = ["from_nothing_s", "overlap", "phases_of", "start_s", "times_in_words"]

SMALL = 0.1
"""Seconds below which a phase of a start is not worth a word, unless nothing else is."""


def times_in_words(backends: Sequence[BackendResult]) -> list[str]:
    """A sentence for each backend that ran, then one for each two of them."""
    ran = [b for b in backends if b.error is None and b.load_s is not None and b.answer_s]
    return [_alone(b) for b in ran] + [_pair(one, two) for one, two in combinations(ran, 2)]


def phases_of(backend: BackendResult) -> dict[str, float]:
    """Seconds by phase, from the start of the process to the first answer of a question of this kind, in order.

    What the load took beyond its own phases is `other`; `answer` is the median answer.
    """
    phases = {name: seconds for name, seconds in backend.phases_s.items() if seconds > 0}
    known = sum(phases.values())
    if backend.load_s is not None and backend.load_s - known > SMALL:
        phases["other"] = backend.load_s - known
    if backend.warm_up_s:
        phases["warm-up"] = phases.get("warm-up", 0.0) + backend.warm_up_s
    if backend.answer_s:
        phases["answer"] = backend.answer_s
    return phases


def _alone(b: BackendResult) -> str:
    phases = phases_of(b)
    answer = phases.pop("answer")
    named = {name: s for name, s in phases.items() if s >= SMALL}
    rest = sum(phases.values()) - sum(named.values())
    parts = [f"{name} {_short(seconds)}" for name, seconds in named.items()]
    if rest >= SMALL / 10:
        parts.append(f"the rest {_short(rest)}")
    total = sum(phases.values()) + answer
    return f"{b.backend}: {duration(total)} = {' + '.join([*parts, f'{duration(answer)} of answering'])}"


def _pair(one: BackendResult, two: BackendResult) -> str:
    later, sooner = (one, two) if start_s(one) > start_s(two) else (two, one)
    extra = start_s(later) - start_s(sooner)
    said = f"{later.backend} against {sooner.backend}: its start takes {duration(extra)} longer"
    if later.per_token_s and sooner.per_token_s:
        said += f"; per token {duration(later.per_token_s)} against {duration(sooner.per_token_s)}"
        if overlap(later.per_token_spread_s, sooner.per_token_spread_s):
            said += " (inside the noise: their middle halves overlap)"
    gain = (sooner.answer_s or 0.0) - (later.answer_s or 0.0)
    if gain <= 0:
        less = f"{duration(-gain)} less" if gain < 0 else "as long"
        return f"{said}; for questions of this kind {sooner.backend} stays ahead, as its answers take {less}"
    questions = math.ceil(extra / gain)
    noun = "question" if questions == 1 else "questions"
    return f"{said}; it pays back after {questions:,} {noun} of this kind ({duration(gain)} saved on each)"


def start_s(b: BackendResult) -> float:
    """Seconds before the first question of a warm engine."""
    return from_nothing_s(b) - (b.answer_s or 0.0)


def from_nothing_s(b: BackendResult) -> float:
    """Seconds from the start of the process to the first answer of a question of this kind."""
    return sum(phases_of(b).values())


def overlap(one: tuple[float, float] | None, two: tuple[float, float] | None) -> bool:
    """Whether the middle halves of two measurements overlap: their difference is then inside the noise."""
    return one is not None and two is not None and one[0] <= two[1] and two[0] <= one[1]


def _short(seconds: float) -> str:
    """As people say it in a sum: `3.1`, `20`; the unit is the total's, seconds."""
    return f"{seconds:.0f}" if seconds >= 9.95 else f"{seconds:.1f}" if seconds >= 0.05 else f"{seconds:.2f}"
