"""Rows as CSV: one line per file, cell, engine and figure."""

from __future__ import annotations

import csv
import io

from visavis.bench.report import Report
from visavis.bench.rows import FIGURES

__all__ = ["COLUMNS", "to_csv"]

COLUMNS = (
    "file", "complete", "model", "engine", "version", "dtype", "device", "workload", "image", "prompt_tokens",
    "output_tokens", "concurrency", "rate", "lengths", "steady", "void", "rounds", "requests", "figure", "unit", "p50",
    "p90", "p99", "rounds_low", "rounds_high", "first_request_ttft_s",
)  # fmt: skip


def to_csv(report: Report) -> str:
    """Comma-separated, times in seconds, one header line. A void row is one line without figures."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for file in report.files:
        for row in file.rows:
            cell, engine = row.cell, row.engine
            image = "" if cell.image is None else f"{cell.image[0]}x{cell.image[1]}"
            common = [
                file.name, file.bench.complete, file.bench.model, engine.engine, engine.version, engine.dtype,
                engine.device, cell.workload, image, _or_empty(cell.prompt_tokens), cell.output_tokens,
                cell.concurrency, _or_empty(cell.rate), file.bench.config.get("lengths", ""), _or_empty(row.steady),
                row.void, row.rounds, row.requests,
            ]  # fmt: skip
            if row.void:
                writer.writerow([*common, *[""] * (len(COLUMNS) - len(common))])
            for name in FIGURES:
                if (found := row.figures.get(name)) is not None:
                    unit = "1/s" if name in ("tokens_per_s", "requests_per_s", "goodput") else "s"
                    numbers = [found.median, found.p90, found.p99, found.low, found.high]
                    writer.writerow([*common, name, unit, *(f"{n:.9g}" for n in numbers), _or_empty(row.cold_ttft)])
    return out.getvalue()


def _or_empty(value: object) -> object:
    return "" if value is None else value
