"""The screens with every engine's boxes on them, and a close view of the place they name."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from visavis.compare.html.marks import Mark
from visavis.compare.result import Comparison
from visavis.grounding import Box

__all__ = ["Outline", "Screen", "screens_of"]

LARGEST = 1280  # pixels a side of an embedded picture
LETTER, LINE = 0.62, 1.15  # width of a bold letter and height of a line, in letters' sizes
CLOSE = 0.45  # a close view is shown where the boxes take less than this share of the picture's width


@dataclass(frozen=True, slots=True)
class Outline:
    """A box or point in pixels of the upright original."""

    mark: Mark | None  # None: the true answer
    label: str
    box: Box | None
    point: tuple[float, float] | None
    limits: tuple[int, int]  # width and height of the picture
    flags: str = ""

    @property
    def corner(self) -> str:
        """Each backend labels another corner, so that equal boxes keep all their labels readable."""
        return self.mark.corner if self.mark is not None else "bottom-left"

    @property
    def anchor(self) -> str:
        return "start" if self.corner.endswith("left") else "end"

    def label_at(self, size: float) -> tuple[float, float]:
        """Where the baseline of a label with letters of `size` pixels begins (or ends, by `anchor`)."""
        x1, y1, x2, y2 = _corners(self) or (0.0, 0.0, 0.0, 0.0)
        y = y1 - 0.35 * size if self.corner.startswith("top") else y2 + 1.1 * size
        return x1 if self.anchor == "start" else x2, min(max(y, size), self.limits[1] - 0.3 * size)


@dataclass(frozen=True, slots=True)
class Label:
    """Its baseline begins (or ends, by `anchor`) at (x, y)."""

    text: str
    css: str
    x: float
    y: float
    anchor: str

    def overlaps(self, other: Label, size: float) -> bool:
        (a1, a2), (b1, b2) = self._across(size), other._across(size)
        return abs(self.y - other.y) < size and a1 < b2 and b1 < a2

    def _across(self, size: float) -> tuple[float, float]:
        width = LETTER * size * len(self.text)
        return (self.x, self.x + width) if self.anchor == "start" else (self.x - width, self.x)


@dataclass(frozen=True, slots=True)
class Screen:
    prompt: str
    question: str
    number: int  # makes its names unique on the page
    width: int
    height: int
    href: str
    unit: float  # thickness of a line, in the picture's pixels
    outlines: list[Outline] = field(default_factory=list)
    close: tuple[float, float, float, float] | None = None  # x, y, width, height of the close view

    def labels(self, size: float, *, short: bool) -> list[Label]:
        """Every outline's label in letters of `size` pixels, none over another: one that has no room beside the others
        stands a line farther out. `short`: shapes without names."""
        placed: list[Label] = []
        for o in self.outlines:
            text = "true" if o.mark is None else o.mark.shape if short else f"{o.mark.shape} {o.mark.name}"
            x, y = o.label_at(size)
            label = Label(text, o.mark.css if o.mark else "true", x, y, o.anchor)
            step = LINE * size * (-1 if o.corner.startswith("top") else 1)
            for _ in self.outlines:
                if not any(label.overlaps(other, size) for other in placed):
                    break
                label = replace(label, y=label.y + step)
            placed.append(label)
        return placed

    @property
    def words(self) -> str:
        found = []
        for o in self.outlines:
            place = o.box or o.point or ()
            found.append(f"{o.mark.name if o.mark else 'true'}: {', '.join(f'{v:.0f}' for v in place)}")
        return f"{self.prompt}, {self.width} by {self.height} pixels; " + ("; ".join(found) or "no boxes")


def screens_of(
    comparison: Comparison, images: Mapping[str, Sequence[Any]], marks: dict[str, Mark], *, most: int
) -> list[Screen]:
    """Prompts with differences first. Only the first image of a prompt carries boxes."""
    differing = {d.prompt for pair in comparison.pairs for d in pair.differences}
    ordered = sorted(comparison.prompts, key=lambda record: record.id not in differing)
    found: list[Screen] = []
    for record in ordered:
        if len(found) == most:
            break
        if not images.get(record.id):
            continue
        pixels = images[record.id][0]
        height, width = pixels.shape[:2]
        outlines = _outlines(comparison, record.id, marks, (width, height))
        if record.expected is not None and record.expected.box is not None:
            outlines.append(Outline(None, "true", record.expected.box, None, (width, height)))
        found.append(
            Screen(
                prompt=record.id,
                question=record.question,
                number=len(found) + 1,
                width=width,
                height=height,
                href=_picture(pixels),
                unit=max(width, height) / 400,
                outlines=outlines,
                close=_close(outlines, width, height),
            )
        )
    return found


def _outlines(comparison: Comparison, prompt: str, marks: dict[str, Mark], size: tuple[int, int]) -> list[Outline]:
    found = []
    for b in comparison.backends:
        answer = b.first_round().get(prompt)
        for item in (answer.boxes or {"items": ()})["items"] if answer is not None else ():
            flags = ", ".join(flag for flag in ("clipped", "swapped") if item[flag])
            box = tuple(item["box"]) if "box" in item else None
            point = tuple(item["point"]) if "point" in item else None
            found.append(Outline(marks[b.backend], item["label"], box, point, size, flags))
    return found


def _close(outlines: Sequence[Outline], width: int, height: int) -> tuple[float, float, float, float] | None:
    """A view of the boxes with room around them; None where the whole picture shows them well."""
    places = [p for o in outlines if (p := _corners(o)) is not None]
    if not places:
        return None
    left, top = min(p[0] for p in places), min(p[1] for p in places)
    right, bottom = max(p[2] for p in places), max(p[3] for p in places)
    across = max(right - left, (bottom - top) * 1.6, 40.0) * 1.7
    if across > CLOSE * width:
        return None
    down = across / 1.6
    x = min(max((left + right - across) / 2, 0.0), max(width - across, 0.0))
    y = min(max((top + bottom - down) / 2, 0.0), max(height - down, 0.0))
    return round(x, 1), round(y, 1), round(across, 1), round(down, 1)


def _corners(outline: Outline) -> Box | None:
    if outline.box is not None or outline.point is None:
        return outline.box
    return (*outline.point, *outline.point)


def _picture(pixels: Any) -> str:
    """A data URL: PNG or JPEG, whichever is smaller."""
    from PIL import Image

    picture = Image.fromarray(pixels)
    if max(picture.size) > LARGEST:
        picture.thumbnail((LARGEST, LARGEST), Image.Resampling.LANCZOS)
    found = []
    for name, options in (("png", {"optimize": True}), ("jpeg", {"quality": 88})):
        file = io.BytesIO()
        picture.save(file, name.upper(), **options)
        found.append((file.getvalue(), name))
    data, name = min(found, key=lambda pair: len(pair[0]))
    return f"data:image/{name};base64,{base64.b64encode(data).decode('ascii')}"
