"""How good a prediction is: ScreenSpot's rule, intersection over union, distance of centres. Boxes are
(x1, y1, x2, y2), all in the same pixels."""

from __future__ import annotations

import math
from dataclasses import dataclass

from visavis.grounding.types import Box, GroundedItem, GroundingResult, Point

__all__ = ["ScreenSpotScore", "center_distance", "iou", "point_in_box", "screenspot"]


@dataclass(frozen=True, slots=True)
class ScreenSpotScore:
    """`wrong_format`: the answer held no box and no point, which counts as a miss and is listed apart."""

    hit: bool
    wrong_format: bool
    point: Point | None = None  # what was judged


def point_in_box(point: Point, box: Box) -> bool:
    """Whether a point lies in a box, edges included."""
    return box[0] <= point[0] <= box[2] and box[1] <= point[1] <= box[3]


def screenspot(result: GroundingResult, true_box: Box) -> ScreenSpotScore:
    """ScreenSpot (arXiv:2401.10935): the first answer hits when its point, or the centre of its box, is inside the
    true box. A point beyond the image hits nothing, although it is shown at the edge."""
    if not result.items:
        return ScreenSpotScore(hit=False, wrong_format=True)
    first = result.items[0]
    beyond = first.point is not None and first.clipped
    return ScreenSpotScore(not beyond and point_in_box(first.center, true_box), False, first.center)


def iou(first: Box, second: Box) -> float:
    """Intersection over union, 0 to 1. Two equal boxes without area count as 1, other empty unions as 0."""
    width = min(first[2], second[2]) - max(first[0], second[0])
    height = min(first[3], second[3]) - max(first[1], second[1])
    intersection = max(width, 0.0) * max(height, 0.0)
    union = _area(first) + _area(second) - intersection
    if union <= 0:
        return 1.0 if first == second else 0.0
    return intersection / union


def center_distance(first: GroundedItem | Box | Point, second: GroundedItem | Box | Point) -> float:
    """Pixels between the centres of two items, boxes or points."""
    return math.dist(_center(first), _center(second))


def _center(place: GroundedItem | Box | Point) -> Point:
    if isinstance(place, GroundedItem):
        return place.center
    if len(place) == 2:
        return place
    return (place[0] + place[2]) / 2, (place[1] + place[3]) / 2


def _area(box: Box) -> float:
    return max(box[2] - box[0], 0.0) * max(box[3] - box[1], 0.0)
