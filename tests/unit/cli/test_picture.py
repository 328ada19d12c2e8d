"""The picture in the terminal."""

from __future__ import annotations

import numpy as np

from visavis.cli.picture import half_blocks, shades


def test_two_pixels_to_a_character_keep_colours_and_shape() -> None:
    pixels = np.zeros((40, 80, 3), np.uint8)
    pixels[:20] = (255, 0, 0)  # upper half red, lower half blue
    pixels[20:] = (0, 0, 255)
    text = half_blocks(pixels, width=40)
    lines = text.plain.split("\n")
    assert (len(lines), {len(line) for line in lines}) == (10, {40})  # 40×20 pixels in rows of two
    first, last = text.spans[0].style, text.spans[-1].style
    assert first.color.triplet == (255, 0, 0)  # type: ignore[union-attr]
    assert last.bgcolor.triplet == (0, 0, 255)  # type: ignore[union-attr]


def test_tall_images_are_cut_to_a_screenful_by_scale() -> None:
    lines = half_blocks(np.zeros((2000, 100, 3), np.uint8), width=72).plain.split("\n")
    assert len(lines) == 24


def test_without_colours_dark_is_ink_and_light_is_paper() -> None:
    pixels = np.full((20, 20, 3), 255, np.uint8)
    pixels[:, 10:] = 0
    lines = shades(pixels, width=20).plain.split("\n")
    assert lines[0][0] == " "
    assert lines[0][-1] == "@"
