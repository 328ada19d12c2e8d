"""Whether two answers are the same tokens, and if not, whether the first difference is a near tie.

The law. float32 on both sides: a difference is a tie where the reference's own two best tokens are closer than 1e-4.
Anything less exact: a near tie where each side's token is among the other's five best and neither side prefers its own
by more than 0.5 nat. All else is a real disagreement. Nothing is dropped: each difference is counted as what it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from visavis.completion import TokenLogprobs

__all__ = ["BF16_GAP", "FLOAT32_GAP", "TOP_K", "Judgement", "Kind", "first_difference", "judge"]

FLOAT32_GAP = 1e-4
"""Difference of the two best logits (equal to that of their log-probabilities) under which float32 is a tie."""
BF16_GAP = 0.5
"""Nats."""
TOP_K = 5

Kind = Literal["settings", "near tie", "real", "length", "text", "unknown", "failed"]
"""`settings`: re-runs show that settings which differ explain all of it. `text`: the same tokens, another text.
`length`: one answer is the beginning of the other. `unknown`: an engine gives no log-probabilities.
`failed`: one side has no answer."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """What the first difference is. `margin`: nats by which the side that is surer of its token prefers it."""

    kind: Kind
    why: str
    margin: float | None = None


def first_difference(first: Sequence[int], second: Sequence[int]) -> int | None:
    """The first position where two answers differ; None where they are equal. An end counts as a token."""
    for position, (a, b) in enumerate(zip(first, second, strict=False)):
        if a != b:
            return position
    return None if len(first) == len(second) else min(len(first), len(second))


def judge(
    first: TokenLogprobs | None, second: TokenLogprobs | None, *, float32: bool, reference: Literal["first", "second"]
) -> Judgement:
    """Tie or not, from each side's log-probabilities at the position where their tokens part.

    `float32`: both sides computed in it. `reference`: whose two best tokens decide then.
    """
    if first is None or second is None:
        side = "first" if first is None else "second"
        return Judgement("unknown", f"the {side} engine gives no log-probabilities, so a near tie cannot be told")
    margins = (preference(first, second.token_id), preference(second, first.token_id))
    seen = [m for m in margins if m is not None]
    margin = max(seen) if seen else None
    if float32:
        gap = top_gap(first if reference == "first" else second)
        if gap is None:
            return Judgement("unknown", f"the {reference} engine gives fewer than two log-probabilities", margin)
        if gap < FLOAT32_GAP:
            return Judgement("near tie", f"float32, the two best tokens are {gap:.1e} apart (a tie is < 1e-4)", margin)
        return Judgement("real", f"float32, the two best tokens are {gap:.2g} nat apart (a tie is < 1e-4)", margin)
    if len(seen) < 2:
        which = "neither token is" if not seen else "one token is not"
        return Judgement("real", f"{which} among the other engine's {TOP_K} best", margin)
    if max(seen) <= BF16_GAP:
        return Judgement("near tie", f"both tokens within {max(seen):.2g} nat on both sides (a tie is ≤ 0.5)", margin)
    return Judgement("real", f"one side prefers its token by {max(seen):.2g} nat (a tie is ≤ 0.5)", margin)


def preference(side: TokenLogprobs, other_token: int) -> float | None:
    """Nats by which a side prefers its own token over `other_token`; None when that is not among its best."""
    other = logprob_of(side, other_token)
    return None if other is None else side.logprob - other


def logprob_of(side: TokenLogprobs, token_id: int) -> float | None:
    """A side's log-probability of a token, if it is its own or among its `TOP_K` best."""
    if token_id == side.token_id:
        return side.logprob
    return dict(side.top[:TOP_K]).get(token_id)


def top_gap(side: TokenLogprobs) -> float | None:
    """Nats between a side's two best tokens."""
    if len(side.top) < 2:
        return None
    return side.top[0][1] - side.top[1][1]
