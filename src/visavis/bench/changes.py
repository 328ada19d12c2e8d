"""A new result against an old one: ratios with their spread, and whether they are more than noise."""

from __future__ import annotations

from dataclasses import dataclass, field

from visavis.bench.comparable import between_files, differences
from visavis.bench.result import Bench
from visavis.bench.rows import Row, make_rows
from visavis.bench.stats import BOOTSTRAPS, FEWEST_ROUNDS, Change, compare_rounds

__all__ = ["COMPARED", "TEST_IN_WORDS", "Against", "FigureChange", "RowChange", "against"]

COMPARED = (("ttft", False), ("tpot", False), ("e2e", False), ("tokens_per_s", True), ("goodput", True))
"""Figures set against each other, and whether more is better."""
TEST_IN_WORDS = (
    f"a change counts when the 95 % bootstrap interval of the ratio of medians over rounds ({BOOTSTRAPS} "
    "draws) leaves "
    f"out 1 and the quartile ranges of old and new do not overlap; below {FEWEST_ROUNDS} rounds on a side "
    "nothing counts"
)


@dataclass(frozen=True, slots=True)
class FigureChange:
    name: str
    old: float
    new: float
    change: Change
    more_is_better: bool

    @property
    def verdict(self) -> str:
        """ "1.25× faster", "inside the noise" or "too few rounds to tell"."""
        if not self.change.enough:
            return "too few rounds to tell"
        if not self.change.real:
            return "inside the noise"
        better = (self.change.ratio > 1) == self.more_is_better
        factor = self.change.ratio if self.change.ratio >= 1 else 1 / self.change.ratio
        return f"{factor:.3g}× {'faster' if better else 'slower'}"


@dataclass(frozen=True, slots=True)
class RowChange:
    row: Row
    not_comparable: tuple[str, ...]  # reasons; the figures are then shown, but nothing is concluded
    figures: tuple[FigureChange, ...]


@dataclass(frozen=True, slots=True)
class Against:
    """Everything of a new result that an old one has too."""

    old_name: str
    new_name: str
    not_comparable: tuple[str, ...]  # of the two runs as a whole
    rows: tuple[RowChange, ...]
    only_new: tuple[str, ...] = field(default=())
    only_old: tuple[str, ...] = field(default=())


def against(old: Bench, new: Bench, old_name: str, new_name: str = "the new result") -> Against:
    """Rows are the same when cell and engine are. Void rows are left out on both sides."""
    before = {(row.cell.id, row.engine.engine): row for row in make_rows(old) if not row.void}
    after = {(row.cell.id, row.engine.engine): row for row in make_rows(new) if not row.void}
    rows = []
    for key, row in after.items():
        if key not in before:
            continue
        found = []
        for name, more_is_better in COMPARED:
            one, other = before[key].figures.get(name), row.figures.get(name)
            if one is None or other is None:
                continue
            change = compare_rounds(one.rounds, other.rounds)
            if change is not None:
                found.append(FigureChange(name, one.median, other.median, change, more_is_better))
        rows.append(RowChange(row, tuple(differences(before[key], old, row, new)), tuple(found)))
    return Against(
        old_name,
        new_name,
        tuple(between_files(old, new)),
        tuple(rows),
        tuple(f"{engine}: {cell}" for cell, engine in after if (cell, engine) not in before),
        tuple(f"{engine}: {cell}" for cell, engine in before if (cell, engine) not in after),
    )
