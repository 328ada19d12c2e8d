"""Two answers token by token, aligned, with the probabilities where they part."""

from __future__ import annotations

import difflib
import math
from dataclasses import dataclass
from typing import Literal

from visavis.compare.html.marks import Mark
from visavis.compare.result import Answer, Cause, Comparison, Difference, Side

__all__ = ["Chip", "Split", "splits_of"]

MOST_SPLITS = 24
MOST_CHIPS = 160
_VISIBLE = str.maketrans({" ": "␣", "\n": "⏎", "\t": "⇥"})


@dataclass(frozen=True, slots=True)
class Chip:
    """`state`: the same on both sides, or on this side alone. `split`: the first difference."""

    text: str
    state: Literal["same", "own"]
    special: bool = False
    split: bool = False


@dataclass(frozen=True, slots=True)
class Chance:
    """One side's probability of one token, in per cent; None where it is not among its best."""

    mark: Mark
    token: str
    own: float | None
    other_token: str
    other: float | None


@dataclass(frozen=True, slots=True)
class Split:
    prompt: str
    kind: str
    why: str
    causes: tuple[Cause, ...]
    position: int | None
    margin: float | None
    rows: tuple[tuple[Mark, list[Chip], int, str], ...]  # chips, tokens left out, the text
    chances: tuple[Chance, ...]


def splits_of(comparison: Comparison, marks: dict[str, Mark]) -> list[Split]:
    """Every difference of every pair, the first `MOST_SPLITS`."""
    by_name = {b.backend: b.first_round() for b in comparison.backends}
    found = []
    for pair in comparison.pairs:
        for d in pair.differences:
            one, two = by_name[pair.first].get(d.prompt), by_name[pair.second].get(d.prompt)
            if one is not None and two is not None:
                found.append(_split(d, (marks[pair.first], one), (marks[pair.second], two)))
    return found[:MOST_SPLITS]


def _split(d: Difference, first: tuple[Mark, Answer], second: tuple[Mark, Answer]) -> Split:
    (mark_one, one), (mark_two, two) = first, second
    rows = _aligned(one, two, d.position)
    chances: list[Chance] = []
    if d.first is not None and d.second is not None and d.first.token_id is not None and d.second.token_id is not None:
        for mark, side, other in ((mark_one, d.first, d.second), (mark_two, d.second, d.first)):
            chances.append(
                Chance(
                    mark,
                    _seen(side.token or ""),
                    _percent(side, own=True),
                    _seen(other.token or ""),
                    _percent(side, own=False),
                )
            )
    return Split(
        prompt=d.prompt,
        kind=d.kind,
        why=d.why,
        causes=d.causes,
        position=d.position,
        margin=d.margin,
        rows=(
            (mark_one, rows[0][:MOST_CHIPS], max(0, len(rows[0]) - MOST_CHIPS), one.text),
            (mark_two, rows[1][:MOST_CHIPS], max(0, len(rows[1]) - MOST_CHIPS), two.text),
        ),
        chances=tuple(chances),
    )


def _aligned(one: Answer, two: Answer, position: int | None) -> tuple[list[Chip], list[Chip]]:
    rows: tuple[list[Chip], list[Chip]] = ([], [])
    matcher = difflib.SequenceMatcher(None, one.token_ids, two.token_ids, autojunk=False)
    for tag, a1, a2, b1, b2 in matcher.get_opcodes():
        state: Literal["same", "own"] = "same" if tag == "equal" else "own"
        for row, answer, start, stop in ((rows[0], one, a1, a2), (rows[1], two, b1, b2)):
            for i in range(start, stop):
                text = answer.tokens[i] if i < len(answer.tokens) else str(answer.token_ids[i])
                special = text.startswith("<|") and text.endswith("|>")
                row.append(Chip(_seen(text), state, special, i == position))
    return rows


def _percent(side: Side, *, own: bool) -> float | None:
    logprob = side.logprob if own else side.logprob_of_other
    return None if logprob is None else round(100 * math.exp(logprob), 2)


def _seen(text: str) -> str:
    return text.translate(_VISIBLE) or "∅"
