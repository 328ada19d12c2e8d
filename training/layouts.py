"""Layout templates: how widgets are arranged. Held-out templates are used for evaluation and samples only."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from training import widgets as w
from training.fonts import families
from training.glyphs import glyph
from training.screen import Box, Canvas, Theme

MIXED: tuple[w.Widget, ...] = (w.button, w.button, w.field, w.field, w.check, w.link, w.entry, w.tile, w.heading, w.paragraph)
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
    down(c, (x + 3, top, x + wide - 3, c.height), (menu_entry, menu_entry, menu_entry, w.link), c.rng.randint(1, 10), c.rng.randint(2, 12))
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
            down(c, (card[0] + 6, y + 6, card[2] - 6, y + high - 4), (w.heading, w.paragraph, w.link, w.button, w.check), 6, 4)
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
            grid(c, inner, (w.tile, w.button, w.check, w.entry, w.link), max(1, (x2 - x1) // c.rng.randint(80, 200)), c.gap)
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
            (255, 255, 255), c.rng.choice(((255, 255, 255), (239, 239, 239))), (0, 0, 0), (117, 117, 117), (118, 118, 118),
            (0, 0, 238), (255, 255, 255),
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
        kinds = c.rng.choice(((w.field,), (w.field, w.button), (w.check,), (w.button, w.link), (w.link,), (w.paragraph,)))
        y = across(c, (m, y, c.width - m, c.height), kinds, c.gap, c.rng.choice((1, 1, 1, 2, 3))) + c.rng.randint(3, 18)


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


Layout = Callable[[Canvas], None]
TEMPLATES: dict[str, tuple[tuple[str, Layout], ...]] = {
    "train": (
        ("form", _form), ("toolbar-list", _toolbar_list), ("tabs", _tabs), ("sidebar", _sidebar), ("icons", _icons),
        ("dialog", _dialog), ("settings", _settings), ("scatter", _scatter), ("navbar", _navbar), ("cards", _cards),
        ("keypad", _keypad), ("parts", _parts), ("parts", _parts), ("scatter", _scatter), ("table", _table), ("form", _form),
        ("plain", _plain), ("plain", _plain),
    ),
    "eval": (
        ("side-form", _side_form), ("phone", _phone), ("dropdown", _dropdown), ("ribbon", _ribbon),
        ("masonry", _masonry), ("wizard", _wizard),
    ),
}
