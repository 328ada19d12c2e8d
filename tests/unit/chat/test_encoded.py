"""Data URLs and base64 in every habit of writing them."""

from __future__ import annotations

import base64
import textwrap
from urllib.parse import quote, quote_from_bytes

import pytest

from tests.unit.chat.making import encode, png, video
from visavis.chat.encoded import decode_base64, decode_data_url, looks_like_base64, media_in_base64
from visavis.errors import MediaError

CAP = 1 << 20
# Bytes whose base64 uses both letters that differ between the alphabets, and needs two signs of padding.
DATA = bytes(range(256)) + b"\xfb\xff\xfe\x00"
STANDARD = base64.b64encode(DATA).decode()


def test_the_sample_is_what_it_claims() -> None:
    assert {"+", "/"} <= set(STANDARD)
    assert STANDARD.endswith("=")


@pytest.mark.parametrize(
    "text",
    [
        STANDARD,
        STANDARD.rstrip("="),
        STANDARD + "==",
        base64.urlsafe_b64encode(DATA).decode(),
        base64.urlsafe_b64encode(DATA).decode().rstrip("="),
        "\n".join(textwrap.wrap(STANDARD, 76)),
        "\r\n  ".join(textwrap.wrap(STANDARD, 64)) + "\n",
        f"  {STANDARD}\t",
    ],
)
def test_base64_however_it_is_written(text: str) -> None:
    assert decode_base64(text, CAP) == DATA


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
def test_missing_padding_of_every_length(size: int) -> None:
    assert decode_base64(base64.b64encode(DATA[:size]).decode().rstrip("="), CAP) == DATA[:size]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("abcde", "cut short: 5 characters"),
        ("ab*d", r"the character '\*' at 2"),
        ("ab=d", "the character '=' at 2"),
        ("abcé", "the character 'é' at 3"),
    ],
)
def test_what_is_not_base64(text: str, message: str) -> None:
    with pytest.raises(MediaError, match=message):
        decode_base64(text, CAP)


def test_the_byte_cap_is_checked_before_decoding() -> None:
    assert decode_base64(STANDARD, len(DATA)) == DATA
    with pytest.raises(MediaError, match=rf"holds {len(DATA)} bytes, over the cap of {len(DATA) - 1}"):
        decode_base64(STANDARD, len(DATA) - 1)


@pytest.mark.parametrize(
    ("url", "mime"),
    [
        (f"data:image/png;base64,{STANDARD}", "image/png"),
        (f"DATA:image/PNG;BASE64,{STANDARD}", "image/png"),
        (f"data:image/png;charset=utf-8;name=a.png;base64,{STANDARD}", "image/png"),
        (f"data:;base64,{STANDARD}", "untyped"),
        (f"data:base64,{STANDARD}", "untyped"),
        (f"data:application/octet-stream; base64 ,{STANDARD.rstrip('=')}", "application/octet-stream"),
        (f"data:image/png;base64,{quote(STANDARD, safe='')}", "image/png"),
        (f"data:image/png,{quote_from_bytes(DATA, safe='')}", "image/png"),
        (f"data:,{quote_from_bytes(DATA, safe='')}", "untyped"),
        (f"data:{'x' * 500};base64,{STANDARD}", "untyped"),
    ],
    ids=lambda v: v[:60],
)
def test_data_urls(url: str, mime: str) -> None:
    assert decode_data_url(url, CAP) == (DATA, mime)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("data:image/png;base64", "no comma"),
        ("data:image/png;base64,", "empty"),
        ("data:,", "empty"),
        ("data:image/png;base64,a", "cut short"),
    ],
)
def test_broken_data_urls(url: str, message: str) -> None:
    with pytest.raises(MediaError, match=message):
        decode_data_url(url, CAP)


def test_the_byte_cap_of_plain_data_urls() -> None:
    with pytest.raises(MediaError, match="holds 6 bytes, over the cap of 5"):
        decode_data_url("data:,abcdef", 5)


@pytest.mark.parametrize("fmt", ["PNG", "JPEG", "GIF", "WEBP", "BMP", "TIFF"])
def test_base64_of_an_image_is_recognised(fmt: str) -> None:
    from PIL import Image

    data = encode(Image.new("RGB", (1, 1)), fmt)
    assert media_in_base64(base64.b64encode(data).decode())
    assert media_in_base64(base64.urlsafe_b64encode(data).decode().rstrip("="))
    assert media_in_base64("\n".join(textwrap.wrap(base64.b64encode(data).decode(), 76)))


def test_base64_of_a_video_is_recognised() -> None:
    pytest.importorskip("av")
    assert media_in_base64(base64.b64encode(video(frames=2)).decode())


@pytest.mark.parametrize(
    "path",
    [
        "/9j/photos/a.jpg",
        "/9j/",
        "iVBORw0KGgo",
        "R0lGODlh.gif",
        "images/Qk/photo",
        "/usr/share/icons",
        "a" * 200,
        "x.png",
    ],
)
def test_paths_are_not_taken_for_base64(path: str) -> None:
    assert not media_in_base64(path)


def test_long_words_look_like_base64_and_paths_do_not() -> None:
    assert looks_like_base64(base64.b64encode(bytes(200)).decode())
    assert not looks_like_base64("/home/someone/" + "x" * 80 + ".png")
    assert not looks_like_base64(png().hex()[:40])
