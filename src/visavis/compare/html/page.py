"""The page itself: everything the template shows, as plain values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from visavis.compare.html.marks import marks_of
from visavis.compare.html.screens import screens_of
from visavis.compare.html.speed import panels_of
from visavis.compare.html.tables import answers_of, environment_of, settings_of
from visavis.compare.html.tokens import splits_of
from visavis.compare.result import Comparison
from visavis.compare.verdict import sentences
from visavis.compare.words import effect, the_rest
from visavis.report.machine import one_line
from visavis.report.page import render as page
from visavis.report.units import bytes_, duration, rate

__all__ = ["render", "write_report"]

HERE = Path(__file__).parent
MOST_SCREENS = 12


def write_report(comparison: Comparison, images: Mapping[str, Sequence[Any]], path: str) -> None:
    """`images`: by prompt id, uint8 (height, width, 3), the upright originals. Raises OSError."""
    Path(path).expanduser().write_text(render(comparison, images), "utf-8")


def render(comparison: Comparison, images: Mapping[str, Sequence[Any]]) -> str:
    """The page's HTML."""
    marks = marks_of(comparison)
    values = {
        "c": comparison,
        "verdicts": sentences(comparison),
        "marks": marks,
        "machine": one_line(dict(comparison.machine)) if comparison.machine.get("cpu") else "",
        "prompts": answers_of(comparison),
        "panels": panels_of(comparison, marks),
        "screens": screens_of(comparison, images, marks, most=MOST_SCREENS),
        "splits": splits_of(comparison, marks),
        "rest": [text for pair in comparison.pairs if (text := the_rest(pair))],
        "settings": settings_of(comparison),
        "environment": environment_of(comparison),
        "reruns": [pair for pair in comparison.pairs if pair.reruns],
    }
    filters = {"duration": duration, "bytes": bytes_, "rate": rate, "effect": effect}
    return page(HERE, "report.html.j2", values, filters, css="report.css")
