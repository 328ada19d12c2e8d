"""Qwen2-VL's boxes: `<|object_ref_start|>name<|object_ref_end|><|box_start|>(x1,y1),(x2,y2)<|box_end|>`, also where
the markers were stripped (`name(x1,y1),(x2,y2)`), with points, quadrilaterals and several boxes per name.

The older Qwen-VL spelling (`<ref>`, `<box>`, `<point>`, `<quad>`) is the same grammar and is read too.
"""

from __future__ import annotations

import re

from visavis.grounding.geometry import Collector
from visavis.grounding.types import Point

__all__ = ["parse_markers"]

NUMBER = r"[-+]?\d+(?:\.\d+)?"
POINT = rf"\(\s*{NUMBER}\s*,\s*{NUMBER}\s*\)"
_POINT = re.compile(rf"\(\s*({NUMBER})\s*,\s*({NUMBER})\s*\)")
_FOUR = re.compile(rf"\(\s*({NUMBER})\s*,\s*({NUMBER})\s*,\s*({NUMBER})\s*,\s*({NUMBER})\s*\)")
_GROUP = re.compile(rf"{POINT}(?:\s*,\s*{POINT})*")
_OPEN = re.compile(r"<\|(box|point|quad)_start\|>|<(box|point|quad)>")
_REF = re.compile(r"(?:<\|object_ref_start\|>|<ref>)(.*?)(?:<\|object_ref_end\|>|</ref>)", re.DOTALL)
_REF_OPEN = re.compile(r"<\|object_ref_start\|>|<ref>")
_ANY_MARKER = re.compile(r"<\|[a-z_]+\|>|</?(?:ref|box|point|quad)>")
_UNFINISHED = re.compile(rf",\s*$|(?:,\s*)?\(\s*(?:[-+]?[\d.]*\s*(?:,\s*[-+]?[\d.]*\s*)?)?$|(?:{POINT}\s*)<[|/a-z_]*$")


def parse_markers(found: Collector) -> None:
    """Fills `found` from an answer with markers, or from one they were stripped of."""
    if _OPEN.search(found.text):
        _with_markers(found)
    else:
        _without_markers(found)


def points_of(text: str) -> list[Point]:
    """Every `(x,y)` of `text`; `(x1,y1,x2,y2)` counts as two."""
    spread = _FOUR.sub(r"(\1,\2),(\3,\4)", text)
    return [(float(x), float(y)) for x, y in _POINT.findall(spread)]


def _with_markers(found: Collector) -> None:
    text = found.text
    end_of_previous = 0
    label = ""
    for opening in _OPEN.finditer(text):
        if opening.start() < end_of_previous:  # an opening marker inside an item already rejected
            continue
        kind = opening[1] or opening[2]
        between = text[end_of_previous : opening.start()]
        refs = list(_REF.finditer(between))
        if refs:
            label = refs[-1][1].strip()
            start = end_of_previous + refs[-1].start()
        else:
            words = _ANY_MARKER.sub("", between).strip(" \t\r\n,;")
            label = words or label  # several boxes in a row share the name before the first
            start = opening.start()
        closing = re.compile(rf"<\|{kind}_end\|>|</{kind}>").search(text, opening.end())
        following = _OPEN.search(text, opening.end())
        if closing is None or (following is not None and following.start() < closing.start()):
            stop = following.start() if following is not None else len(text)
            _unclosed(found, label, kind, (opening.end(), stop), start, at_end=following is None)
            end_of_previous = stop
            continue
        _take(found, label, kind, text[opening.end() : closing.start()], (start, closing.end()))
        end_of_previous = closing.end()
    rest = text[end_of_previous:]
    if (opened := list(_REF_OPEN.finditer(rest))) and not _REF.search(rest, opened[-1].start()):
        found.truncated(end_of_previous + opened[-1].start())


def _take(found: Collector, label: str, kind: str, inner: str, span: tuple[int, int]) -> None:
    """One marked item. Two points a box, so a box marker may hold several boxes."""
    points = points_of(inner)
    left_over = _FOUR.sub("", inner)
    if not points or _POINT.sub("", left_over).strip(" \t\r\n,"):
        found.reject(span, f"no (x,y) coordinates between the {kind} markers")
    elif kind == "box" and len(points) > 2 and len(points) % 2 == 0:
        for first, second in zip(points[::2], points[1::2], strict=True):
            found.add(label, (first, second), span)
    elif kind == "quad" and len(points) != 4:
        found.reject(span, f"a quadrilateral has 4 points, here are {len(points)}")
    else:
        found.add(label, points, span)


def _unclosed(found: Collector, label: str, kind: str, inside: tuple[int, int], start: int, *, at_end: bool) -> None:
    """An item without its end marker. At the end of the answer a box with both corners is kept: only the marker is
    missing; one point alone may be half a box and is not."""
    if not at_end:
        found.reject((start, inside[1]), f"the {kind} marker is never closed")
        return
    inner = found.text[inside[0] : inside[1]]
    bare = re.sub(r"<[|/a-z_]*$", "", inner)  # a cut end marker
    points = points_of(bare)
    whole = {"box": 2, "point": 1, "quad": 4}[kind]
    if len(points) == whole and not _POINT.sub("", bare).strip(" \t\r\n,"):
        found.add(label, points, (start, inside[1]))
        found.complete = False
    else:
        found.truncated(start)


def _without_markers(found: Collector) -> None:
    text = found.text
    cut = _UNFINISHED.search(text)
    limit = len(text)
    if cut is not None:
        # The whole comma-joined run that leads to the cut is unfinished: (573,12),(59 is not the point (573,12).
        leading = [m for m in _GROUP.finditer(text, 0, cut.start() + 1) if text[m.end() : cut.start()].strip() == ""]
        if leading or cut[0].lstrip().startswith("("):
            limit = leading[-1].start() if leading else cut.start()
    label = ""
    end_of_previous = 0
    for group in _GROUP.finditer(text, 0, limit):
        words = _ANY_MARKER.sub("", text[end_of_previous : group.start()])
        words = words.strip(" \t\r\n,;:")
        start = group.start() - len(text[end_of_previous : group.start()].lstrip(" \t\r\n,;:"))
        label = words or label
        points = [(float(x), float(y)) for x, y in _POINT.findall(group[0])]
        found.add(label, points, (start, group.end()))
        end_of_previous = group.end()
    if limit < len(text):
        found.truncated(limit)
    elif _REF_OPEN.search(text, end_of_previous) and not _REF.search(text, end_of_previous):
        found.truncated(end_of_previous)
