"""Layout templates for evaluation and samples only: no training screen is made with them."""

from __future__ import annotations

from training import widgets as w
from training.flow import CONTROLS, across, down, menu_entry, tab, wide_button
from training.glyphs import glyph
from training.screen import Canvas


def _side_form(c: Canvas) -> None:
    """Held out: a two-column form under a coloured band, links in a footer."""
    c.draw.rectangle((0, 0, c.width, 40), fill=c.theme.accent)
    columns = 2 if c.width > 440 else 1
    step = (c.width - 16) // columns
    for i in range(columns):
        area = (16 + i * step, 52, i * step + step, c.height - 70)
        down(c, area, (w.field, w.field, w.check), c.gap + 2, -(-c.wanted // columns) - 1)
    across(c, (16, c.height - 66, c.width - 16, c.height - 28), (w.button,), c.gap, 2)
    across(c, (8, c.height - 26, c.width - 8, c.height), (w.link,), c.gap + 10, 4)


def _phone(c: Canvas) -> None:
    """Held out: title bar with an action, a list, and a bar of icons at the bottom."""
    c.draw.rectangle((0, 0, c.width, 44), fill=c.theme.surface)
    glyph(c, 10, 12, 18, c.theme.ink)
    w.heading(c, 40, 8, c.width // 2 - 40, 18)
    across(c, (c.width // 2 + 10, 6, c.width - 4, 46), (w.button, w.link), c.gap, 1)
    columns = max(2, min(5, c.width // 96))
    step = c.width // columns
    c.draw.line((0, c.height - 84, c.width, c.height - 84), fill=c.theme.line)
    for i in range(columns):
        c.area = (i * step, c.height - 84, (i + 1) * step, c.height)
        w.tile(c, i * step + 2, c.height - 80, step - 4)
    down(c, (6, 52, c.width - 6, c.height - 90), (w.entry, w.entry, w.check), c.rng.randint(1, 6))


def _dropdown(c: Canvas) -> None:
    """Held out: a menu opened over a page with a few controls beside it."""
    low = across(c, (6, 4, c.width, 48), (w.link, tab), c.gap + 6, 4)
    wide = c.rng.randint(130, max(131, c.width // 2))
    x = c.rng.randrange(4, max(5, c.width - wide - 4))
    rows = c.rng.randint(2, 9)
    c.draw.rectangle((x + 3, low + 9, x + wide + 3, c.height - 20), fill=c.theme.line)
    c.panel((x, low + 6, x + wide, c.height - 24), c.theme.surface, c.theme.faint)
    down(c, (x + 3, low + 9, x + wide - 3, c.height - 26), (menu_entry,), 2, rows)
    c.take((x, low + 6, x + wide, c.height - 20))
    sides = [(x + wide + 12, low + 12, c.width - 6, c.height - 6), (6, low + 12, x - 12, c.height - 6)]
    for area in sides:
        if area[2] - area[0] > 80:
            down(c, area, CONTROLS, c.gap + 6, 6)


def _ribbon(c: Canvas) -> None:
    """Held out: tabs, groups of tool buttons, then a tree beside a property sheet."""
    low = across(c, (4, 0, c.width, 40), (tab,), 2, 4)
    c.draw.rectangle((0, low, c.width, low + 78), fill=c.theme.surface)
    low = across(c, (6, low + 4, c.width - 4, low + 96), (w.tile, w.tile, w.button), c.gap + 4, 6)
    wide = c.width // 2 - 10
    x = 12
    for depth in range(3):
        if low + 40 < c.height:
            low2 = down(c, (x + depth * 14, low + 12, wide, c.height - 6), (w.link,), c.gap, 3)
            low = low2 if depth < 2 else low
    down(c, (wide + 16, 130, c.width - 8, c.height - 6), (w.field, w.check), c.gap)


def _masonry(c: Canvas) -> None:
    """Held out: columns of cards of different heights with actions at their foot."""
    columns = max(1, c.width // 210)
    wide = (c.width - 10) // columns
    for i in range(columns):
        y = 8 + c.rng.randrange(24)
        while y < c.height - 110 and not c.full:
            high = c.rng.randint(96, 220)
            card = (10 + i * wide, y, (i + 1) * wide, min(c.height - 4, y + high))
            c.panel(card, c.theme.surface, c.theme.line)
            c.draw.rectangle((card[0], y, card[2] - 1, y + 18), fill=c.theme.accent)
            low = down(c, (card[0] + 8, y + 26, card[2] - 8, card[3] - 36), (w.link, w.paragraph, w.check), 8, 3)
            across(c, (card[0] + 8, low, card[2] - 6, card[3] - 2), (w.button, w.link), 6, 2)
            y = card[3] + 10


def _wizard(c: Canvas) -> None:
    """Held out: numbered steps on top, fields in the middle, buttons at the bottom right."""
    x = 10
    for _ in range(c.rng.randint(2, 4)):
        c.draw.ellipse((x, 10, x + 18, 28), outline=c.theme.accent, width=2)
        c.area = (x + 24, 4, c.width, 40)
        box = w.link(c, x + 24, 10, c.width // 4)
        x = (box[2] if box else x + 24) + 12
    c.area = (0, 0, c.width, c.height)
    w.heading(c, 20, 46, c.width - 40)
    down(c, (24, 84, c.width - 24, c.height - 56), (w.field, w.check, w.field, wide_button), c.gap + 2, c.wanted - 2)
    across(c, (c.width // 3, c.height - 50, c.width - 10, c.height - 4), (w.button,), c.gap, 3)


TEMPLATES = (
    ("side-form", _side_form),
    ("phone", _phone),
    ("dropdown", _dropdown),
    ("ribbon", _ribbon),
    ("masonry", _masonry),
    ("wizard", _wizard),
)
