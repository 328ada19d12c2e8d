"""Widgets: each draws one element and records it, or returns None where it does not fit.

All take the canvas, the top left corner and the most room they may take, and return the box they took in pixels.
"""

from __future__ import annotations

from collections.abc import Callable

from training import words
from training.glyphs import glyph
from training.screen import Box, Canvas

Widget = Callable[[Canvas, int, int, int], Box | None]


def button(c: Canvas, x: int, y: int, room: int, stretch: bool = False) -> Box | None:
    """Filled, outlined or plain; sometimes with a small glyph before the caption."""
    rng, size = c.rng, c.vary()
    font = c.font(size)
    pad_x, pad_y = rng.randint(4, 16), rng.randint(1, 10)
    lead = round(size * 1.3) if rng.random() < 0.25 else 0
    text = c.caption(font, room - 2 * pad_x - lead)
    if text is None:
        return None
    needed = round(font.getlength(text)) + 2 * pad_x + lead
    width = room if stretch else min(room, needed + rng.choice((0, 0, 10, 30)))
    box = (x, y, x + width, y + round(size * 1.25) + 2 * pad_y)
    if not c.fits(box):
        return None
    style = rng.random()
    if style < 0.45:
        fill, ink, line = c.theme.accent, c.theme.on_accent, None
    elif style < 0.75:
        fill, ink, line = c.theme.surface, c.theme.ink, c.theme.line
    else:
        fill, ink, line = None, c.theme.ink, c.theme.line if rng.random() < 0.8 else c.theme.ink
    c.panel(box, fill, line, rng.choice((1, 1, 2)))
    start = x + (pad_x if rng.random() < 0.15 else (width - needed) // 2 + pad_x)
    middle = (box[1] + box[3]) / 2
    if lead:
        glyph(c, start, round(middle - size / 2), size, ink)
    at = c.text(start + lead, middle, text, font, ink)
    c.add("button", text, text, box, at, at, size)
    return box


def _value(c: Canvas) -> str:
    rng = c.rng
    return words.caption(rng, c.lexicon) if rng.random() < 0.7 else "*" * rng.randint(4, 10)


def field(c: Canvas, x: int, y: int, room: int) -> Box | None:
    """An input with its label above, to the left, or as a placeholder inside."""
    rng, size = c.rng, c.vary()
    font = c.font(size, bold=False)
    pad_x, pad_y = rng.randint(2, 10), rng.randint(1, 9)
    style = rng.random()
    text = c.caption(font, room * 0.45 if 0.4 <= style < 0.65 else room - 2 * pad_x)
    if text is None:
        return None
    length = round(font.getlength(text))
    high = round(size * 1.25) + 2 * pad_y
    width = min(room, max(length + 2 * pad_x, rng.randint(80, 320)))
    label_font = c.font(size, bold=rng.random() < 0.3)
    if style < 0.4:
        left, top = x, y
    elif style < 0.65:
        left, top = x + max(length + rng.randint(4, 12), round(room * rng.uniform(-0.2, 0.45))), y
        width = min(width, x + room - left)
    else:
        left, top = x, y + round(size * 1.25) + rng.randint(1, 5)
    box = (left, top, left + width, top + high)
    whole = (x, y, box[2], box[3])
    if width < 40 or not c.fits(whole):
        return None
    if style >= 0.4:
        c.take(whole)
    if rng.random() < 0.2:
        c.draw.line((box[0], box[3] - 1, box[2] - 1, box[3] - 1), fill=c.theme.ink, width=rng.choice((1, 2)))
        if rng.random() < 0.5:
            c.draw.rectangle((box[0], box[1], box[2] - 1, box[3] - 2), fill=c.theme.surface)
    else:
        c.panel(box, c.theme.surface, c.theme.line if rng.random() < 0.7 else c.theme.faint, 1)
    middle = (box[1] + box[3]) / 2
    if style < 0.4:
        at = c.text(left + pad_x, middle, text, font, c.theme.faint)
        c.add("field", text, text, box, at, at, size)
        return whole
    label_y = middle if style < 0.65 else y + size * 0.62
    label_at = c.text(x, label_y, text, label_font, c.theme.ink)
    inner = _value(c) if rng.random() < 0.6 else ""
    arrow = rng.random() < 0.2 and width > 60
    inner_font = font if rng.random() < 0.7 else c.font(max(10, size - rng.randint(1, 3)), bold=False)
    if inner and inner_font.getlength(inner) <= width - 2 * pad_x - (size if arrow else 0):
        inner_at = c.text(left + pad_x, middle, inner, inner_font, c.theme.ink if rng.random() < 0.6 else c.theme.faint)
        inner = "" if inner.startswith("*") else inner
    else:
        inner, inner_at = "", label_at
    if arrow:
        a = box[2] - size
        c.draw.polygon(((a, middle - 3), (a + 8, middle - 3), (a + 4, middle + 3)), fill=c.theme.faint)
    c.add("field", text, inner, box, label_at, inner_at, size)
    return whole


def check(c: Canvas, x: int, y: int, room: int) -> Box | None:
    """A check box, radio button or switch with its caption; the box holds both."""
    rng, size = c.rng, c.vary()
    font = c.font(size, bold=False)
    kind = rng.choice(("check", "check", "radio", "switch"))
    mark = round(size * rng.uniform(0.8, 1.1))
    wide = mark * 2 if kind == "switch" else mark
    space = rng.randint(4, 10)
    text = c.caption(font, room - wide - space - 2)
    if text is None:
        return None
    length = round(font.getlength(text))
    right = kind == "switch" and rng.random() < 0.5
    width = room if right else wide + space + length + 2
    box = (x, y, x + width, y + max(round(size * 1.25), mark) + rng.choice((0, 2, 6)))
    if not c.fits(box):
        return None
    middle = (box[1] + box[3]) // 2
    mx = box[2] - wide if right else x
    spot = (mx, middle - mark // 2, mx + wide, middle - mark // 2 + mark)
    on = rng.random() < 0.5
    ring = (spot[0], spot[1], spot[2] - 1, spot[3] - 1)
    if kind == "check":
        c.draw.rectangle(ring, c.theme.accent if on else c.theme.surface, c.theme.faint)
        if on:
            a, b = spot[0], spot[1]
            marks = [
                (a + mark * 0.2, b + mark * 0.5),
                (a + mark * 0.45, b + mark * 0.75),
                (a + mark * 0.8, b + mark * 0.25),
            ]
            c.draw.line(marks, fill=c.theme.on_accent, width=2)
    elif kind == "radio":
        c.draw.ellipse(ring, c.theme.surface, c.theme.faint)
        if on:
            c.draw.ellipse((ring[0] + 3, ring[1] + 3, ring[2] - 3, ring[3] - 3), c.theme.accent)
    else:
        c.draw.rounded_rectangle(ring, mark // 2, c.theme.accent if on else c.theme.line)
        k = spot[2] - mark if on else spot[0]
        c.draw.ellipse((k + 2, spot[1] + 2, k + mark - 3, spot[3] - 3), (255, 255, 255))
    at = c.text(x if right else x + wide + space, middle, text, font, c.theme.ink)
    c.add("check", text, text, box, at, at, size)
    return box


def link(c: Canvas, x: int, y: int, room: int) -> Box | None:
    """Plain or underlined text; the box is the text's own line box."""
    rng, size = c.rng, c.vary()
    font = c.font(size)
    text = c.caption(font, room - 2)
    if text is None:
        return None
    box = (x, y, x + round(font.getlength(text)) + 1, y + round(size * rng.uniform(1.1, 1.4)))
    if not c.fits(box):
        return None
    ink = c.theme.ink if rng.random() < 0.5 else c.theme.accent if readable(c) else c.theme.ink
    middle = (box[1] + box[3]) / 2
    at = c.text(x, middle, text, font, ink)
    if rng.random() < 0.45:
        line_y = min(box[3] - 1, round(middle + size * 0.5))
        c.draw.line((x, line_y, box[2] - 1, line_y), fill=ink)
    c.add("link", text, text, box, at, at, size)
    return box


def readable(c: Canvas) -> bool:
    """Whether the accent stands out against the background."""
    return sum(abs(a - b) for a, b in zip(c.theme.accent, c.theme.back, strict=True)) > 280


def entry(c: Canvas, x: int, y: int, room: int, kind: str = "row") -> Box | None:
    """A full-width row of a list or menu: glyph, caption, sometimes a second line or a value at the end."""
    rng, size = c.rng, c.vary()
    font = c.font(size)
    pad_x, pad_y = rng.randint(4, 14), rng.randint(2, 10)
    lead = round(size * 1.7) if rng.random() < 0.4 else 0
    text = c.caption(font, room - 2 * pad_x - lead)
    if text is None:
        return None
    two = kind == "row" and rng.random() < 0.3
    small = max(10, size - 2)
    high = round(size * 1.3) + 2 * pad_y + (round(small * 1.3) if two else 0)
    box = (x, y, x + room, y + high)
    if not c.fits(box):
        return None
    chosen = rng.random() < 0.12
    ink = c.theme.on_accent if chosen else c.theme.ink
    if chosen:
        c.panel(box, c.theme.accent)
    elif rng.random() < 0.5:
        c.panel(box, c.theme.surface, c.theme.line if rng.random() < 0.5 else None)
    else:
        c.draw.line((x, y, box[2] - 1, y), fill=c.theme.line)
        c.draw.line((x, box[3] - 1, box[2] - 1, box[3] - 1), fill=c.theme.line)
    middle = y + pad_y + size * 0.65
    if lead:
        glyph(c, x + pad_x, round(middle - size / 2), size, ink)
    at = c.text(x + pad_x + lead, middle, text, font, ink)
    end = x + pad_x + lead + font.getlength(text)
    if two:
        _remark(c, x + pad_x + lead, middle + small * 1.3, box[2] - pad_x, small, ink if chosen else c.theme.faint)
    elif rng.random() < 0.3 and box[2] - pad_x - end > 60:
        value = str(rng.randrange(1000)) if rng.random() < 0.5 else ">"
        c.text(box[2] - pad_x - font.getlength(value), middle, value, font, ink if chosen else c.theme.faint)
    c.add(kind, text, "" if two else text, box, at, at, size)
    return box


def _remark(c: Canvas, x: float, y: float, end: float, size: int, ink: tuple[int, int, int]) -> None:
    font = c.font(size, bold=False)
    text = words.sentence(c.rng, c.lexicon, c.rng.randint(2, 6))
    while text and font.getlength(text) > end - x:
        text = text.rpartition(" ")[0]
    if text:
        c.text(x, y, text, font, ink)


def tile(c: Canvas, x: int, y: int, room: int) -> Box | None:
    """An icon with its caption underneath (the box holds both)."""
    rng, size = c.rng, min(c.vary(), 18)
    font = c.font(size, bold=False)
    text = c.caption(font, room - 4)
    if text is None:
        return None
    icon = min(room - 6, rng.randint(20, 56))
    framed = rng.random() < 0.4
    width = room if framed and rng.random() < 0.6 else max(icon, round(font.getlength(text))) + 4
    box = (x, y, x + width, y + icon + round(size * 1.3) + 8)
    if icon < 14 or not c.fits(box):
        return None
    if framed:
        c.panel(box, c.theme.surface, c.theme.line)
    middle = (box[0] + box[2]) / 2
    fill = c.theme.accent if rng.random() < 0.6 else tuple(rng.randrange(40, 220) for _ in range(3))
    spot = (round(middle - icon / 2), y + 3, round(middle + icon / 2), y + 3 + icon)
    if rng.random() < 0.6:
        c.draw.rounded_rectangle((spot[0], spot[1], spot[2] - 1, spot[3] - 1), icon // 5, fill)
        glyph(c, spot[0] + icon // 5, spot[1] + icon // 5, icon * 3 // 5, (255, 255, 255))
    else:
        glyph(c, spot[0], spot[1], icon, fill)
    at = c.text(middle - font.getlength(text) / 2, y + icon + 5 + size * 0.65, text, font, c.theme.ink)
    c.add("icon", text, text, box, at, at, size)
    return box


def heading(c: Canvas, x: int, y: int, room: int, size: int | None = None) -> Box | None:
    """Large text that is no element."""
    size = size or min(32, c.size + c.rng.randint(2, 10))
    box = (x, y, x + room, y + round(size * 1.3))
    if room < 40 or not c.fits(box):
        return None
    c.take(box)
    _remark(c, x, y + size * 0.65, x + room, size, c.theme.ink)
    return box


def paragraph(c: Canvas, x: int, y: int, room: int) -> Box | None:
    """One to three lines of small text that is no element."""
    size, lines = max(10, c.size - c.rng.randint(0, 3)), c.rng.randint(1, 3)
    step = round(size * 1.4)
    box = (x, y, x + room, y + lines * step)
    if room < 40 or not c.fits(box):
        return None
    c.take(box)
    for i in range(lines):
        _remark(c, x, y + i * step + size * 0.65, x + room, size, c.theme.faint)
    return box
