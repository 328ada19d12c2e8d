"""The picture of the memory: one bar an engine, one part behind the other, every part with its letter."""

from __future__ import annotations

from collections.abc import Sequence

from visavis.plan.picture import letter_of
from visavis.plan.types import EnginePlan, PartKind
from visavis.plan.units import format_bytes
from visavis.report.charts import WIDTH, svg, text

__all__ = ["SERIES_OF", "memory_bars"]

SERIES_OF: dict[PartKind, int] = {"weights": 0, "activations": 4, "overhead": 1, "kv": 2, "free": 5}
"""The colour of each kind on the page; letters say the same."""
_ROW = 58
_BAR = 26
_LETTER = 9.0  # a part narrower than this has no room for its letter


def memory_bars(engines: Sequence[EnginePlan], total: float) -> str:
    """An SVG of all engines on one scale; where parts need more than `total` bytes, a line marks the device's end."""
    longest = max([total, *(sum(p.bytes for p in e.parts) for e in engines)])
    drawn, said = [], []
    for i, engine in enumerate(engines):
        y, x = i * _ROW + 2, 0.0
        needed = sum(p.bytes for p in engine.parts if p.kind != "free")
        drawn.append(text(0, y + 12, engine.engine))
        sums = f"{format_bytes(needed)} of {format_bytes(total)}"
        drawn.append(text(WIDTH, y + 12, f"{sums}{'' if engine.fits else ', does not fit'}", anchor="end", cls="value"))
        for part in engine.parts:
            width = part.bytes / longest * WIDTH
            drawn.append(_part(letter_of(part), part.kind, x, y + 18, width))
            x += width
        if longest > total * 1.001:
            end = total / longest * WIDTH
            drawn.append(f'<path class="end" d="M{end:.1f} {y + 14}v{_BAR + 8}"/>')
        parts = ", ".join(f"{p.name} {format_bytes(p.bytes)}" for p in engine.parts)
        said.append(f"{engine.engine}: {parts}")
    return svg("memory of one device by part", "; ".join(said), len(engines) * _ROW, drawn)


def _part(letter: str, kind: PartKind, x: float, y: float, width: float) -> str:
    series = SERIES_OF[kind]
    if kind == "free":
        return f'<rect class="free" x="{x:.1f}" y="{y}" width="{max(0.0, width):.1f}" height="{_BAR}"/>'
    letters = text(x + width / 2, y + 17, letter, anchor="middle", cls="on-fill") if width >= _LETTER else ""
    return (
        f'<g class="series-{series}"><rect class="fill part" x="{x:.1f}" y="{y}" width="{max(0.5, width):.1f}" '
        f'height="{_BAR}"/>{letters}</g>'
    )
