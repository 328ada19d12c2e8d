"""One row for each answer, for spreadsheets: UTF-8 with a mark, commas, seconds."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

from visavis.compare.result import Answer, BackendResult, Comparison

__all__ = ["COLUMNS", "write_csv"]

COLUMNS = (
    "backend",
    "engine",
    "version",
    "dtype",
    "device",
    "load_s",
    "warm_up_s",
    "prompt",
    "round",
    "prompt_tokens",
    "tokens",
    "finish_reason",
    "queue_s",
    "first_token_s",
    "per_token_s",
    "last_token_s",
    "same_tokens_as",
    "same_tokens",
    "same_text",
    "share_before",
    "edit_distance",
    "box_iou",
    "center_distance",
    "difference",
    "causes",
    "right",
    "text",
    "error",
)
"""`same_tokens_as` names the backend that the columns after it compare with (first round only)."""


def write_csv(comparison: Comparison, path: str) -> None:
    """Raises OSError."""
    with Path(path).expanduser().open("w", encoding="utf-8-sig", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        for backend in comparison.backends:
            for answer in backend.answers:
                writer.writerow({k: _safe(v) for k, v in _row(comparison, backend, answer).items()})


def _row(comparison: Comparison, b: BackendResult, answer: Answer) -> dict[str, Any]:
    row: dict[str, Any] = {
        "backend": b.backend,
        "engine": b.engine,
        "version": b.version,
        "dtype": b.dtype,
        "device": b.device,
        "load_s": b.load_s,
        "warm_up_s": b.warm_up_s,
        "prompt": answer.prompt,
        "round": answer.round,
        "prompt_tokens": answer.prompt_tokens,
        "tokens": len(answer.token_ids),
        "finish_reason": answer.finish_reason,
        "queue_s": answer.queue_s,
        "first_token_s": answer.first_token_s,
        "per_token_s": answer.per_token_s,
        "last_token_s": answer.token_times_s[-1] if answer.token_times_s else None,
        "right": answer.right,
        "text": answer.text,
        "error": answer.error,
    }
    pair = next((p for p in comparison.pairs if p.second == b.backend), None)
    if pair is None or answer.round != 1:
        return row
    row["same_tokens_as"] = pair.first
    for measured in pair.agreement:
        if measured.prompt == answer.prompt:
            for name in ("same_tokens", "same_text", "share_before", "edit_distance", "box_iou", "center_distance"):
                row[name] = getattr(measured, name)
    for difference in pair.differences:
        if difference.prompt == answer.prompt:
            row["difference"] = difference.kind
            row["causes"] = "; ".join(
                f"{c.kind} ({c.how}{': ' + ', '.join(c.settings) if c.settings else ''})" for c in difference.causes
            )
    return row


def _safe(value: Any) -> Any:
    """Text that a spreadsheet would run as a formula gets an apostrophe before it."""
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r") else value
