"""Boxes, points and labels painted on the upright original. Needs Pillow only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from PIL import Image, ImageDraw

from visavis.grounding.fonts import font_for
from visavis.grounding.output import check_image_path, save_image
from visavis.grounding.types import GroundedItem, GroundingResult

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["check_image_path", "draw", "paint"]

# Okabe and Ito's palette, made for colour-blind readers; the number in each label says the same without colour.
COLORS = ((213, 94, 0), (0, 114, 178), (0, 158, 115), (204, 121, 167), (230, 159, 0), (86, 180, 233))
_Rect = tuple[float, float, float, float]


def draw(image: Any, result: GroundingResult, path: str | Path) -> None:
    """Paints `result` on a copy of `image` and writes it to `path`; the suffix chooses the format.

    `image` is the upright original: uint8 RGB of shape (height, width, 3), or a Pillow image. The file appears whole
    or not at all. Raises OptionError for a path that cannot be written.
    """
    check_image_path(path)
    save_image(paint(image, result), path)


def paint(image: Any, result: GroundingResult) -> Image.Image:
    """A new RGB picture of the same size with every item outlined and named."""
    canvas = (image if isinstance(image, Image.Image) else Image.fromarray(image)).convert("RGB")
    if canvas is image:
        canvas = image.copy()
    pen = ImageDraw.Draw(canvas)
    width = line_width(canvas.size)
    for number, item in enumerate(result.items):
        _outline(pen, item, COLORS[number % len(COLORS)], width, canvas.size)
    taken: list[_Rect] = []
    for number, item in enumerate(result.items):
        name = f"{number + 1} {item.label}".strip() if len(result.items) > 1 or not item.label else item.label
        _label(pen, item, name, COLORS[number % len(COLORS)], width, canvas.size, taken)
    return canvas


def line_width(size: tuple[int, int]) -> int:
    """Pixels of the coloured line: thin enough for an icon, visible on a 4K screen."""
    return max(2, min(6, round(min(size) / 300)))


def _outline(
    pen: ImageDraw.ImageDraw, item: GroundedItem, color: tuple[int, int, int], width: int, size: tuple[int, int]
) -> None:
    """The coloured line between a white and a black one, so that it stands out on any screen."""
    if item.point is not None:
        x, y = item.point
        radius = 4 * width + 2
        for reach, stroke, paint_color in (
            (2, width + 4, (0, 0, 0)),
            (1, width + 2, (255, 255, 255)),
            (0, width, color),
        ):
            arm = radius + 2 * width + reach
            for dx, dy in ((1, 0), (-1, 0), (0, 1), (0, -1)):
                start = (x + dx * (width + 1 - reach), y + dy * (width + 1 - reach))
                pen.line((*start, x + dx * arm, y + dy * arm), fill=paint_color, width=stroke)
            ring = (x - radius, y - radius, x + radius, y + radius)
            pen.ellipse(_grown(ring, stroke / 2), outline=paint_color, width=stroke)
        return
    if item.quad is not None:
        corners = [*item.quad, item.quad[0]]
        for stroke, paint_color in ((width + 4, (0, 0, 0)), (width + 2, (255, 255, 255)), (width, color)):
            pen.line(corners, fill=paint_color, width=stroke, joint="curve")
        return
    assert item.box is not None
    # Lines lie outside the box, so that what it holds stays visible; at the edge of the image they move inwards.
    x1, y1, x2, y2 = (round(v) for v in item.box)
    edge_x, edge_y = size[0] - 1, size[1] - 1
    margin = width + 2
    left, top = max(x1 - margin, 0), max(y1 - margin, 0)
    right, bottom = min(x2 - 1 + margin, edge_x), min(y2 - 1 + margin, edge_y)
    right, bottom = max(right, left), max(bottom, top)
    _frame(pen, (left, top, right, bottom), 0, 1, (0, 0, 0))
    _frame(pen, (left, top, right, bottom), 1, width, color)
    _frame(pen, (left, top, right, bottom), 1 + width, 1, (255, 255, 255))


def _frame(pen: ImageDraw.ImageDraw, box: _Rect, inset: int, width: int, color: tuple[int, int, int]) -> None:
    x1, y1, x2, y2 = box[0] + inset, box[1] + inset, box[2] - inset, box[3] - inset
    if x2 >= x1 and y2 >= y1:
        pen.rectangle((x1, y1, x2, y2), outline=color, width=width)


def _label(
    pen: ImageDraw.ImageDraw,
    item: GroundedItem,
    name: str,
    color: tuple[int, int, int],
    width: int,
    size: tuple[int, int],
    taken: list[_Rect],
) -> None:
    """The name on a plate of its own: above the item, else below, beside or inside; off the other labels."""
    font = font_for(name, max(11, min(28, round(min(size) / 40))))
    name = _fitted(pen, name, font, size[0])
    if not name:
        return
    x1, y1, x2, y2 = pen.textbbox((0, 0), name, font=font)
    pad = 2
    plate_w, plate_h = x2 - x1 + 2 * pad + width, y2 - y1 + 2 * pad
    reach = 6 * width + 4 if item.point is not None else width + 3
    around = item.box if item.box is not None else (*item.center, *item.center)
    left, top, right, bottom = _grown(around, reach)
    places = [
        (left, top - plate_h),
        (left, bottom),
        (right, top),
        (left - plate_w, top),
        (right - plate_w, top - plate_h),
        (right - plate_w, bottom),
        (left + 2 * width, top + 2 * width),
    ]
    limits = (max(size[0] - plate_w, 0), max(size[1] - plate_h, 0))
    inside = [(min(max(x, 0), limits[0]), min(max(y, 0), limits[1])) for x, y in places]
    plates = [(x, y, x + plate_w, y + plate_h) for x, y in inside]
    own = _grown(around, 0)
    free = [p for p in plates if not any(_overlap(p, other) for other in taken)]
    plate = next((p for p in free if not _overlap(p, own)), free[0] if free else plates[0])
    taken.append(plate)
    pen.rectangle(plate, fill=(20, 20, 20), outline=(255, 255, 255))
    pen.rectangle((plate[0], plate[1], plate[0] + width + 1, plate[3]), fill=color)
    pen.text((plate[0] + pad + width + 1 - x1, plate[1] + pad - y1), name, font=font, fill=(255, 255, 255))


def _fitted(pen: ImageDraw.ImageDraw, name: str, font: Any, room: int) -> str:
    """`name`, on one line, cut with an ellipsis where the image is too narrow; "" where not even one letter fits."""
    name = " ".join(name[:200].split())
    if pen.textlength(name, font=font) + 8 <= room:
        return name
    while name and pen.textlength(f"{name}…", font=font) + 8 > room:
        name = name[:-1]
    return f"{name}…" if name else ""


def _grown(box: _Rect, by: float) -> _Rect:
    return box[0] - by, box[1] - by, box[2] + by, box[3] + by


def _overlap(a: _Rect, b: _Rect) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]
