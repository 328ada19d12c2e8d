"""Boxes and points out of an answer's text, back in pixels of the upright original, drawn and scored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from visavis.grounding.parse import parse
from visavis.grounding.score import center_distance, iou, point_in_box, screenspot
from visavis.grounding.types import Box, GroundedItem, GroundingResult, Point, Reject

if TYPE_CHECKING:
    from visavis.grounding.painting import draw

__all__ = [
    "Box",
    "GroundedItem",
    "GroundingResult",
    "Point",
    "Reject",
    "center_distance",
    "draw",
    "iou",
    "parse",
    "point_in_box",
    "screenspot",
]


def __getattr__(name: str) -> Any:
    if name == "draw":  # Pillow is loaded only by those who draw
        from importlib import import_module

        return import_module("visavis.grounding.painting").draw
    raise AttributeError(f"module 'visavis.grounding' has no attribute {name!r}")
