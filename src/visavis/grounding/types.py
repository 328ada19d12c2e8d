"""What grounding gives back. Coordinates are float pixels of the upright original: x to the right from 0 to the
width, y down from 0 to the height (edges, not pixel centres)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

__all__ = ["Box", "GroundedItem", "GroundingResult", "Point", "Reject"]

Point: TypeAlias = tuple[float, float]
"""(x, y)"""
Box: TypeAlias = tuple[float, float, float, float]
"""(x1, y1, x2, y2) with x1 ≤ x2 and y1 ≤ y2"""


@dataclass(frozen=True, slots=True)
class GroundedItem:
    """One box or one point the answer names.

    Exactly one of `box` and `point` is set; a quadrilateral has its corners in `quad` and its bounding box in `box`.
    """

    label: str
    box: Box | None = None
    point: Point | None = None
    quad: tuple[Point, Point, Point, Point] | None = None
    clipped: bool = False  # a coordinate lay beyond the image and was cut to its edge
    swapped: bool = False  # the corners came in another order than top left, bottom right
    span: tuple[int, int] = (0, 0)  # place of the item in the answer's text

    @property
    def center(self) -> Point:
        """The point itself, or the middle of the box."""
        if self.point is not None:
            return self.point
        assert self.box is not None  # one of the two is set, by construction
        x1, y1, x2, y2 = self.box
        return (x1 + x2) / 2, (y1 + y2) / 2

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready; coordinates rounded to hundredths of a pixel."""

        def rounded(values: tuple[float, ...]) -> list[float]:
            return [round(v, 2) for v in values]

        plain: dict[str, Any] = {"label": self.label}
        if self.box is not None:
            plain["box"] = rounded(self.box)
        if self.point is not None:
            plain["point"] = rounded(self.point)
        if self.quad is not None:
            plain["quad"] = [rounded(corner) for corner in self.quad]
        return plain | {"clipped": self.clipped, "swapped": self.swapped}


@dataclass(frozen=True, slots=True)
class Reject:
    """A piece of the answer that looked like a box or point and was not taken."""

    text: str
    reason: str


@dataclass(frozen=True, slots=True)
class GroundingResult:
    """All that was found in one answer. `complete` is False when the answer breaks off inside an item or a list."""

    items: tuple[GroundedItem, ...] = ()
    rejects: tuple[Reject, ...] = ()
    complete: bool = True

    def __len__(self) -> int:
        return len(self.items)

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "items": [item.as_dict() for item in self.items],
            "rejects": [{"text": reject.text, "reason": reject.reason} for reject in self.rejects],
            "complete": self.complete,
        }
