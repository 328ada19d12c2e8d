"""Patches: bit for bit transformers' Pillow processor; videos by the written rule."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image as PILImage

from tests.reference.cases import film, picture
from tests.reference.tiny_models import VL_FAMILIES
from visavis.families.resize import resize_pixels, smart_resize
from visavis.patches import patchify
from visavis.prompt import PatchRule

RULE = PatchRule(14, 2, 2, (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))


def by_hand(frames: npt.NDArray[np.uint8], rule: PatchRule) -> npt.NDArray[np.float32]:
    """(T, H, W, 3), T a multiple of the temporal patch, patch by patch in the order the rule states."""
    scaled = (frames.astype(np.float64) * rule.rescale).astype(np.float32)
    values = (scaled - np.float32(rule.mean)) / np.float32(rule.std)
    p, m, t = rule.patch_size, rule.merge_size, rule.temporal_patch_size
    rows = []
    for step in range(0, len(frames), t):
        for cell_row in range(0, frames.shape[1], p * m):
            for cell_column in range(0, frames.shape[2], p * m):
                for row in range(cell_row, cell_row + p * m, p):
                    for column in range(cell_column, cell_column + p * m, p):
                        patch = values[step : step + t, row : row + p, column : column + p]
                        rows.append(patch.transpose(3, 0, 1, 2).ravel())
    return np.stack(rows)


@pytest.mark.parametrize("name", VL_FAMILIES)
@pytest.mark.parametrize(("height", "width"), [(1, 1), (60, 90), (333, 77), (500, 701)])
def test_images_equal_transformers_pillow_processor_bit_for_bit(
    name: str, height: int, width: int, tiny: Any, transformers: Any
) -> None:
    from visavis.families import load_family

    reference = transformers.AutoImageProcessor.from_pretrained(tiny(name), backend="pil")
    assert type(reference).__name__.endswith("Pil")
    settings = load_family(str(tiny(name))).settings  # type: ignore[attr-defined]
    pixels = picture(height, width, 7).pixels
    size = smart_resize(height, width, cell=settings.rule.cell, bounds=settings.image_bounds)
    ours = patchify(resize_pixels(pixels, size), settings.rule).numpy()
    theirs = reference([PILImage.fromarray(pixels)], return_tensors="np")["pixel_values"]
    assert ours.dtype == np.float32
    assert np.array_equal(ours, theirs)


@pytest.mark.parametrize("rescale", [1 / 255, 1 / 127.5, 1.0])
def test_videos_follow_the_written_order(rescale: float) -> None:
    rule = PatchRule(4, 2, 2, (0.1, 0.2, 0.3), (0.5, 0.25, 0.7), rescale)
    frames = film(4, 16, 24, seed=1).frames
    assert np.array_equal(patchify(frames, rule).numpy(), by_hand(frames, rule))


def test_an_odd_video_repeats_its_last_frame() -> None:
    frames = film(3, 28, 56, seed=1).frames
    padded = np.concatenate([frames, frames[-1:]])
    assert np.array_equal(patchify(frames, RULE).numpy(), patchify(padded, RULE).numpy())


def test_a_still_image_is_a_video_of_the_same_frame_twice() -> None:
    pixels = picture(56, 84, 1).pixels
    assert np.array_equal(patchify(pixels, RULE).numpy(), patchify(np.stack([pixels, pixels]), RULE).numpy())


def test_three_frames_a_patch() -> None:
    rule = PatchRule(4, 2, 3, (0.5,) * 3, (0.5,) * 3)
    frames = film(4, 8, 8, seed=2).frames
    padded = np.concatenate([frames, frames[-1:], frames[-1:]])
    assert np.array_equal(patchify(frames, rule).numpy(), by_hand(padded, rule))
    assert patchify(frames[0], rule).shape == (4, 3 * 3 * 16)


def test_pixels_are_not_changed_and_may_be_read_only() -> None:
    pixels = picture(56, 56, 1).pixels
    pixels.setflags(write=False)
    before = pixels.copy()
    patchify(pixels, RULE).zero_()
    assert np.array_equal(pixels, before)


def test_a_view_of_a_larger_image_is_cut_like_a_copy() -> None:
    pixels = picture(100, 100, 1).pixels[10:66, 20:76]
    assert np.array_equal(patchify(pixels, RULE).numpy(), patchify(pixels.copy(), RULE).numpy())
