"""Speed by phase as bars: one panel a phase, one bar a backend; every measurement a dot, the middle half a whisker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from visavis.compare.html.marks import Mark
from visavis.compare.result import BackendResult, Comparison
from visavis.compare.times import phases_of
from visavis.report.units import duration

__all__ = ["Bar", "Panel", "panels_of"]

MOST_DOTS = 60
_ROOM = 96.0  # per cent of the width that the longest value takes


@dataclass(frozen=True, slots=True)
class Bar:
    """Lengths in per cent of the panel's width."""

    mark: Mark
    value: str
    length: float
    parts: tuple[tuple[float, float, str], ...] = ()  # of a load: start, length, phase
    detail: str = ""  # the parts in words
    spread: tuple[float, float] | None = None
    spread_words: str = ""
    dots: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Panel:
    title: str
    note: str
    bars: list[Bar] = field(default_factory=list)

    @property
    def words(self) -> str:
        """For those who do not see it."""
        return f"{self.title}: " + "; ".join(
            f"{b.mark.name} {b.value}{f' ({b.spread_words})' if b.spread_words else ''}" for b in self.bars
        )


def panels_of(comparison: Comparison, marks: dict[str, Mark]) -> list[Panel]:
    """Load, warm-up, first token, time per token; phases nobody has are left out."""
    ran = [b for b in comparison.backends if b.error is None]
    panels = [_load(ran, marks)]
    panels.append(_plain("warm-up", "the first request, image included", ran, [b.warm_up_s for b in ran], marks))
    for title, note, values, spreads, every in (
        (
            "first token",
            "from submission, one prompt at a time; median",
            [b.first_token_s for b in ran],
            [b.first_token_spread_s for b in ran],
            [[a.first_token_s for a in b.answers if a.first_token_s is not None] for b in ran],
        ),
        (
            "per token",
            "after the first, one prompt at a time; median",
            [b.per_token_s for b in ran],
            [b.per_token_spread_s for b in ran],
            [[a.per_token_s for a in b.answers if a.per_token_s is not None] for b in ran],
        ),
    ):
        panels.append(_measured(title, note, ran, values, spreads, every, marks))
    return [panel for panel in panels if panel.bars]


def _load(ran: Sequence[BackendResult], marks: dict[str, Mark]) -> Panel:
    longest = max((b.load_s or 0.0 for b in ran), default=0.0)
    panel = Panel("load", "from the start of the process until it takes requests")
    for b in ran:
        if b.load_s is None or not longest:
            continue
        phases = {k: v for k, v in phases_of(b).items() if k not in ("warm-up", "answer")}
        at, parts = 0.0, []
        for name, seconds in phases.items():
            length = _percent(seconds, longest)
            parts.append((at, length, f"{name} {duration(seconds)}"))
            at += length
        detail = " · ".join(f"{name} {duration(s)}" for name, s in phases.items())
        panel.bars.append(Bar(marks[b.backend], duration(b.load_s), at, tuple(parts), detail))
    return panel


def _plain(
    title: str, note: str, ran: Sequence[BackendResult], values: Sequence[float | None], marks: dict[str, Mark]
) -> Panel:
    longest = max((v for v in values if v), default=0.0)
    panel = Panel(title, note)
    for b, value in zip(ran, values, strict=True):
        if value and longest:
            panel.bars.append(Bar(marks[b.backend], duration(value), _percent(value, longest)))
    return panel


def _measured(
    title: str,
    note: str,
    ran: Sequence[BackendResult],
    values: Sequence[float | None],
    spreads: Sequence[tuple[float, float] | None],
    every: Sequence[Sequence[float]],
    marks: dict[str, Mark],
) -> Panel:
    longest = max((v for measured in every for v in measured), default=0.0)
    panel = Panel(title, f"{note}; each measurement a dot, the line the middle half")
    for b, value, spread, measured in zip(ran, values, spreads, every, strict=True):
        if value is None or not longest:
            continue
        panel.bars.append(
            Bar(
                marks[b.backend],
                duration(value),
                _percent(value, longest),
                spread=None if spread is None else (_percent(spread[0], longest), _percent(spread[1], longest)),
                spread_words="" if spread is None else f"{duration(spread[0])} – {duration(spread[1])}",
                dots=tuple(_percent(v, longest) for v in measured[:MOST_DOTS]),
            )
        )
    return panel


def _percent(value: float, longest: float) -> float:
    return round(_ROOM * value / longest, 2)
