"""An image in the terminal, two pixels to a character."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.text import Text

__all__ = ["half_blocks", "shades"]

MAX_ROWS = 24
SHADES = " .:-=+*#%@"  # from white paper to black ink


def half_blocks(pixels: Any, *, width: int) -> Text:
    """`pixels` (uint8, (height, width, 3)) in at most `width` columns and `MAX_ROWS` rows of upper half blocks: the
    foreground is the upper pixel, the background the lower one."""
    from rich.color import Color
    from rich.style import Style
    from rich.text import Text

    columns, rows = _fitted(pixels, width)
    data = _resized(pixels, columns, 2 * rows).tobytes()

    def color(x: int, y: int) -> Color:
        at = 3 * (y * columns + x)
        return Color.from_rgb(*data[at : at + 3])

    text = Text(no_wrap=True)
    for y in range(0, 2 * rows, 2):
        for x in range(columns):
            text.append("▀", Style(color=color(x, y), bgcolor=color(x, y + 1)))
        text.append("\n")
    text.right_crop(1)
    return text


def shades(pixels: Any, *, width: int) -> Text:
    """The same size in ten shades of grey made of letters, for output without colours."""
    from rich.text import Text

    columns, rows = _fitted(pixels, width)
    grey = _resized(pixels, columns, rows).convert("L").tobytes()
    letters = "".join(SHADES[(255 - value) * len(SHADES) // 256] for value in grey)
    return Text("\n".join(letters[i : i + columns] for i in range(0, len(letters), columns)), no_wrap=True)


def _fitted(pixels: Any, width: int) -> tuple[int, int]:
    """(columns, rows) of characters twice as high as wide."""
    height, across = pixels.shape[:2]
    scale = min(width / across, 2 * MAX_ROWS / height)
    return max(1, round(across * scale)), max(1, round(height * scale / 2))


def _resized(pixels: Any, width: int, height: int) -> Any:
    from PIL import Image

    return Image.fromarray(pixels).resize((width, height), Image.Resampling.LANCZOS)
