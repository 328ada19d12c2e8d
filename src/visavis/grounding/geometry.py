"""From a model's coordinate space to pixels of the upright original; order, limits and sanity of coordinates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from visavis.grounding.types import GroundedItem, GroundingResult, Point, Reject

__all__ = ["Collector", "Space"]


@dataclass(frozen=True, slots=True)
class Space:
    """The coordinates a model writes: x in 0…`width`, y in 0…`height`, over an image of `image_width` ×
    `image_height` pixels (the upright original)."""

    width: float
    height: float
    image_width: float
    image_height: float

    def to_pixels(self, point: Point) -> Point:
        """x by the widths and y by the heights, unclipped."""
        return point[0] * self.image_width / self.width, point[1] * self.image_height / self.height

    def clip(self, point: Point) -> Point:
        return min(max(point[0], 0.0), self.image_width), min(max(point[1], 0.0), self.image_height)


@dataclass(slots=True)
class Collector:
    """Gathers items and rejects while a parser walks over an answer."""

    text: str
    space: Space
    items: list[GroundedItem] = field(default_factory=list)
    rejects: list[Reject] = field(default_factory=list)
    complete: bool = True

    def add(self, label: str, points: Sequence[Point], span: tuple[int, int]) -> None:
        """One point, two corners of a box, or four corners of a quadrilateral, in the model's space."""
        if not all(math.isfinite(value) for point in points for value in point):
            self.reject(span, "a coordinate is not a finite number")
            return
        if len(points) not in (1, 2, 4):
            self.reject(span, f"{len(points)} points are neither a point (1), a box (2) nor a quadrilateral (4)")
            return
        pixels = [self.space.to_pixels(point) for point in points]
        inside = [self.space.clip(point) for point in pixels]
        clipped = inside != pixels
        if len(points) == 1:
            self.items.append(GroundedItem(label, point=inside[0], clipped=clipped, span=span))
            return
        xs, ys = [p[0] for p in pixels], [p[1] for p in pixels]
        width, height = self.space.image_width, self.space.image_height
        if max(xs) < 0 or max(ys) < 0 or min(xs) > width or min(ys) > height:
            self.reject(span, "the box lies wholly outside the image")
            return
        swapped = len(points) == 2 and (xs[0] > xs[1] or ys[0] > ys[1])
        x1, y1 = self.space.clip((min(xs), min(ys)))
        x2, y2 = self.space.clip((max(xs), max(ys)))
        quad = (inside[0], inside[1], inside[2], inside[3]) if len(points) == 4 else None
        self.items.append(
            GroundedItem(label, box=(x1, y1, x2, y2), quad=quad, clipped=clipped, swapped=swapped, span=span)
        )

    def reject(self, span: tuple[int, int], reason: str) -> None:
        self.rejects.append(Reject(self.text[span[0] : span[1]].strip(), reason))

    def truncated(self, start: int) -> None:
        """The answer breaks off in the piece that begins at `start`."""
        self.complete = False
        self.reject((start, len(self.text)), "the answer breaks off here")

    def result(self) -> GroundingResult:
        return GroundingResult(tuple(self.items), tuple(self.rejects), self.complete)
