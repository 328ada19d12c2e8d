"""One parser per declared box format. The format belongs to the model (`Family.box_format`) and is never guessed."""

from __future__ import annotations

from typing import get_args

from visavis.errors import OptionError, shorten
from visavis.grounding.geometry import Collector, Space
from visavis.grounding.types import GroundingResult
from visavis.prompt import BoxFormat

__all__ = ["parse"]

PER_MILLE = 1000.0


def parse(
    text: str, box_format: BoxFormat, *, original_size: tuple[int, int], resized_size: tuple[int, int]
) -> GroundingResult:
    """Boxes and points of an answer, in float pixels of the upright original.

    `original_size` and `resized_size` are (height, width) before and after the resize. What models write:
    `qwen2_vl` and `ui_tars` 0–1000 of the image, `qwen2_5_vl` pixels of the resized image, `qwen3_vl` 0–1000 (its
    999 is within that), `none` nothing. Raises OptionError for an unknown format or a size that is not positive.
    """
    if box_format not in get_args(BoxFormat):
        raise OptionError(f"box format {shorten(box_format)} is unknown: use one of {', '.join(get_args(BoxFormat))}")
    for name, size in (("original_size", original_size), ("resized_size", resized_size)):
        if len(size) != 2 or min(size) < 1:
            raise OptionError(f"{name} {shorten(size)} is not (height, width) in pixels, both 1 or more")
    if box_format == "none":
        return GroundingResult()
    height, width = original_size
    in_pixels = box_format == "qwen2_5_vl"
    space_height, space_width = resized_size if in_pixels else (PER_MILLE, PER_MILLE)
    found = Collector(text, Space(space_width, space_height, float(width), float(height)))
    if box_format == "qwen2_vl":
        from visavis.grounding.markers import parse_markers

        parse_markers(found)
    elif box_format == "ui_tars":
        from visavis.grounding.clicks import parse_clicks

        parse_clicks(found)
    else:
        from visavis.grounding.json_boxes import parse_json

        parse_json(found)
    return found.result()
