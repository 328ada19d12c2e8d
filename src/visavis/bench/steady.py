"""When an engine is warm: the stated criterion."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from visavis.bench.result import Round

__all__ = ["Criterion", "headline"]


@dataclass(frozen=True, slots=True)
class Criterion:
    """Steady: the last `window` warm-up rounds are within `within` of each other (slowest / fastest − 1).

    After `most` rounds without that the row is measured all the same and marked "not steady".
    """

    window: int = 3
    within: float = 0.1
    most: int = 10

    def steady(self, figures: Sequence[float]) -> bool:
        """`figures`: seconds a token of each warm-up round, in order."""
        last = figures[-self.window :]
        return len(last) == self.window and min(last) > 0 and max(last) / min(last) - 1 <= self.within

    def in_words(self) -> str:
        return (
            f"steady = seconds a token of the last {self.window} warm-up rounds within {self.within:.0%} of each "
            f"other, at most {self.most} rounds; the cold round does not count"
        )


def headline(done: Round) -> float | None:
    """Seconds a token of one round; None when it generated nothing."""
    tokens = sum(r.tokens for r in done.requests if r.error is None)
    return done.seconds / tokens if tokens else None
