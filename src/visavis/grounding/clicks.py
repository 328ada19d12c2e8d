"""UI-TARS actions: `click(start_box='(x,y)')`, `drag(start_box='…', end_box='…')`, with or without
`<|box_start|>…<|box_end|>` inside, boxes as `(x1,y1,x2,y2)`, and the bare `(x,y)` of its grounding prompts."""

from __future__ import annotations

import re

from visavis.grounding.geometry import Collector
from visavis.grounding.markers import parse_markers, points_of

__all__ = ["parse_clicks"]

_ACTION = re.compile(r"\b([A-Za-z_]\w*)\(\s*(?=[A-Za-z_]\w*\s*(?:=|$)|\)|$)")
_ARGUMENT = re.compile(r"""\s*,?\s*([A-Za-z_]\w*)\s*=\s*('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[\w.+-]+)""", re.DOTALL)
_PLACES = {"start_box": "start", "end_box": "end", "start_point": "start", "end_point": "end", "point": "", "box": ""}
_CUT_ARGUMENT = re.compile(r"""\s*,?\s*(?:[A-Za-z_]\w*\s*(?:=\s*(?:'[^']*|"[^"]*)?)?)?$""")
_SPACED = re.compile(r"<point>\s*([-+]?[\d.]+)[\s,]+([-+]?[\d.]+)\s*</point>")


def parse_clicks(found: Collector) -> None:
    """Fills `found`; the label of a point is its action, with "start" or "end" where an action has two places."""
    text, position, seen_action = found.text, 0, False
    while (action := _ACTION.search(text, position)) is not None:
        seen_action = True
        arguments, stop, closed = _arguments(text, action.end())
        places = [(name, value, span) for name, value, span in arguments if name in _PLACES]
        for name, value, span in places:
            ends = f" {_PLACES[name]}" if len(places) > 1 else ""
            points = points_of(_SPACED.sub(r"(\1,\2)", value).replace("[", "(").replace("]", ")"))
            if len(points) in (1, 2):
                found.add(f"{action[1]}{ends}".rstrip(), points, (action.start(), span[1]))
            else:
                found.reject(span, f"{name} has no (x,y)")
        if not closed:
            if _CUT_ARGUMENT.match(text, stop):
                if places and not text[stop:].strip():  # only the parenthesis is missing
                    found.complete = False
                else:
                    found.truncated(action.start())
                return
            if not places:
                found.reject((action.start(), stop), "the action is never closed")
        position = max(stop, action.end())
    if not seen_action:
        parse_markers(found)


def _arguments(text: str, position: int) -> tuple[list[tuple[str, str, tuple[int, int]]], int, bool]:
    """(name, unquoted value, span) of each `name='value'`; where they end; whether a `)` follows."""
    arguments = []
    while (match := _ARGUMENT.match(text, position)) is not None:
        value = match[2]
        arguments.append((match[1], value[1:-1] if value[0] in "'\"" else value, match.span()))
        position = match.end()
    end = re.compile(r"\s*,?\s*\)").match(text, position)
    return arguments, end.end() if end else position, end is not None
