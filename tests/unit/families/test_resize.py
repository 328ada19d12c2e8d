"""The size rules, against numbers measured with transformers and arithmetic shown here."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image as PILImage

from visavis.chat.types import PixelLimits
from visavis.errors import MediaError
from visavis.families.resize import (
    PixelBounds,
    frame_share,
    resize_all,
    resize_pixels,
    smart_resize,
    smart_resize_video,
)

QWEN2 = PixelBounds(56 * 56, 16384 * 28 * 28)


def bounds(cell: int, cells: int | None) -> PixelBounds:
    """The lower bound of Qwen2-VL, and at most so many cells."""
    return PixelBounds(56 * 56, QWEN2.max_pixels if cells is None else cells * cell * cell)


@pytest.mark.parametrize(
    ("height", "width", "cell", "cells", "wanted", "tokens"),
    [
        (434, 368, 28, None, (448, 364), 208),
        (434, 368, 32, 16384, (448, 384), 168),
        (1080, 1920, 28, 1280, (728, 1316), 1222),
        (1080, 1920, 32, 16384, (1088, 1920), 2040),
        (1724, 1362, 28, 1280, (1120, 868), 1240),
        (27, 332, 28, None, (28, 336), 12),
        (28, 26, 28, None, (84, 56), 6),
        (1, 1, 28, None, (56, 56), 4),
        (13, 2000, 28, None, (28, 700), 25),  # qwen-vl-utils, another rule, gives (28, 1988)
    ],
)
def test_measured_sizes(
    height: int, width: int, cell: int, cells: int | None, wanted: tuple[int, int], tokens: int
) -> None:
    size = smart_resize(height, width, cell=cell, bounds=bounds(cell, cells))
    assert size == wanted
    assert (size[0] // cell) * (size[1] // cell) == tokens


def test_halves_are_rounded_to_even() -> None:
    # 434 / 28 = 15.5 → 16 and 406 / 28 = 14.5 → 14
    assert smart_resize(434, 406, cell=28, bounds=QWEN2) == (16 * 28, 14 * 28)


def test_two_resizes_in_a_row_would_give_another_count() -> None:
    once = smart_resize(434, 368, cell=32, bounds=QWEN2)
    twice = smart_resize(*smart_resize(434, 368, cell=28, bounds=QWEN2), cell=32, bounds=QWEN2)
    assert (once[0] // 32) * (once[1] // 32) == 168
    assert (twice[0] // 32) * (twice[1] // 32) == 154


@pytest.mark.parametrize(("height", "width"), [(10, 2001), (2010, 10)])
def test_too_long_an_image_is_refused_with_its_numbers(height: int, width: int) -> None:
    with pytest.raises(MediaError, match=rf"messages\[0\].content\[1\]: {width}×{height} .*20\d\.\d times.*200"):
        smart_resize(height, width, cell=28, bounds=QWEN2, where="messages[0].content[1]")
    assert smart_resize(10, 2000, cell=28, bounds=QWEN2)  # exactly 200 is allowed


def test_an_empty_image_is_refused() -> None:
    with pytest.raises(MediaError, match="part: 5×0 pixels"):
        smart_resize(0, 5, cell=28, bounds=QWEN2, where="part")


@given(
    st.integers(1, 3000), st.integers(1, 3000), st.sampled_from([28, 32]), st.integers(4, 2000), st.integers(0, 2000)
)
def test_sides_are_cells_and_the_area_stays_in_bounds(high: int, wide: int, cell: int, low: int, more: int) -> None:
    if max(high, wide) / min(high, wide) > 200:
        return
    limits = PixelBounds(low * cell * cell, (low + more) * 2 * cell * cell)
    height, width = smart_resize(high, wide, cell=cell, bounds=limits)
    assert height % cell == width % cell == 0
    assert min(height, width) >= cell
    # Raising a side to one whole cell may cost more than the upper bound, nothing else may.
    assert height * width <= limits.max_pixels or min(height, width) == cell
    assert smart_resize(height, width, cell=cell, bounds=PixelBounds(1, height * width)) == (height, width)


@pytest.mark.parametrize(
    ("frames", "height", "width", "low", "high", "wanted"),
    [
        # 8 · 1088 · 1920 = 16.7 M > 6.3 M: √(8·1080·1920 / 6291456) = 1.6238, 1080/1.6238/32 = 20.8, 1920/…/32 = 36.9
        (8, 1080, 1920, 4096, 6291456, (20 * 32, 36 * 32)),
        # 2 · 64 · 96 = 12288 pixels are within bounds
        (2, 64, 96, 4096, 6291456, (64, 96)),
        # below one cell: 16×64 is scaled by 2 to 32×128 first; 4 · 32 · 128 = 16384
        (4, 16, 64, 4096, 6291456, (32, 128)),
        # 2 · 32 · 32 = 2048 < 8192: √(8192 / 2048) = 2
        (2, 32, 32, 8192, 6291456, (64, 64)),
    ],
)
def test_qwen3_vl_videos_are_bounded_as_a_volume(
    frames: int, height: int, width: int, low: int, high: int, wanted: tuple[int, int]
) -> None:
    limits = PixelBounds(low, high)
    assert smart_resize_video(frames, height, width, cell=32, temporal=2, bounds=limits) == wanted


def test_one_frame_counts_as_the_two_it_is_padded_to() -> None:
    one = smart_resize_video(1, 500, 700, cell=32, temporal=2, bounds=PixelBounds(4096, 400_000))
    assert one == smart_resize_video(2, 500, 700, cell=32, temporal=2, bounds=PixelBounds(4096, 400_000))


def test_frames_share_a_total_as_in_qwen_vl_utils() -> None:
    # 100 frames of 1,000,000 pixels together, two frames a token: 20,000 each; never below 1.05 · min
    assert frame_share(PixelBounds(3136, 602112), 1_000_000, 100, 2) == PixelBounds(3136, 20_000)
    assert frame_share(PixelBounds(3136, 602112), 1_000_000, 1000, 2) == PixelBounds(3136, int(3136 * 1.05))
    assert frame_share(PixelBounds(3136, 10_000), 1_000_000, 10, 2) == PixelBounds(3136, 10_000)


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        (PixelLimits(min_pixels=5000, max_pixels=4000), "min_pixels 5000 is more than max_pixels 4000"),
        (PixelLimits(max_pixels=0), "max_pixels 0"),
        (PixelLimits(resized_height=280), "resized_height and resized_width go together"),
    ],
)
def test_contradicting_limits_are_refused(limits: PixelLimits, message: str) -> None:
    with pytest.raises(MediaError, match=f"part: {message}"):
        QWEN2.within(limits, "part")


def test_a_wish_beyond_the_models_other_bound_wins() -> None:
    assert QWEN2.within(PixelLimits(max_pixels=1000), "x") == PixelBounds(1000, 1000)
    assert PixelBounds(100, 200).within(PixelLimits(min_pixels=300), "x") == PixelBounds(300, 300)


def test_pixels_are_pillows_bicubic() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (37, 61, 3), dtype=np.uint8)
    wanted = np.asarray(PILImage.fromarray(pixels).resize((84, 56), PILImage.Resampling.BICUBIC))
    assert np.array_equal(resize_pixels(pixels, (56, 84)), wanted)
    assert resize_pixels(pixels, (37, 61)) is pixels


def test_many_at_once_equal_one_by_one() -> None:
    rng = np.random.default_rng(1)
    images = [rng.integers(0, 256, (300 + i, 400, 3), dtype=np.uint8) for i in range(5)]
    video = rng.integers(0, 256, (3, 100, 120, 3), dtype=np.uint8)
    kept = rng.integers(0, 256, (2, 56, 56, 3), dtype=np.uint8)
    done = resize_all([*((i, (280, 308)) for i in images), (video, (84, 112)), (kept, (56, 56))])
    for image, result in zip(images, done[:5], strict=True):
        assert np.array_equal(result, resize_pixels(image, (280, 308)))
    assert done[5].shape == (3, 84, 112, 3)
    assert np.array_equal(done[5][2], resize_pixels(video[2], (84, 112)))
    assert np.array_equal(done[6], kept)
