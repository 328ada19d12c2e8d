"""How far two answers lie apart: edits of their texts, tokens before they part, places of their boxes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from visavis.grounding import Box, Point, center_distance, iou

__all__ = ["box_distance", "edit_distance", "share_before"]


def edit_distance(first: str, second: str) -> int:
    """Characters to insert, delete or replace (Levenshtein).

    Myers' bit vectors (J. ACM 46, 1999, in Hyyrö's form) on Python's long integers: the rows of the table are bits.
    """
    if not first:
        return len(second)
    mask, last = (1 << len(first)) - 1, 1 << (len(first) - 1)
    places: dict[str, int] = {}
    for i, letter in enumerate(first):
        places[letter] = places.get(letter, 0) | 1 << i
    up, down, score = mask, 0, len(first)  # vertical differences of +1 and -1
    for letter in second:
        equal = places.get(letter, 0)
        vertical = equal | down
        horizontal = (((equal & up) + up) ^ up) | equal
        right, left = (down | ~(horizontal | up)) & mask, up & horizontal & mask
        score += bool(right & last) - bool(left & last)
        right, left = (right << 1 | 1) & mask, left << 1 & mask
        up, down = (left | ~(vertical | right)) & mask, right & vertical & mask
    return score


def share_before(position: int | None, first: Sequence[int], second: Sequence[int]) -> float:
    """Part of the longer answer's tokens that stand before the first difference; 1 where there is none."""
    longer = max(len(first), len(second))
    return 1.0 if position is None or longer == 0 else position / longer


def box_distance(
    first: Mapping[str, Any] | None, second: Mapping[str, Any] | None
) -> tuple[float | None, float | None]:
    """(intersection over union, distance of the centres in pixels) of the first box or point of two answers.

    None for what is not there: two boxes have both, a point has a distance alone.
    """
    one, two = _first_place(first), _first_place(second)
    if one is None or two is None:
        return None, None
    if len(one) == 4 and len(two) == 4:
        return iou(one, two), center_distance(one, two)
    return None, center_distance(one, two)


def _first_place(found: Mapping[str, Any] | None) -> Box | Point | None:
    if not found or not found["items"]:
        return None
    item = found["items"][0]
    place = item.get("box") or item.get("point")
    return None if place is None else tuple(place)
