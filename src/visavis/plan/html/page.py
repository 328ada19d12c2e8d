"""`to_html`: the whole plan as one page."""

from __future__ import annotations

from pathlib import Path

from visavis.plan.html.bars import SERIES_OF, memory_bars
from visavis.plan.picture import letter_of
from visavis.plan.types import Plan
from visavis.plan.units import GIB, format_bytes
from visavis.plan.words import all_parts, headings, name_of, value_of, weight_tables
from visavis.report.page import render

__all__ = ["to_html"]


def to_html(plan: Plan, command: str) -> str:
    """What fits first, then the picture, every setting with its reason, and the `command` that repeats it."""
    from markupsafe import Markup

    pictured = [engine for engine in plan.engines if engine.parts]
    values = {
        "plan": plan,
        "headings": headings(plan),
        "urgent": [a for a in plan.advice if a.brief == a.text],
        "advice": [a for a in plan.advice if a.brief != a.text],
        "pictured": pictured,
        "bars": Markup(memory_bars(pictured, plan.device.total_bytes)) if pictured else "",
        "parts": all_parts(pictured),
        "weight_tables": weight_tables(plan),
        "series": SERIES_OF,
        "letter": letter_of,
        "gib": lambda amount: f"{amount / GIB:.3f}" if amount < GIB / 10 else f"{amount / GIB:.2f}",
        "bytes": format_bytes,
        "name_of": name_of,
        "value_of": value_of,
        "command": command,
    }
    return render(Path(__file__).parent, "report.html.j2", values)
