"""Percentiles, quartiles, and whether a change is more than noise. Plain Python: the samples are small."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

__all__ = ["BOOTSTRAPS", "FEWEST_ROUNDS", "Change", "Spread", "compare_rounds", "percentile", "spread"]

BOOTSTRAPS = 2000
FEWEST_ROUNDS = 3
"""Rounds on either side without which no change is called one."""


def percentile(values: Sequence[float], p: float) -> float:
    """Nearest rank: the smallest value with at least p % of all at or below it, so always one that was measured."""
    ranked = sorted(values)
    return ranked[max(0, math.ceil(p / 100 * len(ranked)) - 1)]


@dataclass(frozen=True, slots=True)
class Spread:
    """Of one figure: over all requests of all timed rounds, and how its median moved from round to round.

    `rounds` holds one figure per round; `low` and `high` are their quartiles (the extremes below 4 rounds).
    """

    median: float
    p90: float
    p99: float
    n: int
    rounds: tuple[float, ...]
    low: float
    high: float


def spread(pooled: Sequence[float], rounds: Sequence[float]) -> Spread | None:
    """None where nothing was measured."""
    if not pooled or not rounds:
        return None
    low, high = quartiles(rounds)
    return Spread(median(pooled), percentile(pooled, 90), percentile(pooled, 99), len(pooled), tuple(rounds), low, high)


def quartiles(values: Sequence[float]) -> tuple[float, float]:
    """First and third quartile, interpolated between ranks; the extremes of fewer than 4 values."""
    ranked = sorted(values)
    if len(ranked) < 4:
        return ranked[0], ranked[-1]
    return _at(ranked, 0.25), _at(ranked, 0.75)


def _at(ranked: Sequence[float], share: float) -> float:
    place = share * (len(ranked) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ranked) - 1)
    return ranked[below] + (ranked[above] - ranked[below]) * (place - below)


@dataclass(frozen=True, slots=True)
class Change:
    """`ratio` is new / old of the rounds' medians, `low` to `high` its 95 % bootstrap interval."""

    ratio: float
    low: float
    high: float
    enough: bool  # rounds on both sides
    real: bool  # see `compare_rounds`


def compare_rounds(old: Sequence[float], new: Sequence[float], seed: int = 0) -> Change | None:
    """Whether `new` differs from `old` by more than noise; each value is one round's figure.

    A change is real when both hold: the 95 % interval of the ratio of medians, by drawing rounds with replacement
    BOOTSTRAPS times, leaves out 1; and the quartile ranges of the two sides do not overlap. The second guards the
    first, which is too sure of itself with few rounds. With fewer than FEWEST_ROUNDS on a side nothing is called real.
    None where a side has nothing, or a median of 0.
    """
    if not old or not new or median(old) <= 0 or median(new) <= 0:
        return None
    draw = random.Random(seed)
    ratios = []
    for _ in range(BOOTSTRAPS):
        before = median(draw.choices(old, k=len(old)))
        after = median(draw.choices(new, k=len(new)))
        ratios.append(after / before if before > 0 else math.inf)
    low, high = percentile(ratios, 2.5), percentile(ratios, 97.5)
    (old_low, old_high), (new_low, new_high) = quartiles(old), quartiles(new)
    apart = new_low > old_high or new_high < old_low
    enough = min(len(old), len(new)) >= FEWEST_ROUNDS
    return Change(median(new) / median(old), low, high, enough, enough and apart and not low <= 1 <= high)
