"""Qwen2-VL's box grammar, with markers and stripped of them."""

from __future__ import annotations

import pytest

from visavis.grounding import GroundingResult, parse

WIDE = (500, 2000)  # (height, width): x is scaled by 2, y by one half


def read(text: str) -> GroundingResult:
    return parse(text, "qwen2_vl", original_size=WIDE, resized_size=(504, 1988))


def test_document_000_answer_with_markers() -> None:
    found = read("<|object_ref_start|>language switch<|object_ref_end|><|box_start|>(573,12),(591,39)<|box_end|>")
    (item,) = found.items
    assert item.label == "language switch"
    assert item.box == (573 * 2, 12 / 2, 591 * 2, 39 / 2)
    assert (item.clipped, item.swapped, found.complete, found.rejects) == (False, False, True, ())


def test_document_000_answer_stripped_of_markers_is_the_same_item() -> None:
    marked = read("<|object_ref_start|>language switch<|object_ref_end|><|box_start|>(573,12),(591,39)<|box_end|>")
    stripped = read("language switch(573,12),(591,39)")
    assert (stripped.items[0].label, stripped.items[0].box) == (marked.items[0].label, marked.items[0].box)


def test_end_of_turn_marker_after_the_box_is_no_part_of_anything() -> None:
    found = read("<|box_start|>(573,12),(591,39)<|box_end|><|im_end|>")
    assert len(found) == 1
    assert found.complete


def test_several_labels_each_with_several_boxes() -> None:
    box = "<|box_start|>({}),({})<|box_end|>"
    text = (
        "<|object_ref_start|>tab<|object_ref_end|>" + box.format("0,0", "10,10") + box.format("20,0", "30,10") + ", "
        "<|object_ref_start|>menu<|object_ref_end|>" + box.format("40,0", "50,10")
    )
    assert [(i.label, i.box) for i in read(text).items] == [
        ("tab", (0, 0, 20, 5)),
        ("tab", (40, 0, 60, 5)),
        ("menu", (80, 0, 100, 5)),
    ]


def test_several_labels_and_boxes_stripped() -> None:
    found = read("tab(0,0),(10,10)(20,0),(30,10) menu(40,0),(50,10)")
    assert [(i.label, i.box) for i in found.items] == [
        ("tab", (0, 0, 20, 5)),
        ("tab", (40, 0, 60, 5)),
        ("menu", (80, 0, 100, 5)),
    ]


@pytest.mark.parametrize(
    "text", ["<|box_start|>(500,500)<|box_end|>", "<|point_start|>(500,500)<|point_end|>", "(500,500)"]
)
def test_one_coordinate_pair_is_a_point(text: str) -> None:
    (item,) = read(text).items
    assert (item.point, item.box, item.center) == ((1000, 250), None, (1000, 250))


def test_quadrilateral_keeps_its_corners_and_has_a_bounding_box() -> None:
    (item,) = read("<|quad_start|>(10,20),(50,10),(60,70),(20,80)<|quad_end|>").items
    assert item.quad == ((20, 10), (100, 5), (120, 35), (40, 40))
    assert item.box == (20, 5, 120, 40)


def test_older_qwen_vl_spelling() -> None:
    (item,) = read("<ref>a cat</ref><box>(1,2),(3,4)</box>").items
    assert (item.label, item.box) == ("a cat", (2, 1, 6, 2))


def test_corners_in_the_wrong_order_are_put_right_and_flagged() -> None:
    (item,) = read("<|box_start|>(591,39),(573,12)<|box_end|>").items
    assert item.box == (1146, 6, 1182, 19.5)
    assert item.swapped
    assert not item.clipped


def test_values_beyond_the_image_are_clipped_and_flagged() -> None:
    (item,) = read("<|box_start|>(-5,900),(400,1100)<|box_end|>").items
    assert item.box == (0, 450, 800, 500)
    assert item.clipped
    (point,) = read("(1001,500)").items
    assert (point.point, point.clipped) == ((2000, 250), True)


def test_box_wholly_outside_is_rejected_with_the_reason() -> None:
    found = read("<|box_start|>(1100,1100),(1200,1200)<|box_end|>")
    assert found.items == ()
    assert "outside" in found.rejects[0].reason
    assert found.rejects[0].text == "<|box_start|>(1100,1100),(1200,1200)<|box_end|>"


@pytest.mark.parametrize(
    "tail",
    [
        "<|object_ref_start|>two",
        "<|object_ref_start|>two<|object_ref_end|><|box_start|>",
        "<|object_ref_start|>two<|object_ref_end|><|box_start|>(5",
        "<|object_ref_start|>two<|object_ref_end|><|box_start|>(5,6)",
        "<|object_ref_start|>two<|object_ref_end|><|box_start|>(5,6),(7",
    ],
)
def test_truncated_answer_keeps_the_complete_box_only(tail: str) -> None:
    found = read("<|object_ref_start|>one<|object_ref_end|><|box_start|>(1,2),(3,4)<|box_end|>" + tail)
    assert [i.label for i in found.items] == ["one"]
    assert not found.complete
    assert found.rejects[0].text.startswith("<|object_ref_start|>two")


@pytest.mark.parametrize("tail", ["(5", "(5,", "(5,6),", "(5,6),(7", "(5,6),(7,"])
def test_truncated_stripped_answer_never_makes_a_point_of_half_a_box(tail: str) -> None:
    found = read("one(1,2),(3,4) two" + tail)
    assert [(i.label, i.box) for i in found.items] == [("one", (2, 1, 6, 2))]
    assert not found.complete
    assert len(found.rejects) == 1


def test_box_with_both_corners_but_a_cut_end_marker_is_kept_as_incomplete() -> None:
    found = read("<|box_start|>(1,2),(3,4)<|box_e")
    assert [i.box for i in found.items] == [(2, 1, 6, 2)]
    assert not found.complete


def test_markers_around_words_are_rejected_not_read() -> None:
    found = read("<|box_start|>top left<|box_end|><|box_start|>(1,2),(3,4)<|box_end|>")
    assert [i.box for i in found.items] == [(2, 1, 6, 2)]
    assert found.rejects[0].text == "<|box_start|>top left<|box_end|>"


def test_three_points_are_neither_box_nor_quadrilateral() -> None:
    found = read("a(1,2),(3,4),(5,6)")
    assert found.items == ()
    assert "3 points" in found.rejects[0].reason


def test_number_too_large_for_a_float_is_rejected() -> None:
    found = read(f"({'9' * 400},1)")
    assert found.items == ()
    assert "finite" in found.rejects[0].reason


@pytest.mark.parametrize("text", ["", "There is no such element.", "f(x) and (a, b)", "call me (at home)"])
def test_prose_gives_nothing_and_rejects_nothing(text: str) -> None:
    assert read(text) == GroundingResult()


def test_span_points_at_the_item_in_the_text() -> None:
    text = "Here: ok(1,2),(3,4) done"
    (item,) = read(text).items
    assert text[slice(*item.span)] == "Here: ok(1,2),(3,4)"
    assert item.label == "Here: ok"
