"""Properties of all formats on images that are not square."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from visavis.errors import OptionError
from visavis.grounding import GroundingResult, parse
from visavis.prompt import BoxFormat

FORMATS: tuple[BoxFormat, ...] = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "ui_tars")
sizes = st.tuples(st.integers(1, 4000), st.integers(1, 4000))
fractions = st.tuples(*[st.floats(0, 1)] * 4)
PLAIN = st.text(
    st.characters(codec="utf-8", exclude_characters="<>|(){}[]\"'\\,;:", exclude_categories=["C", "Z"]), max_size=20
)


def written(box: tuple[float, float, float, float], box_format: BoxFormat, label: str, resized: tuple[int, int]) -> str:
    """What a perfect model would answer for a box given in fractions of the image."""
    width, height = (resized[1], resized[0]) if box_format == "qwen2_5_vl" else (1000, 1000)
    x1, y1, x2, y2 = round(box[0] * width), round(box[1] * height), round(box[2] * width), round(box[3] * height)
    if box_format == "qwen2_vl":
        return f"<|object_ref_start|>{label}<|object_ref_end|><|box_start|>({x1},{y1}),({x2},{y2})<|box_end|>"
    if box_format == "ui_tars":
        return f"click(start_box='({x1},{y1},{x2},{y2})')"
    return json.dumps([{"bbox_2d": [x1, y1, x2, y2], "label": label}])


@pytest.mark.parametrize("box_format", FORMATS)
@given(corners=fractions, original=sizes, resized=sizes, label=PLAIN)
def test_a_perfect_answer_comes_back_within_half_a_unit_of_the_models_space(
    box_format: BoxFormat, corners: tuple[float, ...], original: tuple[int, int], resized: tuple[int, int], label: str
) -> None:
    (xa, xb), (ya, yb) = sorted((corners[0], corners[1])), sorted((corners[2], corners[3]))
    text = written((xa, ya, xb, yb), box_format, label, resized)
    (item,) = parse(text, box_format, original_size=original, resized_size=resized).items
    height, width = original
    unit_x, unit_y = (
        (width / resized[1], height / resized[0]) if box_format == "qwen2_5_vl" else (width / 1000, height / 1000)
    )
    assert item.box is not None
    for got, true, unit in zip(
        item.box, (xa * width, ya * height, xb * width, yb * height), (unit_x, unit_y) * 2, strict=True
    ):
        assert abs(got - true) <= unit / 2 + 1e-6
    assert not item.clipped
    assert not item.swapped
    assert item.label == ("click" if box_format == "ui_tars" else label)


@pytest.mark.parametrize("box_format", FORMATS)
@given(
    text=st.lists(
        st.sampled_from(
            [*"(){}[],:'\"09. ax<|>\\\n", "<|box_start|>", "<|box_end|>", '"bbox_2d":', "click(start_box="]
        ),
        max_size=60,
    ).map("".join)
)
def test_any_text_gives_boxes_inside_the_image_and_no_crash(box_format: BoxFormat, text: str) -> None:
    found = parse(text, box_format, original_size=(300, 700), resized_size=(308, 700))
    for item in found.items:
        x1, y1, x2, y2 = item.box if item.box is not None else (*item.center, *item.center)
        assert 0 <= x1 <= x2 <= 700
        assert 0 <= y1 <= y2 <= 300
        assert 0 <= item.span[0] < item.span[1] <= len(text)


@pytest.mark.parametrize("box_format", FORMATS)
@given(cut=st.integers(0, 200))
def test_a_cut_answer_never_invents_a_box(box_format: BoxFormat, cut: int) -> None:
    boxes = [(0.1, 0.2, 0.3, 0.4), (0.5, 0.6, 0.7, 0.8)]
    text = "\n".join(written(box, box_format, name, (280, 560)) for box, name in zip(boxes, "ab", strict=True))
    whole = parse(text, box_format, original_size=(300, 700), resized_size=(280, 560))
    part = parse(text[:cut], box_format, original_size=(300, 700), resized_size=(280, 560))
    assert [i.box for i in part.items] == [i.box for i in whole.items][: len(part.items)]


def test_format_none_reads_nothing() -> None:
    text = "<|box_start|>(1,2),(3,4)<|box_end|>"
    assert parse(text, "none", original_size=(10, 10), resized_size=(28, 28)) == GroundingResult()


def test_unknown_format_and_senseless_sizes_are_refused_by_name() -> None:
    with pytest.raises(OptionError, match=r"'yolo'.*qwen2_vl"):
        parse("", "yolo", original_size=(1, 1), resized_size=(1, 1))  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="original_size"):
        parse("", "qwen2_vl", original_size=(0, 5), resized_size=(1, 1))


def test_examples_have_no_deadline() -> None:
    """The parsers are imported when first used: 10 ms at rest, over hypothesis' 200 ms on a busy machine, once."""
    assert settings().deadline is None
