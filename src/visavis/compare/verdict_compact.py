"""The verdict on four backends and more: who agrees with whom, and one ranking a figure; not a sentence a pair."""

from __future__ import annotations

from collections.abc import Sequence

from visavis.compare.result import BackendResult, PairResult
from visavis.compare.words import differs, explanations, joined, prompts
from visavis.report.units import duration, rate

__all__ = ["ABOUT_EQUAL", "MANY", "compact"]

MANY = 4
"""From so many backends on a sentence for each pair (6 of them) is too much to read."""
ABOUT_EQUAL = 1.05
"""Times under this factor of each other are called equal."""


def compact(ran: Sequence[BackendResult], pairs: Sequence[PairResult]) -> list[str]:
    """One sentence on the agreement of all, one for each figure of speed."""
    return [*_agreement([b.backend for b in ran], pairs), *_speed(ran)]


def _agreement(names: Sequence[str], pairs: Sequence[PairResult]) -> list[str]:
    """The largest group that gave the same answers, and what each of the others did otherwise than it."""
    by_names = {frozenset((p.first, p.second)): p for p in pairs}

    def same(one: str, two: str) -> bool:
        pair = by_names.get(frozenset((one, two)))
        return one == two or (pair is not None and not pair.differences)

    groups: list[list[str]] = []
    for name in names:
        home = next((group for group in groups if all(same(name, other) for other in group)), None)
        groups.append([name]) if home is None else home.append(name)
    largest = max(groups, key=len)  # of equals the first, where the reference is
    total = max((p.total for p in pairs), default=0)
    every = f"on {'all ' if total > 1 else ''}{prompts(total)}"
    if len(largest) == len(names):
        return [f"{joined(list(names))} all gave the same answers {every}."]
    if len(largest) == 1:
        said = [f"No two of {joined(list(names))} gave the same answers {every}"]
    else:
        said = [f"{joined(largest)} gave the same answers {every}"]
    for name in names:
        pair = by_names.get(frozenset((name, largest[0])))
        if name in largest or pair is None:
            continue
        because = explanations(pair)
        kinds = f"{differs(pair)}{'; ' + because if because else ''}"
        said.append(f"{name} differs from {largest[0]} on {len(pair.differences)} ({kinds})")
    return ["; ".join(said) + "."]


def _speed(ran: Sequence[BackendResult]) -> list[str]:
    return [
        text
        for text in (
            _ranked("Per token", [(b.backend, b.per_token_s) for b in ran], smaller=True),
            _ranked("First token", [(b.backend, b.first_token_s) for b in ran], smaller=True),
            _ranked("Whole answer", [(b.backend, b.answer_s) for b in ran], smaller=True),
            _ranked(
                "Tokens/s, all at once",
                [(b.backend, b.batch.tokens_per_s if b.batch else None) for b in ran],
                smaller=False,
            ),
        )
        if text
    ]


def _ranked(figure: str, values: Sequence[tuple[str, float | None]], *, smaller: bool) -> str:
    """`Per token: native 1.00 ms, vllm 2.00 ms (2.0×), hf 8.00 ms (8.0×).`, the best first. "" for fewer than two."""
    known = sorted(((v, name) for name, v in values if v), key=lambda pair: pair[0] if smaller else -pair[0])
    if len(known) < 2:
        return ""
    best = known[0][0]
    shown = []
    for value, name in known:
        factor = max(value, best) / min(value, best)
        behind = "" if factor < ABOUT_EQUAL else f" ({factor:.1f}×)" if smaller else f" ({1 / factor:.2f}×)"
        shown.append(f"{name} {duration(value) if smaller else rate(value)}{behind}")
    return f"{figure}: {', '.join(shown)}."
