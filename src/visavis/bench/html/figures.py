"""Which charts a result gets."""

from __future__ import annotations

from collections.abc import Sequence

from visavis.bench import words
from visavis.bench.report import FileReport, Report
from visavis.bench.result import Cell
from visavis.bench.rows import Row
from visavis.report.charts import Bar, Line, Segment, Stack, bars, lines, stacks
from visavis.report.units import duration

__all__ = ["Chart", "cell_charts", "series_names", "start_chart", "sweep_charts"]

Chart = tuple[str, str]
"""(caption, SVG)"""

_BARS = {
    "latency": ("ttft", "tpot", "e2e"),
    "throughput": ("tokens_per_s",),
    "users": ("tokens_per_s", "ttft", "tpot", "goodput"),
    "load": ("ttft", "tpot", "goodput"),
}
_AXES = ("concurrency", "rate", "prompt_tokens", "output_tokens", "image")
_MORE_CELLS = 4
"""Bars are drawn of at most so many cells of a workload; beyond, the lines and the tables tell more."""


def series_names(report: Report) -> list[str]:
    """One series per engine and file, in order."""
    names = []
    for file in report.files:
        names += [_series(report, file, engine.engine) for engine in file.bench.engines]
    return list(dict.fromkeys(names))


def start_chart(report: Report) -> tuple[Chart, list[str]]:
    """Phases of each start, and the phases' names in the order of their numbers."""
    stacked, phases = [], list(words.PHASES)
    for file in report.files:
        for engine in file.bench.engines:
            found = words.start_parts(engine)
            phases += [name for name in found if name not in (*phases, words.REST)]
            if found:
                label = _series(report, file, engine.engine)
                parts = [Segment(name, seconds) for name, seconds in found.items()]
                stacked.append(Stack(label, parts, words.in_all(engine)))
    phases.append(words.REST)
    used = [name for name in phases if any(s.label == name for row in stacked for s in row.segments)]
    return ("From nothing to ready", stacks("phases of the start", stacked, used, duration)), used


def cell_charts(report: Report, workload: str) -> list[Chart]:
    """Bars of each cell's figures, engine beside engine."""
    names = series_names(report)
    found: dict[str, list[tuple[str, Row]]] = {}
    for file in report.files:
        for row in file.rows:
            if row.cell.workload == workload and not row.void:
                found.setdefault(row.cell.id, []).append((_series(report, file, row.engine.engine), row))
    charts = []
    for rows in list(found.values())[:_MORE_CELLS]:
        for name in _BARS[workload]:
            bar_rows = [
                Bar(label, figure.median, figure.low, figure.high, names.index(label))
                for label, row in rows
                if (figure := row.figures.get(name)) is not None
            ]
            caption = f"{words.LABELS[name]} · {words.cell_words(rows[0][1].cell)}"
            charts.append((caption, bars(caption, bar_rows, lambda v, n=name: words.value(n, v))))  # type: ignore[misc]
    return [chart for chart in charts if chart[1]]


def sweep_charts(report: Report, workload: str) -> list[Chart]:
    """Lines over each axis of the sweep that has several values; the other axes at each of their values."""
    rows = [
        (_series(report, file, row.engine.engine), row)
        for file in report.files
        for row in file.rows
        if row.cell.workload == workload and not row.void
    ]
    names = series_names(report)
    charts = []
    for axis in _AXES:
        groups: dict[tuple[object, ...], list[tuple[str, Row]]] = {}
        for label, row in rows:
            if _place(row, axis) is not None:
                rest = tuple(getattr(row.cell, other) for other in _AXES if other != axis)
                groups.setdefault(rest, []).append((label, row))
        for group in groups.values():
            for figure in _BARS[workload]:
                chart = _lines(group, axis, figure, names)
                if chart is not None:
                    charts.append(chart)
    return charts


def _lines(group: Sequence[tuple[str, Row]], axis: str, figure: str, names: Sequence[str]) -> Chart | None:
    series: dict[str, list[tuple[float, float, float, float]]] = {}
    for label, row in group:
        found, x = row.figures.get(figure), _place(row, axis)
        if found is not None and x is not None:
            series.setdefault(label, []).append((x, found.median, found.low, found.high))
    if not any(len({p[0] for p in points}) > 1 for points in series.values()):
        return None
    words_of = {
        "concurrency": "requests at once",
        "rate": "requests a second offered",
        "prompt_tokens": "prompt tokens",
        "output_tokens": "answer tokens",
        "image": "image tokens",
    }
    cell = group[0][1].cell
    if cell.workload == "users":
        words_of["concurrency"] = "users"
    fixed = ", ".join(part for part in words.cell_words(cell).split(", ") if part != _part(cell, axis))
    caption = f"{words.LABELS[figure]} over {words_of[axis]} · {fixed}"
    drawn = [Line(label, sorted(points), names.index(label)) for label, points in series.items()]
    svg = lines(caption, drawn, lambda v: words.value(figure, v), x_label=words_of[axis], x_fmt=lambda v: f"{v:g}")
    return (caption, svg) if svg else None


def _place(row: Row, axis: str) -> float | None:
    """Where on the axis a row stands; images by what they cost."""
    if axis == "image":
        return float(row.image_tokens[1])
    value = getattr(row.cell, axis)
    return None if value is None else float(value)


def _part(cell: Cell, axis: str) -> str:
    """How `words.cell_words` writes that axis."""
    value = getattr(cell, axis)
    if value is None:
        return ""
    if axis == "image":
        return f"{value[0]}×{value[1]}"
    if axis == "concurrency" and cell.workload == "users":
        return f"{value} user{'s' if value > 1 else ''}"
    spelled = {"concurrency": "{} at once", "prompt_tokens": "{} in", "output_tokens": "{} out", "rate": "{:g}/s"}
    return spelled[axis].format(value)


def _series(report: Report, file: FileReport, engine: str) -> str:
    return engine if len(report.files) == 1 else f"{engine}, {file.name}"
