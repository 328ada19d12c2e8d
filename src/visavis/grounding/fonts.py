"""A font that has the letters of a label: Pillow's own, else one that the machine has."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from PIL import ImageFont

__all__ = ["font_for"]

# Names that Pillow looks up in the system's font folders, widest coverage last.
SYSTEM_FONTS = (
    "DejaVuSans.ttf",
    "NotoSans-Regular.ttf",
    "Arial Unicode.ttf",
    "NotoSansCJK-Regular.ttc",
    "wqy-microhei.ttc",
    "PingFang.ttc",
)
_NEVER_ASSIGNED = "\uffff"


def font_for(text: str, size: int) -> Any:
    """The first font with every letter of `text`; Pillow's own where none has."""
    own = ImageFont.load_default(size)
    if _covers(own, text):
        return own
    for name in SYSTEM_FONTS:
        font = _system_font(name, size)
        if font is not None and _covers(font, text):
            return font
    return own


@lru_cache(maxsize=64)
def _system_font(name: str, size: int) -> Any:
    try:
        return ImageFont.truetype(name, size)
    except OSError:
        return None


def _covers(font: Any, text: str) -> bool:
    """Whether no letter is drawn as the "missing" glyph."""
    if not isinstance(font, ImageFont.FreeTypeFont):
        return text.isascii()
    missing = bytes(font.getmask(_NEVER_ASSIGNED))
    return not any(bytes(font.getmask(letter)) == missing for letter in set(text) if not letter.isspace())
