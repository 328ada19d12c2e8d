"""Inline SVG charts. Sized for a phone and scaled up on a desk; colours come from the page's style (`series-0` …), and
nothing is said by colour alone: every series has its own marker or number, and values are written out."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

__all__ = ["SERIES", "WIDTH", "Bar", "Line", "Segment", "Stack", "bars", "lines", "marker", "stacks", "svg", "text"]

SERIES = 6
"""Colours of the page's style; more series begin again, with other markers."""
WIDTH = 380
_TEXT = 11
_SHAPES = ("circle", "square", "triangle", "diamond", "cross", "ring", "down", "plus")
_DASHES = ("", "7 3", "2 3", "9 3 2 3", "4 2", "1 2")

Format = Callable[[float], str]


@dataclass(frozen=True, slots=True)
class Bar:
    """A value with its spread. `series` is the number of its colour and marker; `note` stands behind the value."""

    label: str
    value: float
    low: float
    high: float
    series: int
    note: str = ""


@dataclass(frozen=True, slots=True)
class Line:
    """Points (x, y, low, high) of one series, in the order of x."""

    label: str
    points: Sequence[tuple[float, float, float, float]]
    series: int


@dataclass(frozen=True, slots=True)
class Segment:
    label: str
    value: float


@dataclass(frozen=True, slots=True)
class Stack:
    """One bar of parts laid end to end. `total` is what is said of it, where that is not their sum."""

    label: str
    segments: Sequence[Segment]
    total: float | None = None


def bars(title: str, rows: Sequence[Bar], fmt: Format) -> str:
    """Horizontal bars from 0, whiskers over the spread, the value in words. "" without rows."""
    if not rows:
        return ""
    top = max(max(row.high, row.value) for row in rows) or 1.0
    height = len(rows) * 34 + 4
    parts = []
    for i, row in enumerate(rows):
        y = i * 34 + 2
        length, low, high = (v / top * (WIDTH - 10) for v in (row.value, row.low, row.high))
        middle = y + 23
        parts.append(f'<g class="series-{row.series % SERIES}">')
        parts.append(marker(row.series, 6, y + 8))
        parts.append(text(16, y + 12, row.label))
        note = f" {row.note}" if row.note else ""
        parts.append(text(WIDTH, y + 12, f"{fmt(row.value)}{note}", anchor="end", cls="value"))
        parts.append(f'<rect class="fill" x="0" y="{y + 17}" width="{max(1.0, length):.1f}" height="12" rx="2"/>')
        if high > low:
            parts.append(
                f'<path class="whisker" d="M{low:.1f} {middle}H{high:.1f}M{low:.1f} {middle - 4}v8'
                f'M{high:.1f} {middle - 4}v8"/>'
            )
        parts.append("</g>")
    said = "; ".join(f"{row.label} {fmt(row.value)} ({fmt(row.low)} to {fmt(row.high)})" for row in rows)
    return svg(title, said, height, parts)


def lines(title: str, series: Sequence[Line], fmt: Format, *, x_label: str, x_fmt: Format) -> str:
    """Lines over a sweep, with a bar of spread at each point; x is logarithmic where it spans a factor of 8 or more.
    "" where no series has two points."""
    points = [p for line in series for p in line.points]
    if not any(len(line.points) > 1 for line in series):
        return ""
    left, right, upper, lower = 54, WIDTH - 12, 10, 200
    xs = sorted({p[0] for p in points})
    top = _round_up(max(max(p[1], p[3]) for p in points))
    logarithmic = xs[0] > 0 and xs[-1] / xs[0] >= 8

    def at(x: float, y: float) -> tuple[float, float]:
        a, b, v = (math.log(xs[0]), math.log(xs[-1]), math.log(x)) if logarithmic else (xs[0], xs[-1], x)
        return left + (v - a) / (b - a) * (right - left), lower - y / top * (lower - upper)

    parts = []
    for step in range(5):
        value = top * step / 4
        y = at(xs[0], value)[1]
        parts.append(f'<path class="grid" d="M{left} {y:.1f}H{right}"/>')
        parts.append(text(left - 5, y + 4, fmt(value) if step else "0", anchor="end"))
    last = -math.inf
    for x in xs:
        place = at(x, 0)[0]
        if place - last >= 30:
            parts.append(text(place, lower + 15, x_fmt(x), anchor="middle"))
            last = place
    parts.append(text((left + right) / 2, lower + 31, x_label, anchor="middle"))
    for line in series:
        placed = [(*at(x, y), at(x, low)[1], at(x, high)[1]) for x, y, low, high in line.points]
        path = "L".join(f"{x:.1f} {y:.1f}" for x, y, _, _ in placed)
        dash = _DASHES[line.series % len(_DASHES)]
        parts.append(f'<g class="series-{line.series % SERIES}">')
        parts.append(f'<path class="line" d="M{path}"{f" stroke-dasharray={chr(34)}{dash}{chr(34)}" if dash else ""}/>')
        parts += [f'<path class="spread" d="M{x:.1f} {low:.1f}V{high:.1f}"/>' for x, _, low, high in placed]
        parts += [marker(line.series, x, y) for x, y, _, _ in placed]
        parts.append("</g>")
    said = "; ".join(
        f"{line.label}: " + ", ".join(f"{fmt(y)} at {x_fmt(x)}" for x, y, _, _ in line.points) for line in series
    )
    return svg(title, f"{x_label}: {said}", lower + 40, parts)


def stacks(title: str, rows: Sequence[Stack], names: Sequence[str], fmt: Format) -> str:
    """Bars of parts; each part carries the number of its name in `names`. "" without rows."""
    totals = [sum(s.value for s in row.segments) for row in rows]
    if not rows or max(totals) <= 0:
        return ""
    parts = []
    for i, (row, total) in enumerate(zip(rows, totals, strict=True)):
        y, x = i * 44 + 2, 0.0
        parts.append(text(0, y + 12, row.label))
        said = total if row.total is None else row.total
        parts.append(text(WIDTH, y + 12, fmt(said), anchor="end", cls="value"))
        for segment in row.segments:
            width = segment.value / max(totals) * WIDTH
            number = names.index(segment.label)
            parts.append(
                f'<g class="series-{number % SERIES}"><rect class="fill part" x="{x:.1f}" y="{y + 17}" '
                f'width="{max(0.5, width):.1f}" height="18"/>'
            )
            if width >= 14:
                parts.append(text(x + width / 2, y + 30, str(number + 1), anchor="middle", cls="on-fill"))
            parts.append("</g>")
            x += width
    description = "; ".join(
        f"{row.label}: " + ", ".join(f"{s.label} {fmt(s.value)}" for s in row.segments) for row in rows
    )
    return svg(title, description, len(rows) * 44 + 2, parts)


def marker(series: int, x: float, y: float, size: float = 4.0) -> str:
    """The shape of a series, at a place of a chart."""
    shape = _SHAPES[series % len(_SHAPES)]
    a, b = f"{x:.1f}", f"{y:.1f}"
    left, right, above, below = x - size, x + size, y - size, y + size
    if shape == "circle":
        return f'<circle class="mark" cx="{a}" cy="{b}" r="{size}"/>'
    if shape == "ring":
        return f'<circle class="mark open" cx="{a}" cy="{b}" r="{size}"/>'
    if shape == "square":
        return f'<rect class="mark" x="{left:.1f}" y="{above:.1f}" width="{2 * size}" height="{2 * size}"/>'
    if shape in ("cross", "plus"):
        d = (
            f"M{left:.1f} {above:.1f}L{right:.1f} {below:.1f}M{left:.1f} {below:.1f}L{right:.1f} {above:.1f}"
            if shape == "cross"
            else f"M{left:.1f} {b}H{right:.1f}M{a} {above:.1f}V{below:.1f}"
        )
        return f'<path class="mark open" d="{d}"/>'
    corners = {
        "triangle": f"{a} {above:.1f}L{right:.1f} {below:.1f}L{left:.1f} {below:.1f}",
        "down": f"{a} {below:.1f}L{right:.1f} {above:.1f}L{left:.1f} {above:.1f}",
        "diamond": f"{a} {above:.1f}L{right:.1f} {b}L{a} {below:.1f}L{left:.1f} {b}",
    }[shape]
    return f'<path class="mark" d="M{corners}Z"/>'


def _round_up(value: float) -> float:
    """The next round number, times a power of ten, whose quarters are round too."""
    if value <= 0:
        return 1.0
    scale = 10.0 ** math.floor(math.log10(value))
    return next(step * scale for step in (1, 1.2, 1.6, 2, 2.4, 3.2, 4, 6, 8, 10) if step * scale >= value * (1 - 1e-9))


def text(x: float, y: float, words: str, *, anchor: str = "start", cls: str = "") -> str:
    """A line of text at a place of a chart."""
    css = f' class="{cls}"' if cls else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{css}>{escape(words)}</text>'


def svg(title: str, said: str, height: float, parts: Sequence[str]) -> str:
    """A chart `WIDTH` wide. `said`: the whole chart in words, for those who hear it."""
    return (
        f'<svg class="chart" role="img" viewBox="0 0 {WIDTH} {height:.0f}" font-size="{_TEXT}">'
        f"<title>{escape(title)}</title><desc>{escape(said)}</desc>{''.join(parts)}</svg>"
    )
