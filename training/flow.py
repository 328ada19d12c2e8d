"""How layouts arrange widgets: downwards, side by side, in a grid."""

from __future__ import annotations

from collections.abc import Sequence

from training import widgets as w
from training.screen import Box, Canvas

MIXED: tuple[w.Widget, ...] = (
    w.button,
    w.button,
    w.field,
    w.field,
    w.check,
    w.link,
    w.entry,
    w.tile,
    w.heading,
    w.paragraph,
)
CONTROLS: tuple[w.Widget, ...] = (w.button, w.field, w.check, w.link)


def menu_entry(c: Canvas, x: int, y: int, room: int) -> Box | None:
    """A row of a menu."""
    return w.entry(c, x, y, room, "menu")


def wide_button(c: Canvas, x: int, y: int, room: int) -> Box | None:
    """A button over all of its room."""
    return w.button(c, x, y, room, stretch=True)


def tab(c: Canvas, x: int, y: int, room: int) -> Box | None:
    """One tab: a bordered cell or plain text, with a line under the chosen one."""
    size = c.vary()
    font = c.font(size)
    boxed = c.rng.random() < 0.6
    pad, tall = (c.rng.randint(6, 16), c.pad) if boxed else (2, 2)
    text = c.caption(font, room - 2 * pad)
    if text is None:
        return None
    box = (x, y, x + round(font.getlength(text)) + 2 * pad, y + round(size * 1.3) + 2 * tall)
    if not c.fits(box, 0):
        return None
    if boxed:
        c.draw.rectangle((box[0], box[1], box[2] - 1, box[3] - 1), c.theme.surface, c.theme.line)
    if c.rng.random() < 0.3:
        c.draw.line((box[0], box[3] - 2, box[2] - 1, box[3] - 2), fill=c.theme.accent, width=3)
    at = c.text(x + pad, (box[1] + box[3]) / 2, text, font, c.theme.ink)
    c.add("tab", text, text, box, at, at, size)
    return box


def down(c: Canvas, area: Box, kinds: Sequence[w.Widget], gap: int, most: int = 99) -> int:
    """Place widgets one under another. Returns the y below the last one."""
    c.area = area
    x, y, right, bottom = area
    misses = 0
    while y < bottom - 12 and misses < 4 and most > 0 and not c.full:
        box = c.rng.choice(kinds)(c, x, y, right - x)
        if box is None:
            misses += 1
        else:
            y, most = box[3] + gap, most - 1
    c.area = (0, 0, c.width, c.height)
    return y


def across(c: Canvas, area: Box, kinds: Sequence[w.Widget], gap: int, most: int = 99) -> int:
    """Place widgets side by side. Returns the y below the tallest one."""
    c.area = area
    x, y, right, _ = area
    low, misses = y, 0
    while x < right - 20 and misses < 4 and most > 0 and not c.full:
        box = c.rng.choice(kinds)(c, x, y, right - x)
        if box is None:
            misses += 1
        else:
            x, low, most = box[2] + gap, max(low, box[3]), most - 1
    c.area = (0, 0, c.width, c.height)
    return low


def grid(c: Canvas, area: Box, kinds: Sequence[w.Widget], columns: int, gap: int) -> None:
    """Place widgets in equal columns, row by row, each kind of widget once for all."""
    x, y, right, bottom = area
    step = (right - x + gap) // columns
    kind = c.rng.choice(kinds)
    while y < bottom and not c.full:
        low = y
        for i in range(columns):
            if c.full:
                break
            c.area = area
            box = kind(c, x + i * step, y, step - gap)
            low = max(low, box[3] if box else y)
        if low == y:
            break
        y = low + gap
    c.area = (0, 0, c.width, c.height)
