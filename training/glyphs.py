"""Small vector pictograms: decoration that carries no text."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from training.screen import Canvas, Colour


def glyph(c: Canvas, x: int, y: int, size: int, ink: Colour) -> None:
    """One random pictogram inside the square of ``size`` pixels at (x, y)."""
    d, s, rng = c.draw, size, c.rng
    pen = max(1, s // 10)
    kind = rng.randrange(12)
    if kind == 0:  # gear
        d.ellipse((x + s * 0.2, y + s * 0.2, x + s * 0.8, y + s * 0.8), outline=ink, width=pen * 2)
        for i in range(8):
            a = i * math.pi / 4
            mx, my = x + s / 2, y + s / 2
            ends = (
                mx + math.cos(a) * s * 0.3,
                my + math.sin(a) * s * 0.3,
                mx + math.cos(a) * s / 2,
                my + math.sin(a) * s / 2,
            )
            d.line(ends, fill=ink, width=pen)
    elif kind == 1:  # magnifier
        d.ellipse((x, y, x + s * 0.65, y + s * 0.65), outline=ink, width=pen)
        d.line((x + s * 0.6, y + s * 0.6, x + s, y + s), fill=ink, width=pen + 1)
    elif kind == 2:  # house
        d.polygon(((x, y + s * 0.5), (x + s * 0.5, y), (x + s, y + s * 0.5)), fill=ink)
        d.rectangle((x + s * 0.2, y + s * 0.5, x + s * 0.8, y + s), fill=ink)
    elif kind == 3:  # three bars
        for i in range(3):
            d.line((x, y + s * (0.2 + 0.3 * i), x + s, y + s * (0.2 + 0.3 * i)), fill=ink, width=pen)
    elif kind == 4:  # person
        d.ellipse((x + s * 0.3, y, x + s * 0.7, y + s * 0.4), fill=ink)
        d.pieslice((x + s * 0.1, y + s * 0.45, x + s * 0.9, y + s * 1.4), 180, 360, fill=ink)
    elif kind == 5:  # envelope
        d.rectangle((x, y + s * 0.2, x + s, y + s * 0.8), outline=ink, width=pen)
        d.line(((x, y + s * 0.2), (x + s / 2, y + s * 0.55), (x + s, y + s * 0.2)), fill=ink, width=pen)
    elif kind == 6:  # star
        points = []
        for i in range(10):
            r = s / 2 if i % 2 == 0 else s / 5
            a = i * math.pi / 5 - math.pi / 2
            points.append((x + s / 2 + r * math.cos(a), y + s / 2 + r * math.sin(a)))
        d.polygon(points, fill=ink)
    elif kind == 7:  # plus
        d.line((x + s / 2, y, x + s / 2, y + s), fill=ink, width=pen + 1)
        d.line((x, y + s / 2, x + s, y + s / 2), fill=ink, width=pen + 1)
    elif kind == 8:  # disc
        d.ellipse((x, y, x + s - 1, y + s - 1), fill=ink)
    elif kind == 9:  # arrow
        d.line(((x + s * 0.6, y), (x + s * 0.2, y + s / 2), (x + s * 0.6, y + s)), fill=ink, width=pen + 1)
    elif kind == 10:  # page
        d.rectangle((x + s * 0.15, y, x + s * 0.85, y + s - 1), outline=ink, width=pen)
        d.line((x + s * 0.3, y + s * 0.4, x + s * 0.7, y + s * 0.4), fill=ink, width=pen)
    else:  # play
        d.polygon(((x, y), (x + s, y + s / 2), (x, y + s)), fill=ink)
