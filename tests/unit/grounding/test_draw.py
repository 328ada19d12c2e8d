"""Painting: where lines fall, that the original stays, and that files are whole or absent."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from visavis.errors import OptionError
from visavis.grounding import GroundedItem, GroundingResult, draw

GREY = np.full((200, 320, 3), 128, np.uint8)


def painted(result: GroundingResult, tmp_path: Path, image: object = GREY) -> np.ndarray:
    draw(image, result, tmp_path / "out.png")
    return np.asarray(Image.open(tmp_path / "out.png"))


def changed(picture: np.ndarray) -> np.ndarray:
    return np.any(picture != 128, axis=2)


def test_box_is_outlined_and_what_it_holds_stays_visible(tmp_path: Path) -> None:
    picture = painted(GroundingResult((GroundedItem("", box=(100, 60, 200, 120)),)), tmp_path)
    touched = changed(picture)
    assert not touched[60:120, 100:200].any()
    for y, x in ((59, 150), (120, 150), (90, 99), (90, 200)):
        assert touched[y, x], f"no line at {x},{y}"
    assert picture.shape == GREY.shape


def test_lines_have_dark_and_light_so_that_they_show_on_any_screen(tmp_path: Path) -> None:
    for shade in (0, 255):
        screen = np.full((200, 320, 3), shade, np.uint8)
        picture = painted(GroundingResult((GroundedItem("", box=(100, 60, 200, 120)),)), tmp_path, screen)
        contrast = np.abs(picture[90, 90:101].astype(int) - shade).max()
        assert contrast == 255


def test_point_is_marked_around_itself(tmp_path: Path) -> None:
    touched = changed(painted(GroundingResult((GroundedItem("x", point=(160, 100)),)), tmp_path))
    ys, xs = np.nonzero(touched[93:108, 153:168])  # 7 pixels around it; the label is farther
    assert len(ys) > 20
    assert abs(xs.mean() - 7) < 1
    assert abs(ys.mean() - 7) < 1


def test_label_differs_with_its_text_so_meaning_is_not_colour_only(tmp_path: Path) -> None:
    box = (100, 60, 200, 120)
    one = painted(GroundingResult((GroundedItem("settings", box=box),)), tmp_path)
    two = painted(GroundingResult((GroundedItem("language", box=box),)), tmp_path)
    assert (one != two).any()


@pytest.mark.parametrize(
    "item",
    [
        GroundedItem("whole screen", box=(0, 0, 320, 200)),
        GroundedItem("corner", box=(319, 199, 320, 200)),
        GroundedItem("line", box=(10, 10, 10, 50)),
        GroundedItem("corner", point=(320, 200)),
        GroundedItem("q", box=(1, 1, 9, 9), quad=((1, 1), (9, 2), (8, 9), (2, 8))),
        GroundedItem("a very long label " * 30, box=(5, 5, 9, 9)),
        GroundedItem("настройки 设置\nsecond line", box=(5, 5, 9, 9)),
    ],
)
def test_edges_and_odd_labels_are_painted(item: GroundedItem, tmp_path: Path) -> None:
    assert changed(painted(GroundingResult((item,)), tmp_path)).any()


def test_tiny_image(tmp_path: Path) -> None:
    pixel = np.full((1, 1, 3), 128, np.uint8)
    assert painted(GroundingResult((GroundedItem("x", box=(0, 0, 1, 1)),)), tmp_path, pixel).shape == (1, 1, 3)


def test_callers_image_is_left_alone(tmp_path: Path) -> None:
    image = Image.fromarray(GREY.copy())
    painted(GroundingResult((GroundedItem("x", box=(0, 0, 50, 50)),)), tmp_path, image)
    assert not changed(np.asarray(image)).any()


def test_missing_folder_and_unknown_suffix_are_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="does not exist"):
        draw(GREY, GroundingResult(), tmp_path / "missing" / "out.png")
    with pytest.raises(OptionError, match=r"\.png, \.jpg"):
        draw(GREY, GroundingResult(), tmp_path / "out.gifx")
    assert list(tmp_path.iterdir()) == []


def test_jpeg_is_written_without_leftovers(tmp_path: Path) -> None:
    draw(GREY, GroundingResult(), tmp_path / "out.JPG")
    assert [p.name for p in tmp_path.iterdir()] == ["out.JPG"]
    assert Image.open(tmp_path / "out.JPG").format == "JPEG"


def test_a_link_is_followed_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "link.png").symlink_to(tmp_path / "real.dat")
    draw(GREY, GroundingResult(), tmp_path / "link.png")
    assert (tmp_path / "link.png").is_symlink()
    assert Image.open(tmp_path / "real.dat").format == "PNG"


def test_the_longest_name_a_file_may_have_is_enough(tmp_path: Path) -> None:
    draw(GREY, GroundingResult(), tmp_path / ("n" * 251 + ".png"))
    assert len(list(tmp_path.iterdir())) == 1


def test_a_picture_too_large_for_its_format_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"out\.webp.*cannot be written"):
        draw(np.zeros((1, 16384, 3), np.uint8), GroundingResult(), tmp_path / "out.webp")
    assert list(tmp_path.iterdir()) == []
