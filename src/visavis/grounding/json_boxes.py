"""Boxes as JSON, as Qwen2.5-VL (pixels of the resized image) and Qwen3-VL (0–1000) write them:
`[{"bbox_2d": [x1, y1, x2, y2], "label": "…"}, {"point_2d": [x, y], "label": "…"}]`."""

from __future__ import annotations

import math
import re
from typing import Any

from visavis.grounding.geometry import Collector
from visavis.grounding.loose_json import LooseObject, scan_objects
from visavis.grounding.types import Point

__all__ = ["parse_json"]

BOX_KEYS = ("bbox_2d", "bbox")
POINT_KEYS = ("point_2d", "point")
LABEL_KEYS = ("label", "text_content", "text", "name", "description")

_NUMBER = r"[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?"
_QUOTED = re.compile(_NUMBER)
_BARE_LIST = re.compile(rf"\[\s*{_NUMBER}(?:\s*,\s*{_NUMBER})*\s*\]")


def parse_json(found: Collector) -> None:
    """Fills `found` from an answer in JSON; where it holds no object at all, from bare `[x1, y1, x2, y2]` lists."""
    objects, complete, open_object = scan_objects(found.text)
    for entry in objects:
        _take(found, entry)
    if open_object is not None:
        found.truncated(open_object)
    elif not objects:
        _bare_lists(found, complete)
    found.complete = found.complete and complete


def _take(found: Collector, entry: LooseObject) -> None:
    value, span = entry.value, entry.span
    if value is None:
        if not entry.has_inner:
            found.reject(span, entry.error)
        return
    label = next((str(value[key]) for key in LABEL_KEYS if value.get(key) is not None), "")
    taken = False
    for keys, numbers in ((BOX_KEYS, 4), (POINT_KEYS, 2)):
        for key in keys:
            if key in value:
                taken = True
                _coordinates(found, label, key, value[key], numbers, span)
                break
    if not taken and not entry.has_inner:
        found.reject(span, f"no {BOX_KEYS[0]} or {POINT_KEYS[0]} in the object")


def _coordinates(found: Collector, label: str, key: str, value: Any, numbers: int, span: tuple[int, int]) -> None:
    """`value` is one list of `numbers` numbers, or a list of such lists (several boxes of one label). Quotes around a
    number, or around the list, say nothing else."""
    if isinstance(value, str) and _BARE_LIST.fullmatch(value.strip()):
        value = re.findall(_NUMBER, value)
    if isinstance(value, list):
        value = [float(v) if isinstance(v, str) and _QUOTED.fullmatch(v.strip()) else v for v in value]
    if isinstance(value, list) and value and all(isinstance(inner, list) for inner in value):
        for inner in value:
            _coordinates(found, label, key, inner, numbers, span)
        return
    if not isinstance(value, list) or not all(_is_number(v) for v in value):
        found.reject(span, f"{key} is not a list of numbers")
    elif len(value) != numbers:
        found.reject(span, f"{key} has {len(value)} numbers, {numbers} are needed")
    else:
        found.add(label, _pairs(value), span)


def _bare_lists(found: Collector, complete: bool) -> None:
    for match in _BARE_LIST.finditer(found.text):
        values = [float(v) for v in re.findall(_NUMBER, match[0])]
        if len(values) in (2, 4):
            found.add("", _pairs(values), match.span())
        else:
            found.reject(match.span(), f"{len(values)} numbers are neither a point (2) nor a box (4)")
    if not complete:
        last = max((item.span[1] for item in found.items), default=0)
        opened = re.compile(rf"\[\s*{_NUMBER}[^\[\]]*$").search(found.text, last)
        if opened is not None:
            found.truncated(opened.start())


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _pairs(values: list[Any]) -> list[Point]:
    numbers = [_float(v) for v in values]
    return list(zip(numbers[::2], numbers[1::2], strict=True))


def _float(value: int | float) -> float:
    try:
        return float(value)
    except OverflowError:  # an integer of hundreds of digits
        return math.inf
