"""Amounts and sizes as people type them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from visavis.errors import OptionError
from visavis.plan.units import format_bytes, format_count, parse_bytes, parse_images


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("24GiB", 24 * 2**30),
        ("24 gib", 24 * 2**30),
        ("24Gi", 24 * 2**30),
        ("24GB", 24 * 10**9),
        ("24G", 24 * 10**9),
        ("24564MiB", 24564 * 2**20),
        ("23.64GiB", round(23.64 * 2**30)),
        (".5TiB", 2**39),
        ("1_000MB", 10**9),
        ("“16GiB”", 16 * 2**30),
        ("1024B", 1024),
    ],
)
def test_amounts_are_read_in_every_usual_spelling(text: str, expected: int) -> None:
    assert parse_bytes(text) == expected


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("24", "24GiB"),
        ("24GIG", "24GiB"),
        ("24Gibs", "24GiB"),
        ("24GuB", "24G"),
        ("24,5GiB", "24.5GiB"),
        ("2 4GiB", "24GiB"),
        ("2x24GiB", "--gpu-memory 24GiB --tensor-parallel-size 2"),
    ],
)
def test_typing_errors_get_the_spelling_that_was_meant(text: str, hint: str) -> None:
    with pytest.raises(OptionError, match="--gpu-memory") as raised:
        parse_bytes(text)
    assert hint in str(raised.value)


@pytest.mark.parametrize("text", ["", "GiB", "much", "-24GiB", "0GiB", "nan", "1e3GiB", "9" * 400 + "GiB", "0.1B"])
def test_what_is_no_amount_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match="--gpu-memory") as raised:
        parse_bytes(text)
    assert len(str(raised.value)) < 250


@given(st.integers(1, 2**50), st.sampled_from(["B", "KiB", "MiB", "GiB", "KB", "GB"]))
def test_whole_numbers_with_a_unit_are_exact(number: int, unit: str) -> None:
    factor = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "KB": 10**3, "GB": 10**9}[unit]
    assert abs(parse_bytes(f"{number}{unit}") - number * factor) <= number * factor * 1e-15


def test_images_are_width_times_height_and_may_be_many() -> None:
    assert parse_images("1920x1080") == ((1080, 1920),)
    assert parse_images("2x1920x1080") == ((1080, 1920),) * 2
    assert parse_images(" 3×640×480 ") == ((480, 640),) * 3


@pytest.mark.parametrize(
    "text", ["1920", "1920x", "x1080", "0x10", "0x640x480", "5000x10x10", "axb", "1x2x3x4", "-1x5"]
)
def test_image_sizes_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(OptionError, match="--image"):
        parse_images(text)


def test_amounts_are_written_in_binary_units() -> None:
    assert format_bytes(28672) == "28 KiB"
    assert format_bytes(16.29 * 2**30) == "16.29 GiB"
    assert format_bytes(-(2**20)) == "-1.00 MiB"
    assert format_bytes(3) == "3 B"
    assert format_count(1_543_714_304) == "1.544 B"
