"""The report as JSON for machines: summaries; the raw observations are in the result files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from visavis.bench.changes import TEST_IN_WORDS
from visavis.bench.figures import DEFINITIONS
from visavis.bench.report import Report

__all__ = ["SCHEMA", "as_dict"]

SCHEMA = "visavis.bench-report/1"


def as_dict(report: Report) -> dict[str, Any]:
    """JSON-ready. Times in seconds, rates per second."""
    return {
        "schema": SCHEMA,
        "definitions": DEFINITIONS,
        "test": TEST_IN_WORDS,
        "files": [
            {
                "name": file.name,
                "complete": file.bench.complete,
                "model": file.bench.model,
                "config": _plain(file.bench.config),
                "machine": _plain(file.bench.machine),
                "ceiling": _plain(file.bench.ceiling),
                "engines": _plain(file.bench.engines),
                "notes": list(file.notes),
                "rows": [{"id": row.cell.id, **_plain(row), "engine": row.engine.engine} for row in file.rows],
            }
            for file in report.files
        ],
        "notes": list(report.notes),
        "against": [
            {
                "old": found.old_name,
                "not_comparable": list(found.not_comparable),
                "rows": [
                    {
                        "id": change.row.cell.id,
                        "engine": change.row.engine.engine,
                        "not_comparable": list(change.not_comparable),
                        "figures": [{**_plain(f), "verdict": f.verdict} for f in change.figures],
                    }
                    for change in found.rows
                ],
                "only_new": list(found.only_new),
                "only_old": list(found.only_old),
            }
            for found in report.against
        ],
    }


def _plain(value: Any) -> Any:
    if hasattr(value, "__dataclass_fields__"):
        return {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)
