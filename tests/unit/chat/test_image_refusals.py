"""What is not a readable image is refused by name, before it costs anything."""

from __future__ import annotations

import contextlib
import io
from dataclasses import replace

import pytest
from PIL import Image

from tests.unit.chat.making import encode, png, raw_png, video
from visavis.chat.fetch import PERMISSIVE, STRICT
from visavis.chat.image import decode_bytes, decode_pil
from visavis.chat.sniff import sniff
from visavis.errors import MediaError

HEIC = b"\x00\x00\x00\x18ftypheic\x00\x00\x00\x00mif1heic" + bytes(64)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", r"is empty \(0 bytes\)"),
        (b"<!DOCTYPE html><html>Please log in</html>", r"a web page \(HTML\).*leads to a page"),
        (b"\xef\xbb\xbf\n <html>", r"a web page \(HTML\)"),
        (b'<?xml version="1.0"?><svg xmlns="http://www.w3.org/2000/svg"/>', "an SVG drawing.*render it to PNG"),
        (b"<svg></svg>", "an SVG drawing"),
        (HEIC, "a HEIC image.*convert it"),
        (b"%PDF-1.7", "a PDF"),
        (b'{"error": "not found"}', "JSON text"),
        (b"version https://git-lfs.github.com/spec/v1\noid", "Git LFS pointer.*git lfs pull"),
        (b"hello", "plain text"),
        (b"\x00\x01\x02\x03" * 9, "unknown data"),
        (b"PK\x03\x04", "a ZIP archive"),
    ],
)
def test_what_is_no_image_is_named(data: bytes, message: str) -> None:
    with pytest.raises(MediaError, match=message):
        decode_bytes(data)


def test_a_video_is_named_as_one() -> None:
    with pytest.raises(MediaError, match=r"is a video \(MP4\), not an image; give it as a video part"):
        decode_bytes(video(frames=2))


def test_a_png_of_a_signature_alone_is_said_to_be_cut_off() -> None:
    with pytest.raises(MediaError, match="is a broken PNG: its data is cut off"):
        decode_bytes(b"\x89PNG\r\n\x1a\n")


@pytest.mark.parametrize("fmt", ["JPEG", "PNG", "GIF", "WEBP", "TIFF", "BMP"])
@pytest.mark.parametrize("kept", [0.5, 0.9])
def test_a_cut_off_file_is_refused(fmt: str, kept: float) -> None:
    noise = Image.effect_noise((64, 64), 90).convert("RGB")
    data = encode(noise, fmt)
    with pytest.raises(MediaError, match="is a broken"):
        decode_bytes(data[: int(len(data) * kept)])


@pytest.mark.parametrize("fmt", ["JPEG", "PNG", "GIF", "WEBP", "TIFF", "BMP"])
def test_a_header_alone_is_refused(fmt: str) -> None:
    with pytest.raises(MediaError):
        decode_bytes(encode(Image.new("RGB", (64, 64)), fmt)[:30])


@pytest.mark.parametrize("fmt", ["JPEG", "PNG", "GIF", "WEBP", "TIFF", "BMP", "PPM", "JPEG2000"])
def test_formats_that_are_read(fmt: str) -> None:
    pixels = decode_bytes(encode(Image.new("RGB", (40, 30), (200, 100, 50)), fmt))
    assert pixels.shape == (30, 40, 3)
    assert abs(int(pixels[5, 5, 0]) - 200) <= 3


def test_a_decompression_bomb_is_refused_from_its_header() -> None:
    """20000 × 20000 one-bit pixels take 50 kB as a file and 1.2 GB as RGB."""
    bomb = raw_png(20000, 20000, 1, 0, [bytes(2500)] * 20000)
    assert len(bomb) < 60_000
    with pytest.raises(MediaError, match=r"is 20000×20000 = 400,000,000 pixels, over the cap of 178,956,970"):
        decode_bytes(bomb)


def test_a_webp_bomb_is_refused_before_its_canvas_is_made() -> None:
    canvas = b"\x10\x00\x00\x00" + (16383).to_bytes(3, "little") * 2
    data = b"RIFF" + (22).to_bytes(4, "little") + b"WEBPVP8X" + (10).to_bytes(4, "little") + canvas
    with pytest.raises(MediaError, match=r"is 16384×16384 = 268,435,456 pixels"):
        decode_bytes(data)


@pytest.mark.parametrize("lossless", [True, False])
def test_webp_sizes_are_read_right(lossless: bool) -> None:
    policy = replace(PERMISSIVE, max_pixels=70 * 33 - 1)
    with pytest.raises(MediaError, match=r"is 70×33 = 2,310 pixels"):
        decode_bytes(encode(Image.new("RGB", (70, 33)), "WEBP", lossless=lossless), policy=policy)


def test_the_pixel_cap_is_exact_and_may_be_raised_over_pillows_own() -> None:
    data = png((10, 10))
    assert decode_bytes(data, policy=replace(PERMISSIVE, max_pixels=100)).shape == (10, 10, 3)
    with pytest.raises(MediaError, match="over the cap of 99"):
        decode_bytes(data, policy=replace(PERMISSIVE, max_pixels=99))


def test_pillows_global_limit_has_no_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    assert decode_bytes(png((40, 40))).shape == (40, 40, 3)


def test_the_byte_cap() -> None:
    data = png()
    with pytest.raises(MediaError, match=rf"is {len(data)} bytes, over the cap of 20"):
        decode_bytes(data, policy=replace(STRICT, max_bytes=20))


def test_a_pil_image_over_the_cap_is_refused_undecoded() -> None:
    image = Image.open(io.BytesIO(png((10, 10))))
    with pytest.raises(MediaError, match="over the cap of 99"):
        decode_pil(image, policy=replace(PERMISSIVE, max_pixels=99))


def test_a_truncated_pil_image_is_refused() -> None:
    data = encode(Image.effect_noise((64, 64), 90), "JPEG")
    with pytest.raises(MediaError, match=r"is a broken JPEG: .*truncated"):
        decode_pil(Image.open(io.BytesIO(data[: len(data) // 2])))


@pytest.mark.filterwarnings("ignore::UserWarning")  # Pillow remarks on damaged tags
def test_no_fault_injected_into_a_file_escapes_as_another_error() -> None:
    """Every byte of small files in turn set to 255 and 0: either it decodes or it is a MediaError."""
    for fmt in ("PNG", "GIF", "WEBP", "TIFF", "BMP", "JPEG"):
        data = encode(Image.effect_noise((6, 5), 90).convert("RGB"), fmt)
        for at in range(0, len(data), 3):
            for value in (0, 255):
                broken = data[:at] + bytes([value]) + data[at + 1 :]
                with contextlib.suppress(MediaError):
                    decode_bytes(broken, policy=replace(PERMISSIVE, max_pixels=10_000))


@pytest.mark.parametrize(
    ("head", "name"),
    [
        (b"BMxxxx the mailing list", "plain text"),  # two letters do not make a bitmap
        (b"P3 is a processor", "plain text"),
        (b"GIF89b", "plain text"),
        (b"\x00\x00\x00\x18ftypqt  " + bytes(12), "QuickTime"),
        (b"\x00\x00\x00\x1cftypavif" + bytes(12), "AVIF"),
        (b"\x00\x00\x00\x1cftypmif1\x00\x00\x00\x00avif" + bytes(12), "AVIF"),
        (b"#EXTM3U\nhttp://127.0.0.1/", "an HLS playlist"),
    ],
)
def test_sniffing_weak_and_shared_marks(head: bytes, name: str) -> None:
    assert sniff(head).name == name
