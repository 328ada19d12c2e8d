"""EXIF orientation: the expected picture is derived from the standard's own words (CIPA DC-008, tag 0x0112): for each
value, at which visual side of the picture its stored row 0 and column 0 lie."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image, PngImagePlugin

from tests.unit.chat.making import Pixels, encode
from visavis.chat.image import decode_bytes, decode_pil

SIDES = {
    1: ("top", "left"),
    2: ("top", "right"),
    3: ("bottom", "right"),
    4: ("bottom", "left"),
    5: ("left", "top"),
    6: ("right", "top"),
    7: ("right", "bottom"),
    8: ("left", "bottom"),
}
BLOCK = 16  # pixels; each block of one colour, so that lossy formats keep its middle
COLOURS = np.array(
    [[[255, 0, 0], [0, 255, 0], [0, 0, 255]], [[255, 255, 0], [0, 255, 255], [255, 255, 255]]], dtype=np.uint8
)  # the upright picture: 2 rows of 3 blocks


def stored(orientation: int) -> Image.Image:
    """How a camera with this orientation stores the upright COLOURS."""
    height, width, _ = COLOURS.shape
    row_side, column_side = SIDES[orientation]
    turned = row_side in ("left", "right")
    rows, columns = (width, height) if turned else (height, width)
    blocks = np.zeros((rows, columns, 3), dtype=np.uint8)
    for r in range(rows):
        for c in range(columns):
            place = {}
            for side, k in ((row_side, r), (column_side, c)):
                match side:
                    case "top":
                        place["y"] = k
                    case "bottom":
                        place["y"] = height - 1 - k
                    case "left":
                        place["x"] = k
                    case "right":
                        place["x"] = width - 1 - k
            blocks[r, c] = COLOURS[place["y"], place["x"]]
    return Image.fromarray(blocks.repeat(BLOCK, 0).repeat(BLOCK, 1))


def exif(orientation: int) -> Image.Exif:
    tags = Image.Exif()
    tags[0x0112] = orientation
    return tags


def block_colours(pixels: Pixels) -> Pixels:
    return pixels[BLOCK // 2 :: BLOCK, BLOCK // 2 :: BLOCK]


@pytest.mark.parametrize("orientation", SIDES)
@pytest.mark.parametrize("fmt", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_exif_rotated_photo_is_upright(orientation: int, fmt: str) -> None:
    options = {"JPEG": {"quality": 95, "subsampling": 0}, "WEBP": {"lossless": True}}.get(fmt, {})
    data = encode(stored(orientation), fmt, exif=exif(orientation), **options)
    pixels = decode_bytes(data)
    assert pixels.shape == (2 * BLOCK, 3 * BLOCK, 3)
    assert pixels.flags.c_contiguous
    assert np.abs(block_colours(pixels).astype(int) - COLOURS).max() <= (4 if fmt == "JPEG" else 0)


@pytest.mark.parametrize("orientation", SIDES)
def test_a_pil_image_is_turned_by_its_exif_too(orientation: int) -> None:
    image = Image.open(io.BytesIO(encode(stored(orientation), "PNG", exif=exif(orientation))))
    assert (block_colours(decode_pil(image)) == COLOURS).all()


def test_exif_after_the_pixels_of_a_png_counts() -> None:
    """PNG allows eXIf behind the image data, where it is seen only once everything was read."""
    data = encode(stored(6), "PNG")
    tags = exif(6).tobytes().removeprefix(b"Exif\x00\x00")
    end = data.index(b"IEND") - 4
    out = io.BytesIO(data[:end])
    out.seek(0, io.SEEK_END)
    PngImagePlugin.putchunk(out, b"eXIf", tags)
    assert (block_colours(decode_bytes(out.getvalue() + data[end:])) == COLOURS).all()


@pytest.mark.parametrize("value", [0, 9, 255])
def test_an_orientation_out_of_range_changes_nothing(value: int) -> None:
    pixels = decode_bytes(encode(stored(1), "PNG", exif=exif(value)))
    assert (block_colours(pixels) == COLOURS).all()


def test_broken_exif_does_not_spoil_a_picture() -> None:
    pixels = decode_bytes(encode(stored(1), "PNG", exif=b"Exif\x00\x00MM\x00*\x00\x00\x00\x08\xff\xff"))
    assert (block_colours(pixels) == COLOURS).all()


def test_an_image_already_turned_by_the_user_is_not_turned_again() -> None:
    from PIL import ImageOps

    image = ImageOps.exif_transpose(Image.open(io.BytesIO(encode(stored(6), "PNG", exif=exif(6)))))
    assert (block_colours(decode_pil(image)) == COLOURS).all()
