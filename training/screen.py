"""The screen a layout draws on: image, theme, fonts and the elements placed so far. ``generate`` makes one by seed."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from training import fonts, words

Box = tuple[int, int, int, int]
Colour = tuple[int, int, int]


# Text sizes of a screen, px; training sees small ones more often, since they are the hard ones.
SIZES = {
    "train": (10, 10, 10, 11, 11, 11, 12, 12, 12, 13, 13, 14, 14, 15, 16, 16, 17, 18, 19, 20, 22, 24),
    "eval": (10, 11, 12, 12, 13, 13, 14, 14, 15, 16, 16, 17, 18, 19, 20, 22, 24),
}


@dataclass(frozen=True, slots=True)
class TextAt:
    """Where a caption was drawn, in pixels: centre x of every character, middle y, font size."""

    xs: tuple[float, ...]
    y: float
    size: int


@dataclass(frozen=True, slots=True)
class Element:
    """One thing that can be asked about. ``box`` is x1, y1, x2, y2 in pixels; ``text`` is what stands inside it."""

    kind: str
    name: str
    text: str
    box: Box
    name_at: TextAt
    text_at: TextAt
    size: int


@dataclass(slots=True)
class Screen:
    """A drawn screen. ``image`` is RGB; ``texts`` is everything written on it, elements' captions and filler alike."""

    image: Image.Image
    elements: list[Element]
    layout: str
    seed: int
    texts: list[tuple[str, TextAt]]
    width: int
    height: int


@dataclass(frozen=True, slots=True)
class Theme:
    """Colours of one screen."""

    back: Colour
    surface: Colour
    ink: Colour
    faint: Colour
    line: Colour
    accent: Colour
    on_accent: Colour


def _mix(a: Colour, b: Colour, share: float) -> Colour:
    return tuple(round(x + (y - x) * share) for x, y in zip(a, b, strict=True))  # type: ignore[return-value]


def draw_theme(rng: random.Random) -> Theme:
    """Light (55 %), dark (35 %) or coloured (10 %), with random tints and enough contrast to read."""
    tint = tuple(rng.randrange(256) for _ in range(3))
    kind = rng.random()
    if kind < 0.55:
        back, ink = _mix((255, 255, 255), tint, rng.uniform(0, 0.09)), _mix((0, 0, 0), tint, rng.uniform(0, 0.3))
        surface = _mix(back, (255, 255, 255), rng.random()) if rng.random() < 0.6 else _mix(back, (0, 0, 0), 0.05)
    elif kind < 0.9:
        back, ink = _mix((0, 0, 0), tint, rng.uniform(0.02, 0.2)), _mix((255, 255, 255), tint, rng.uniform(0, 0.2))
        surface = _mix(back, (255, 255, 255), rng.uniform(0.03, 0.12))
    else:
        dark = rng.random() < 0.5
        pole, far = ((0, 0, 0), (255, 255, 255)) if dark else ((255, 255, 255), (0, 0, 0))
        back, ink = _mix(tint, pole, 0.6), _mix(far, tint, 0.08)
        surface = _mix(back, pole, 0.25)
    accent = tuple(rng.randrange(20, 236) for _ in range(3))
    bright = 0.3 * accent[0] + 0.59 * accent[1] + 0.11 * accent[2]
    on_accent = (255, 255, 255) if bright < 135 else (15, 15, 20)
    faint = _mix(ink, back, rng.uniform(0.15, 0.45))
    return Theme(back, surface, ink, faint, _mix(ink, back, rng.uniform(0.6, 0.85)), accent, on_accent)  # type: ignore


class Canvas:
    """What a layout draws with. Keeps captions distinct and boxes inside the screen and apart."""

    def __init__(self, rng: random.Random, split: str, lexicon: str, width: int, height: int, wanted: int) -> None:
        self.rng, self.split, self.width, self.height, self.wanted = rng, split, width, height, wanted
        self.lexicon = lexicon
        self.theme = draw_theme(rng)
        self.image = Image.new("RGB", (width, height), self.theme.back)
        self.draw = ImageDraw.Draw(self.image)
        family = rng.choice(fonts.families(split))
        self.files = family.files
        self.size = rng.choice(SIZES[split])
        self.radius = rng.choice((0, 0, 2, 3, 4, 6, 8, 12))
        self.pad = rng.randint(3, 10)
        self.gap = rng.randint(4, 16)
        self.elements: list[Element] = []
        self.texts: list[tuple[str, TextAt]] = []
        self.area: Box = (0, 0, width, height)
        self._taken: list[Box] = []
        self._keys: list[frozenset[str]] = []

    @property
    def full(self) -> bool:
        return len(self.elements) >= self.wanted

    def font(self, size: int | None = None, bold: bool | None = None) -> ImageFont.FreeTypeFont:
        """The screen's font; weights are drawn at random unless asked for."""
        if bold is None:
            bold = self.rng.random() < 0.2
        return fonts.load(self.files[-1] if bold else self.files[0], size or self.size)

    def vary(self) -> int:
        """A text size near the screen's own, 10 to 24 px."""
        return min(24, max(10, self.size + self.rng.choice((-2, -1, 0, 0, 0, 0, 1, 2))))

    def caption(self, font: ImageFont.FreeTypeFont, room: float) -> str | None:
        """A new caption at most ``room`` pixels wide that cannot be taken for another on this screen."""
        for _ in range(10):
            text = words.caption(self.rng, self.lexicon)
            if font.getlength(text) <= room and self._claim(text):
                return text
        return None

    def _claim(self, text: str) -> bool:
        own = [words.key(t) for t in (text, *words.CONCEPTS.get(text, ()))]
        if any(a <= b or b <= a for a in own for b in self._keys):
            return False
        self._keys += own
        return True

    def fits(self, box: tuple[float, float, float, float], margin: int = 1) -> bool:
        """Inside the current area and apart from everything placed so far."""
        x1, y1, x2, y2 = box
        left, top, right, bottom = self.area
        if x1 < left or y1 < top or x2 > right or y2 > bottom or x2 - x1 < 8 or y2 - y1 < 8:
            return False
        return all(
            x2 + margin <= a or c + margin <= x1 or y2 + margin <= b or d + margin <= y1 for a, b, c, d in self._taken
        )

    def take(self, box: Box) -> None:
        """Keep others out of this box."""
        self._taken.append(box)

    def text(self, x: float, y: float, text: str, font: ImageFont.FreeTypeFont, fill: Colour) -> TextAt:
        """Write left-aligned at ``x``, vertically centred on ``y``."""
        x, y = round(x), round(y)
        self.draw.text((x, y), text, font=font, fill=fill, anchor="lm")
        ends = [0.0, *itertools.accumulate(fonts.advance(font, char) for char in text)]
        at = TextAt(tuple(x + (a + b) / 2 for a, b in itertools.pairwise(ends)), y, int(font.size))
        self.texts.append((text, at))
        return at

    def panel(self, box: Box, fill: Colour | None, line: Colour | None = None, width: int = 1) -> None:
        """A rounded rectangle in the screen's own corner radius; x2, y2 exclusive."""
        x1, y1, x2, y2 = box
        radius = min(self.radius, (x2 - x1) // 2, (y2 - y1) // 2)
        self.draw.rounded_rectangle((x1, y1, x2 - 1, y2 - 1), radius, fill, line, width if line else 0)

    def add(self, kind: str, name: str, text: str, box: Box, name_at: TextAt, text_at: TextAt, size: int) -> None:
        """Record an element that has been drawn."""
        self.take(box)
        self.elements.append(Element(kind, name, text, box, name_at, text_at, size))


def _finish(rng: random.Random, image: Image.Image) -> Image.Image:
    """Light noise on some screens, JPEG-like softness on none."""
    if rng.random() < 0.12:
        noise = np.random.default_rng(rng.getrandbits(32)).normal(0, rng.uniform(1, 4), (image.height, image.width, 1))
        image = Image.fromarray(np.clip(np.asarray(image) + noise, 0, 255).astype(np.uint8))
    return image


def generate(
    seed: int, split: str, width: int, height: int, wanted: int | None = None, lexicon: str | None = None
) -> Screen:
    """One screen, the same for the same arguments. 3 to 25 elements.

    ``split`` ("train" or "eval") chooses fonts, layouts and dictionary; ``lexicon`` another one ("interface" too).
    """
    from training import held_out, layouts  # they draw on a Canvas

    rng = random.Random(f"{split}-{seed}-{width}-{height}")
    cells = width * height / 784
    most = max(4, min(25, int(cells / 12)))
    for attempt in range(30):
        count = wanted or rng.randint(3, most)
        canvas = Canvas(rng, split, lexicon or split, width, height, count)
        name, layout = rng.choice((layouts if split == "train" else held_out).TEMPLATES)
        layout(canvas)
        if len(canvas.elements) >= 3 or attempt == 29:
            return Screen(_finish(rng, canvas.image), canvas.elements, name, seed, canvas.texts, width, height)
    raise AssertionError
