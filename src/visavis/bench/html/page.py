"""`to_html`: the whole report as one self-contained page."""

from __future__ import annotations

import shlex
from pathlib import Path

from visavis.bench import words
from visavis.bench.changes import TEST_IN_WORDS
from visavis.bench.figures import DEFINITIONS
from visavis.bench.html.figures import cell_charts, series_names, start_chart, sweep_charts
from visavis.bench.report import Report
from visavis.bench.result import SCHEMA
from visavis.bench.rows import Row
from visavis.report.page import legend, render
from visavis.report.units import duration

__all__ = ["to_html"]

_WORKLOADS = (
    ("latency", "One request at a time"),
    ("throughput", "All requests at once"),
    ("users", "Closed loop: each user asks again when answered"),
    ("load", "Open loop: Poisson arrivals"),
)


def to_html(report: Report) -> str:
    """Charts first, then every table they are made of, what limits them, and how to repeat them."""
    from markupsafe import Markup

    start, phases = start_chart(report)
    sections = []
    for workload, title in _WORKLOADS:
        charts = sweep_charts(report, workload) or cell_charts(report, workload)
        tables = [
            (file.name, [row for row in file.rows if row.cell.workload == workload])
            for file in report.files
            if any(row.cell.workload == workload for row in file.rows)
        ]
        if tables:
            sections.append((title, workload, [(c, Markup(svg)) for c, svg in charts], tables))
    values = {
        "report": report,
        "title": f"Speed of {', '.join(dict.fromkeys(file.bench.model for file in report.files))}",
        "summary": summary(report),
        "legend": Markup(legend(series_names(report))),
        "start": (start[0], Markup(start[1])),
        "phases": phases,
        "sections": sections,
        "definitions": DEFINITIONS,
        "test": TEST_IN_WORDS,
        "schema": SCHEMA,
        "columns": words.columns,
        "labels": words.LABELS,
        "words": words,
        "duration": duration,
        "command": lambda parts: shlex.join(parts),
    }
    return render(Path(__file__).parent, "report.html.j2", values)


def summary(report: Report) -> list[str]:
    """The verdict in sentences: which engine leads in each cell of one file, or that this cannot be said."""
    said = []
    for file in report.files:
        for cell in file.bench.cells:
            rows = [row for row in file.rows if row.cell == cell and not row.void]
            figure = {"latency": "tpot", "throughput": "tokens_per_s", "users": "tokens_per_s"}.get(cell.workload, "")
            if len(rows) < 2 or not figure or any(figure not in row.figures for row in rows):
                continue
            where = f"{cell.workload}, {words.cell_words(cell)}"
            if any(
                f"{a.engine.engine} and {b.engine.engine}: not comparable" in note
                for note in file.notes
                for a in rows
                for b in rows
            ):
                said.append(f"{where}: not comparable, see the notes.")
                continue
            said.append(f"{where}: {_leads(rows, figure)}")
    return said


def _leads(rows: list[Row], figure: str) -> str:
    ranked = sorted(rows, key=lambda row: row.figures[figure].median, reverse=figure == "tokens_per_s")
    best, second = ranked[0], ranked[1]
    a, b = best.figures[figure], second.figures[figure]
    ratio = max(a.median, b.median) / min(a.median, b.median)
    overlap = a.low <= b.high and b.low <= a.high
    shown = f"{words.value(figure, a.median)} against {words.value(figure, b.median)} ({words.LABELS[figure]})"
    if overlap:
        said = f"{best.engine.engine} and {second.engine.engine} are within the noise: {shown}"
    else:
        said = f"{best.engine.engine} is {ratio:.3g}× as fast as {second.engine.engine}: {shown}"
    restless = [row.engine.engine for row in (best, second) if not row.steady]
    return f"{said}; {' and '.join(restless)} not steady." if restless else f"{said}."
