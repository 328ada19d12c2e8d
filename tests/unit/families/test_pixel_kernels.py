"""Compiled code makes the bytes that the installed Pillow makes and the floats that torch makes; none waits for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image as PILImage

from tests.reference.cases import film, picture
from visavis.chat.samples import WHITE, image_to_rgb
from visavis.compiling import BuildError, find_compiler
from visavis.families.resize import resize_all, resize_pixels
from visavis.patches import patchify, patchify_in_torch
from visavis.pixel_kernels import build, library, make_patches, resampling, resize_rgb, rgb_of
from visavis.prompt import PatchRule

try:
    build()
except BuildError as error:
    MISSING = str(error)
else:
    MISSING = ""

compiled = pytest.mark.skipif(bool(MISSING), reason=f"no compiled code here: {MISSING}")
SIDE = st.integers(1, 260)


def by_pillow(pixels: np.ndarray[tuple[int, ...], np.dtype[np.uint8]], high: int, wide: int) -> np.ndarray:  # type: ignore[type-arg]
    return np.asarray(PILImage.fromarray(pixels).resize((wide, high), PILImage.Resampling.BICUBIC))


def noise(height: int, width: int, *, seed: int = 0) -> np.ndarray:  # type: ignore[type-arg]
    """Black and white at random: the most overshoot there can be, and every rounding shows."""
    return np.random.default_rng(seed).integers(0, 2, (height, width, 3), dtype=np.uint8) * np.uint8(255)


@compiled
@settings(max_examples=150, deadline=None)
@given(SIDE, SIDE, SIDE, SIDE, st.integers(1, 4))
def test_resize_is_pillows_bit_for_bit(height: int, width: int, high: int, wide: int, threads: int) -> None:
    pixels = noise(height, width)
    made = resize_rgb(pixels, (high, wide), threads=threads)
    assert made is not None
    assert np.array_equal(made, by_pillow(pixels, high, wide))


@compiled
@settings(max_examples=100, deadline=None)
@given(st.integers(64, 200), st.integers(64, 200), st.integers(1, 29), st.integers(-2, 2))
def test_resize_is_pillows_where_the_order_of_its_passes_turns(
    height: int, width: int, narrower: int, off: int
) -> None:
    """Pillow 13 takes the columns first when the height shrinks by more than twice what the width does."""
    pixels = noise(height, width)
    high, wide = height - 2 * narrower + off, width - narrower
    assert np.array_equal(resize_rgb(pixels, (high, wide)), by_pillow(pixels, high, wide))  # type: ignore[arg-type]


@compiled
@pytest.mark.parametrize(
    ("size", "wanted"), [((1080, 1920), (728, 1316)), ((97, 2400), (28, 700)), ((26, 28), (84, 56))]
)
def test_whole_pictures_and_views_of_them(size: tuple[int, int], wanted: tuple[int, int]) -> None:
    pixels = picture(size[0] + 4, size[1] + 6, 3).pixels[2:-2, 3:-3]
    pixels.setflags(write=False)
    made = resize_rgb(pixels, wanted)
    assert np.array_equal(made, by_pillow(np.ascontiguousarray(pixels), *wanted))  # type: ignore[arg-type]


@compiled
@pytest.mark.parametrize("size", [(1, 1), (3, 1), (64, 33), (1080, 1920)])
def test_pillows_memory_is_read_as_pillow_gives_it(size: tuple[int, int]) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (*size, 3), dtype=np.uint8)
    image = PILImage.fromarray(pixels)
    made = rgb_of(image)
    if made is None:
        assert not hasattr(image, "__arrow_c_array__")  # a Pillow before 11.3
        return
    assert np.array_equal(made, pixels)
    made[:] = 7
    assert np.array_equal(np.asarray(image), pixels), "a copy"


def test_pictures_that_pillow_keeps_in_pieces_or_otherwise_are_left_to_it() -> None:
    assert rgb_of(PILImage.new("L", (5, 4))) is None
    assert rgb_of(PILImage.new("RGB", (3000, 2000))) is None  # 24 MB, more than one piece of its memory
    assert image_to_rgb(PILImage.new("RGB", (3000, 2000), (1, 2, 3)), WHITE)[-1, -1].tolist() == [1, 2, 3]


@compiled
@pytest.mark.parametrize("temporal", [1, 2, 3])
@pytest.mark.parametrize("rescale", [1 / 255, 1 / 127.5])
def test_patches_are_torchs_bit_for_bit(temporal: int, rescale: float) -> None:
    rule = PatchRule(7, 2, temporal, (0.1, 0.2, 0.3), (0.5, 0.25, 0.7), rescale)
    for pixels in (picture(28, 70, 1).pixels, *(film(n, 42, 28, seed=n).frames for n in (1, 2, 5))):
        assert np.array_equal(patchify(pixels, rule).numpy(), patchify_in_torch(pixels, rule).numpy())


def test_without_a_compiler_pillow_and_torch_do_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    rule = PatchRule(14, 2, 2, (0.5,) * 3, (0.5,) * 3)
    pixels = picture(300, 200, 5).pixels
    made = resize_pixels(pixels, (112, 84))
    patches = patchify(made, rule).numpy()
    for module in ("resampling", "patching"):
        monkeypatch.setattr(f"visavis.pixel_kernels.{module}.found", lambda: None)
    assert resize_rgb(pixels, (112, 84)) is None
    assert make_patches(made, rule, np.zeros((3, 256), dtype=np.float32)) is None
    assert np.array_equal(resize_pixels(pixels, (112, 84)), made)
    assert np.array_equal(patchify(made, rule).numpy(), patches)


@compiled
def test_a_pillow_that_computes_otherwise_is_left_to_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    real = PILImage.Image.resize
    monkeypatch.setattr(PILImage.Image, "resize", lambda *a, **k: real(*a, **k).point(lambda v: v ^ 1))
    resampling._order.cache_clear()
    try:
        assert resize_rgb(noise(30, 40), (10, 20)) is None
    finally:
        resampling._order.cache_clear()


@pytest.fixture
def empty_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(library, "_builder", None)
    for cached in (library._path, library._load, find_compiler):
        cached.cache_clear()
    yield tmp_path / "visavis" / "kernels"
    if library._builder is not None:
        library._builder.join()
    for cached in (library._path, library._load, find_compiler):
        cached.cache_clear()


@compiled
def test_the_first_picture_does_not_wait_for_the_compiler(empty_cache: Path) -> None:
    pixels = noise(200, 300)
    assert resize_rgb(pixels, (100, 120)) is None
    assert library._builder is not None
    library._builder.join()
    assert [file.suffix for file in empty_cache.iterdir()] == [".so"]
    assert np.array_equal(resize_rgb(pixels, (100, 120)), by_pillow(pixels, 100, 120))  # type: ignore[arg-type]


def test_a_missing_compiler_is_no_error_and_nothing_is_tried(
    empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert resize_rgb(noise(20, 30), (10, 12)) is None
    assert library._builder is None
    with pytest.raises(BuildError, match="no-such-compiler"):
        build()


@compiled
def test_many_pictures_at_once_are_each_their_own() -> None:
    jobs = [(noise(300 + i, 400, seed=i), (150, 200 + i)) for i in range(6)]
    made = resize_all([*jobs, (film(4, 60, 90, seed=2).frames, (28, 56))])
    for (pixels, size), result in zip(jobs, made, strict=False):
        assert np.array_equal(result, by_pillow(pixels, *size))
    assert made[-1].shape == (4, 28, 56, 3)
