"""Each backend's colour, shape, line and corner: never a colour alone."""

from __future__ import annotations

from dataclasses import dataclass

from visavis.compare.result import Comparison

__all__ = ["Mark", "marks_of"]

_SHAPES = ("●", "■", "▲", "◆", "★", "✚")
_DASHES = ("", "9 5", "2 4", "12 4 2 4", "5 2", "1 2")
CORNERS = ("top-left", "top-right", "bottom-right", "bottom-left")


@dataclass(frozen=True, slots=True)
class Mark:
    """`css`: the class of its colour on every page, light and dark."""

    name: str
    css: str
    shape: str
    dash: str
    corner: str


def marks_of(comparison: Comparison) -> dict[str, Mark]:
    """By backend name."""
    found = {}
    for i, b in enumerate(comparison.backends):
        k = i % len(_SHAPES)
        found[b.backend] = Mark(b.backend, f"series-{k}", _SHAPES[k], _DASHES[k], CORNERS[i % 4])
    return found
