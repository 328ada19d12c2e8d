"""Every kind of sample becomes 8-bit RGB on the background; expected values are worked out beside each case."""

from __future__ import annotations

import io
import struct

import numpy as np
import pytest
from PIL import Image

from tests.unit.chat.making import encode, raw_png
from visavis.chat.image import decode_array, decode_bytes, decode_pil
from visavis.errors import MediaError


def only(pixels: np.ndarray) -> tuple[int, ...]:
    """The colour of a picture of one colour."""
    assert (pixels == pixels[0, 0]).all()
    return tuple(int(v) for v in pixels[0, 0])


def colours(pixels: np.ndarray) -> list[tuple[int, ...]]:
    """The colours of the first row."""
    return [tuple(int(v) for v in pixel) for pixel in pixels[0]]


# ---- alpha ---------------------------------------------------------------------------------------------------------


def test_hidden_colour_of_transparent_pixels_does_not_show() -> None:
    assert only(decode_bytes(encode(Image.new("RGBA", (3, 2), (255, 0, 0, 0))))) == (255, 255, 255)


def test_half_transparent_pixels_are_composited_on_white() -> None:
    # alpha 128: red (200·128 + 255·127) / 255 = 227.39 → 227, green (10·128 + 255·127) / 255 = 132.02 → 132
    assert only(decode_bytes(encode(Image.new("RGBA", (3, 2), (200, 10, 10, 128))))) == (227, 132, 132)


def test_the_background_is_a_choice() -> None:
    data = encode(Image.new("RGBA", (3, 2), (200, 10, 10, 128)))
    # on black: 200·128/255 = 100.39 → 100, 10·128/255 = 5.02 → 5
    assert only(decode_bytes(data, background=(0, 0, 0))) == (100, 5, 5)
    clear = encode(Image.new("RGBA", (3, 2), (1, 2, 3, 0)))
    assert only(decode_bytes(clear, background=(7, 8, 9))) == (7, 8, 9)


def test_opaque_alpha_changes_nothing() -> None:
    assert only(decode_bytes(encode(Image.new("RGBA", (3, 2), (9, 8, 7, 255))))) == (9, 8, 7)


def test_grey_with_alpha() -> None:
    # 0·64/255 + 255·191/255 = 191
    assert only(decode_bytes(encode(Image.new("LA", (3, 2), (0, 64))))) == (191, 191, 191)


def test_every_alpha_and_value_is_rounded_to_the_nearest() -> None:
    values, alphas = np.meshgrid(np.arange(256), np.arange(256))
    rgba = np.stack([values, values, values, alphas], axis=2).astype(np.uint8)
    exact = (values * alphas + 255 * (255 - alphas)) / 255
    assert (decode_array(rgba)[:, :, 0] == np.rint(exact)).all()


@pytest.mark.parametrize("mode", ["RGBa", "La"])
def test_premultiplied_colours_are_not_multiplied_again(mode: str) -> None:
    image = Image.new(mode, (2, 2), (100, 100, 100, 128) if mode == "RGBa" else (100, 128))
    # 100 + 255·(255 − 128)/255 = 227
    assert only(decode_pil(image)) == (227, 227, 227)


def test_tiff_with_premultiplied_alpha() -> None:
    """ExtraSamples 1 (associated alpha): colour 100 at alpha 128 is premultiplied; on white it shows 100 + 127 = 227.
    Pillow undoes the multiplication, 100·255/128 = 199, which comes back as (199·128 + 255·127)/255 = 226.9."""
    data = encode(Image.new("RGBA", (4, 4), (100, 100, 100, 128)), "TIFF")
    at = data.index(struct.pack("<HHI", 338, 3, 1))  # the entry's value: 2 is straight alpha, 1 associated
    data = data[: at + 8] + struct.pack("<H", 1) + data[at + 10 :]
    assert only(decode_bytes(data)) == (227, 227, 227)


# ---- palettes and transparent colours --------------------------------------------------------------------------------


def palette_image() -> Image.Image:
    image = Image.new("P", (2, 1))
    image.putpalette([255, 0, 0, 0, 0, 255])
    image.putdata([0, 1])
    return image


def test_palette_without_transparency() -> None:
    assert colours(decode_bytes(encode(palette_image()))) == [(255, 0, 0), (0, 0, 255)]


def test_palette_with_one_transparent_index() -> None:
    assert colours(decode_bytes(encode(palette_image(), transparency=0))) == [(255, 255, 255), (0, 0, 255)]


def test_palette_with_an_alpha_for_each_index() -> None:
    # index 1, blue at alpha 51: red (0·51 + 255·204)/255 = 204, blue 255
    data = encode(palette_image(), transparency=bytes([255, 51]))
    assert colours(decode_bytes(data)) == [(255, 0, 0), (204, 204, 255)]


def test_palette_with_alpha_inside_the_palette() -> None:
    image = Image.new("P", (2, 1))
    image.putpalette([255, 0, 0, 0, 0, 0, 255, 255], "RGBA")
    image.putdata([0, 1])
    assert colours(decode_pil(image)) == [(255, 255, 255), (0, 0, 255)]


def test_palette_index_with_alpha_beside_it() -> None:
    image = palette_image().convert("PA")
    image.putalpha(Image.new("L", (2, 1), 0))
    assert only(decode_pil(image)) == (255, 255, 255)


def test_gif_transparency() -> None:
    data = encode(palette_image(), "GIF", transparency=1)
    assert colours(decode_bytes(data)) == [(255, 0, 0), (255, 255, 255)]


def test_transparent_colour_of_an_rgb_png() -> None:
    rows = [bytes([1, 2, 3, 1, 2, 4])]
    data = raw_png(2, 1, 8, 2, rows, [(b"tRNS", struct.pack(">HHH", 1, 2, 3))])
    assert colours(decode_bytes(data)) == [(255, 255, 255), (1, 2, 4)]


def test_transparent_colour_of_a_16_bit_rgb_png() -> None:
    rows = [struct.pack(">6H", 0x0102, 0x0304, 0x0506, 0xFFFF, 0x8000, 0)]
    data = raw_png(2, 1, 16, 2, rows, [(b"tRNS", struct.pack(">HHH", 0x0102, 0x0304, 0x0506))])
    assert colours(decode_bytes(data)) == [(255, 255, 255), (255, 128, 0)]


@pytest.mark.parametrize(
    ("depth", "row", "key", "expected"),
    [
        (1, 0b01000000, 1, [0, 255]),  # the second pixel is white, and transparent
        (1, 0b01000000, 0, [255, 255]),
        (2, 0b01110000, 1, [255, 255]),  # 1 is 85 but transparent, 3 is 255
        (2, 0b01100000, 2, [85, 255]),  # 2 is 170 but transparent
        (4, 0x3A, 10, [51, 255]),  # 3·17 = 51; 10 is transparent
        (8, 0, 7, [0, 255]),
    ],
)
def test_transparent_grey_of_every_depth(depth: int, row: int, key: int, expected: list[int]) -> None:
    """The file's key is on the file's scale; 2- and 4-bit samples are widened when read."""
    rows = [bytes([0, 7]) if depth == 8 else bytes([row])]
    data = raw_png(2, 1, depth, 0, rows, [(b"tRNS", struct.pack(">H", key))])
    assert [c[0] for c in colours(decode_bytes(data))] == expected


def test_transparent_grey_of_16_bits() -> None:
    data = raw_png(2, 1, 16, 0, [struct.pack(">HH", 0x1234, 0x1235)], [(b"tRNS", struct.pack(">H", 0x1234))])
    # 0x1235 = 4661; 4661/257 = 18.14
    assert colours(decode_bytes(data)) == [(255, 255, 255), (18, 18, 18)]


# ---- depths ----------------------------------------------------------------------------------------------------------


def test_one_bit_is_black_and_white() -> None:
    image = Image.new("1", (2, 1))
    image.putdata([0, 255])
    assert colours(decode_bytes(encode(image))) == [(0, 0, 0), (255, 255, 255)]


def test_16_bit_grey_is_scaled_not_clipped() -> None:
    values = [0, 128, 129, 257, 32768, 65535]
    data = raw_png(6, 1, 16, 0, [struct.pack(">6H", *values)])
    # v/257: 0, 0.498, 0.502, 1, 127.502, 255
    assert [c[0] for c in colours(decode_bytes(data))] == [0, 0, 1, 1, 128, 255]


@pytest.mark.parametrize("dtype", ["<u2", ">u2"])
def test_16_bit_tiff_of_either_byte_order(dtype: str) -> None:
    image = Image.fromarray(np.array([[0, 25700]], dtype=dtype))
    assert [c[0] for c in colours(decode_bytes(encode(image, "TIFF")))] == [0, 100]  # 25700/257 = 100


def test_mode_i_is_taken_as_16_bits_and_refused_beyond() -> None:
    image = Image.new("I", (1, 1), 51400)
    assert only(decode_pil(image)) == (200, 200, 200)  # 51400/257
    with pytest.raises(MediaError, match="from 70,000 to 70,000; only 16 bits"):
        decode_pil(Image.new("I", (1, 1), 70000))


def test_float_samples_mean_0_to_1() -> None:
    assert only(decode_pil(Image.new("F", (1, 1), 0.5))) == (128, 128, 128)  # 127.5, to the even number
    with pytest.raises(MediaError, match="from 200 to 200; floats mean 0 to 1"):
        decode_pil(Image.new("F", (1, 1), 200.0))


def test_16_bit_colour_keeps_its_high_byte() -> None:
    data = raw_png(1, 1, 16, 2, [struct.pack(">HHH", 0xFFFF, 0x80FF, 0x0001)])
    assert only(decode_bytes(data)) == (255, 0x80, 0)


def test_16_bit_grey_with_alpha() -> None:
    data = raw_png(1, 1, 16, 4, [struct.pack(">HH", 0, 0x40FF)])
    assert only(decode_bytes(data)) == (191, 191, 191)  # alpha 64: 255·191/255


# ---- colour models ---------------------------------------------------------------------------------------------------


def test_cmyk() -> None:
    # (255 − 51)·(255 − 102)/255 = 122.4; (255 − 0)·153/255 = 153; (255 − 255)·… = 0
    pixel = only(decode_bytes(encode(Image.new("CMYK", (8, 8), (51, 0, 255, 102)), "TIFF")))
    assert np.abs(np.array(pixel) - [122.4, 153, 0]).max() <= 1


def test_cmyk_jpeg_is_not_a_negative() -> None:
    data = encode(Image.new("CMYK", (16, 16), (0, 0, 0, 0)), "JPEG", quality=100)
    assert min(only(decode_bytes(data))) >= 253  # no ink is white


def test_ycck_jpeg() -> None:
    """The Adobe marker's transform byte set to 2 declares YCCK. File samples (100, 128, 128, 255) are then a luma of
    100 without colour: ink 255 − 100 as stored, inverted by Adobe's habit 100, no black: grey 255 − 100 = 155. Read
    as plain CMYK they would be (100, 128, 128)."""
    data = encode(Image.new("CMYK", (16, 16), (155, 127, 127, 0)), "JPEG", quality=100)
    at = data.index(b"Adobe") + 11
    assert data[at] == 0
    pixel = only(decode_bytes(data[:at] + b"\x02" + data[at + 1 :]))
    assert np.abs(np.array(pixel) - 155).max() <= 2


def test_a_colour_profile_changes_nothing() -> None:
    from PIL import ImageCms

    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("LAB")).tobytes()
    assert only(decode_bytes(encode(Image.new("RGB", (2, 2), (1, 2, 3)), icc_profile=profile))) == (1, 2, 3)


def test_a_mode_without_a_rule_is_refused_by_name() -> None:
    with pytest.raises(MediaError, match="mode LAB"):
        decode_pil(Image.new("LAB", (1, 1)))


# ---- animations ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fmt", ["GIF", "PNG", "WEBP", "TIFF"])
def test_the_first_frame_or_page_counts(fmt: str) -> None:
    first, second = Image.new("RGB", (8, 8), (250, 0, 0)), Image.new("RGB", (8, 8), (0, 0, 250))
    options = {"lossless": True} if fmt == "WEBP" else {}
    data = encode(first, fmt, save_all=True, append_images=[second], **options)
    with Image.open(io.BytesIO(data)) as check:
        assert getattr(check, "n_frames", 1) == 2
    assert only(decode_bytes(data)) == (250, 0, 0)


def test_a_pil_animation_counts_where_it_stands() -> None:
    first, second = Image.new("RGB", (8, 8), (250, 0, 0)), Image.new("RGB", (8, 8), (0, 0, 250))
    image = Image.open(io.BytesIO(encode(first, "GIF", save_all=True, append_images=[second])))
    image.seek(1)
    assert only(decode_pil(image)) == (0, 0, 250)


# ---- numpy -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 1)])
def test_grey_arrays(shape: tuple[int, ...]) -> None:
    pixels = decode_array(np.full(shape, 7, dtype=np.uint8))
    assert pixels.shape == (2, 3, 3)
    assert only(pixels) == (7, 7, 7)


def test_an_array_is_copied() -> None:
    array = np.zeros((2, 3, 3), dtype=np.uint8)
    pixels = decode_array(array)
    array[:] = 9
    assert only(pixels) == (0, 0, 0)


def test_a_strided_array_comes_out_contiguous() -> None:
    pixels = decode_array(np.arange(36, dtype=np.uint8).reshape(2, 6, 3)[:, ::-2])
    assert pixels.flags.c_contiguous
    assert pixels[0, 0].tolist() == [15, 16, 17]  # pixel 5 of the row


@pytest.mark.parametrize(
    ("value", "expected"), [(np.float32(0.2), 51), (np.float64(1.0), 255), (np.uint16(514), 2), (np.True_, 255)]
)
def test_other_dtypes_by_their_stated_rule(value: np.generic, expected: int) -> None:
    assert only(decode_array(np.full((1, 1, 3), value))) == (expected,) * 3


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((3, 20, 20), dtype=np.uint8), "channels first"),
        (np.zeros((20, 20, 2), dtype=np.uint8), "20 × 20 × 2"),
        (np.zeros(5, dtype=np.uint8), "an array of 5;"),
        (np.zeros((2, 2, 2, 3), dtype=np.uint8), "2 × 2 × 2 × 3"),
        (np.zeros((4, 4), dtype=np.int64), "int64; give uint8"),
        (np.full((4, 4), 128.0), "from 128 to 128; floats mean 0 to 1"),
        (np.full((4, 4), -0.1), "floats mean 0 to 1"),
        (np.full((4, 4), np.nan), "NaN"),
        (np.zeros((0, 4), dtype=np.uint8), "no pixels"),
    ],
)
def test_arrays_that_cannot_be_meant(array: np.ndarray, message: str) -> None:
    with pytest.raises(MediaError, match=message):
        decode_array(array)
