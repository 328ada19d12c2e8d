"""Layout templates for training. Those for evaluation and samples are in ``held_out``."""

from __future__ import annotations

from training import widgets as w
from training.flow import CONTROLS, MIXED, across, down, grid, menu_entry, tab, wide_button
from training.fonts import families
from training.glyphs import glyph
from training.screen import Canvas, Theme


def _form(c: Canvas) -> None:
    m = c.rng.randint(6, 40)
    y = w.heading(c, m, m // 2, c.width - 2 * m)
    top = y[3] + c.gap if y else m
    kinds = (w.field, w.field, w.field, w.check, w.field)
    low = down(c, (m, top, c.width - m, c.height - 30), kinds, c.gap, max(2, c.wanted - 2))
    across(c, (m, low, c.width - m, c.height), (w.button, w.button, w.link), c.gap)


def _toolbar_list(c: Canvas) -> None:
    low = across(c, (4, 4, c.width - 4, 60), (w.button, w.link, tab), c.gap, c.rng.randint(1, 6))
    c.draw.line((0, low + 2, c.width, low + 2), fill=c.theme.line)
    m = c.rng.choice((0, 8, 20))
    down(c, (m, low + 6, c.width - m, c.height), (w.entry,), c.rng.choice((0, 1, 4, 8)) + 1)


def _tabs(c: Canvas) -> None:
    top = c.rng.randint(0, 50)
    if top > 36:
        w.heading(c, 8, 2, c.width - 16, 18)
    low = across(c, (2, top, c.width - 2, top + 60), (tab,), c.rng.choice((1, 2, 8)), c.rng.randint(2, 7))
    c.draw.line((0, low + 1, c.width, low + 1), fill=c.theme.line)
    body = (10, low + 12, c.width - 10, c.height - 4)
    if c.rng.random() < 0.5:
        grid(c, body, (w.tile, wide_button, w.entry, w.field), max(1, c.width // c.rng.randint(90, 220)), c.gap)
    else:
        down(c, body, MIXED, c.gap)


def _sidebar(c: Canvas) -> None:
    wide = c.rng.randint(90, max(91, c.width // 2))
    on_right = c.rng.random() < 0.3
    x = c.width - wide if on_right else 0
    c.draw.rectangle((x, 0, x + wide - 1, c.height), fill=c.theme.surface)
    top = c.rng.randint(2, 40)
    down(
        c,
        (x + 3, top, x + wide - 3, c.height),
        (menu_entry, menu_entry, menu_entry, w.link),
        c.rng.randint(1, 10),
        c.rng.randint(2, 12),
    )
    left = 8 if on_right else wide + 8
    down(c, (left, c.rng.randint(4, 40), c.width - 8 if not on_right else x - 8, c.height - 4), MIXED, c.gap)


def _icons(c: Canvas) -> None:
    m = c.rng.randint(4, 30)
    columns = max(2, (c.width - 2 * m) // c.rng.randint(64, 130))
    grid(c, (m, m, c.width - m, c.height - m), (w.tile,), columns, c.gap)


def _dialog(c: Canvas) -> None:
    if c.rng.random() < 0.5:
        across(c, (2, 2, c.width, 50), (tab, w.link), c.gap, 4)
    x1, y1 = c.rng.randint(4, max(5, c.width // 5)), c.rng.randint(44, max(45, c.height // 4))
    x2, y2 = c.width - c.rng.randint(4, max(5, c.width // 5)), c.height - c.rng.randint(4, max(5, c.height // 5))
    c.panel((x1, y1, x2, y2), c.theme.surface, c.theme.line, 2)
    inner = (x1 + 10, y1 + 8, x2 - 10, y2 - 44)
    low = down(c, inner, (w.heading, w.paragraph, w.field, w.check, w.field), c.gap, c.rng.randint(1, 6))
    across(c, (x1 + 10, max(low, y2 - 44), x2 - 10, y2 - 2), (w.button, w.button, w.link), c.gap, 4)


def _settings(c: Canvas) -> None:
    m = c.rng.randint(4, 30)
    columns = 1 if c.width < 420 else c.rng.choice((1, 1, 2))
    step = (c.width - m) // columns
    for i in range(columns):
        down(c, (m + i * step, m, (i + 1) * step, c.height - 2), (w.check, w.check, w.entry, w.heading, w.field), c.gap)


def _scatter(c: Canvas) -> None:
    for _ in range(c.wanted * 4):
        if c.full:
            break
        x, y = c.rng.randrange(c.width - 30), c.rng.randrange(c.height - 14)
        room = min(c.width - x, c.rng.randint(60, 360))
        c.rng.choice(MIXED)(c, x, y, room)


def _navbar(c: Canvas) -> None:
    high = c.rng.randint(30, 60)
    c.draw.rectangle((0, 0, c.width, high), fill=c.theme.surface)
    glyph(c, 6, 6, high - 14, c.theme.accent)
    across(c, (high + 6, 5, c.width - 4, high + 14), (w.link, tab, w.link, w.button), c.gap + 4, c.rng.randint(2, 7))
    m = c.rng.randint(8, 60)
    low = down(c, (m, high + 20, c.width - m, c.height // 2 + 60), (w.heading, w.paragraph, w.field), c.gap, 3)
    low = across(c, (m, low + 4, c.width - m, c.height), (w.button,), c.gap, 3)
    down(c, (m, low + 16, c.width - m, c.height - 4), MIXED, c.gap)


def _cards(c: Canvas) -> None:
    columns = max(1, c.width // c.rng.randint(130, 260))
    gap = c.rng.randint(6, 18)
    wide = (c.width - gap) // columns
    high = c.rng.randint(90, 200)
    y = gap
    while y + high < c.height and not c.full:
        for i in range(columns):
            card = (gap + i * wide, y, (i + 1) * wide, y + high)
            c.panel(card, c.theme.surface, c.theme.line)
            down(
                c,
                (card[0] + 6, y + 6, card[2] - 6, y + high - 4),
                (w.heading, w.paragraph, w.link, w.button, w.check),
                6,
                4,
            )
        y += high + gap


def _keypad(c: Canvas) -> None:
    columns = max(2, c.width // c.rng.randint(70, 150))
    m = c.rng.randint(2, 20)
    low = down(c, (m, m, c.width - m, c.height // 3), (w.field, w.heading), c.gap, 1)
    grid(c, (m, low, c.width - m, c.height - 2), (wide_button, w.button), columns, c.rng.randint(2, 12))


def _parts(c: Canvas) -> None:
    """Cut the screen into two to five areas and fill each in its own way."""
    areas = [(0, 0, c.width, c.height)]
    for _ in range(c.rng.randint(1, 4)):
        areas.sort(key=lambda a: (a[2] - a[0]) * (a[3] - a[1]))
        x1, y1, x2, y2 = areas.pop()
        share = c.rng.uniform(0.3, 0.7)
        if x2 - x1 > 260 and c.rng.random() < 0.6:
            cut = round(x1 + (x2 - x1) * share)
            areas += [(x1, y1, cut, y2), (cut, y1, x2, y2)]
        else:
            cut = round(y1 + (y2 - y1) * share)
            areas += [(x1, y1, x2, cut), (x1, cut, x2, y2)]
    quota = -(-c.wanted // len(areas))
    c.rng.shuffle(areas)
    for x1, y1, x2, y2 in areas:
        if c.rng.random() < 0.5:
            c.panel((x1 + 1, y1 + 1, x2 - 1, y2 - 1), c.theme.surface if c.rng.random() < 0.5 else None, c.theme.line)
        m = c.rng.randint(3, 14)
        inner = (x1 + m, y1 + m, x2 - m, y2 - m)
        kind = c.rng.randrange(4)
        if kind == 0:
            grid(
                c,
                inner,
                (w.tile, w.button, w.check, w.entry, w.link),
                max(1, (x2 - x1) // c.rng.randint(80, 200)),
                c.gap,
            )
        elif kind == 1:
            low = across(c, inner, CONTROLS, c.gap, quota)
            across(c, (inner[0], low + c.gap, inner[2], inner[3]), CONTROLS, c.gap, quota)
        else:
            down(c, inner, MIXED if kind == 2 else CONTROLS, c.gap, quota)


def _table(c: Canvas) -> None:
    columns = max(2, c.width // c.rng.randint(90, 180))
    step = c.width // columns
    high = c.rng.randint(22, 44)
    y = c.rng.randint(2, 30)
    while y + high < c.height and not c.full:
        for i in range(columns):
            c.draw.rectangle((i * step, y, (i + 1) * step, y + high), None, c.theme.line)
            if c.rng.random() < 0.7:
                c.area = (i * step + 4, y + 2, (i + 1) * step - 2, y + high - 1)
                c.rng.choice((w.link, w.link, w.button, w.check))(c, i * step + 5, y + 4, step - 10)
        y += high
    c.area = (0, 0, c.width, c.height)


def _plain(c: Canvas) -> None:
    """A page without style sheet: black on white, small grey controls in running lines, blue links, two typefaces."""
    if c.rng.random() < 0.8:
        c.theme = Theme(
            (255, 255, 255),
            c.rng.choice(((255, 255, 255), (239, 239, 239))),
            (0, 0, 0),
            (117, 117, 117),
            (118, 118, 118),
            (0, 0, 238),
            (255, 255, 255),
        )
        c.draw.rectangle((0, 0, c.width, c.height), fill=c.theme.back)
    c.radius, c.pad, c.gap = c.rng.randint(0, 3), c.rng.randint(1, 4), c.rng.randint(3, 10)
    c.size = c.rng.choice((13, 14, 16, 16, 18))
    m = c.rng.choice((8, 8, 16, 30))
    y = m
    if c.rng.random() < 0.6:
        box = w.heading(c, m, y, c.width - 2 * m, c.rng.choice((20, 24, 28, 32)))
        y = box[3] + c.rng.randint(6, 20) if box else y
    body = c.files
    other = c.rng.choice(families(c.split)).files
    while y < c.height - 20 and not c.full:
        c.files = body if c.rng.random() < 0.5 else other
        kinds = c.rng.choice(
            ((w.field,), (w.field, w.button), (w.check,), (w.button, w.link), (w.link,), (w.paragraph,))
        )
        y = across(c, (m, y, c.width - m, c.height), kinds, c.gap, c.rng.choice((1, 1, 1, 2, 3))) + c.rng.randint(3, 18)


TEMPLATES = (
    ("form", _form),
    ("toolbar-list", _toolbar_list),
    ("tabs", _tabs),
    ("sidebar", _sidebar),
    ("icons", _icons),
    ("dialog", _dialog),
    ("settings", _settings),
    ("scatter", _scatter),
    ("navbar", _navbar),
    ("cards", _cards),
    ("keypad", _keypad),
    ("parts", _parts),
    ("parts", _parts),
    ("scatter", _scatter),
    ("table", _table),
    ("form", _form),
    ("plain", _plain),
    ("plain", _plain),
)
