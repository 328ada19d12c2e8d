"""UI-TARS actions."""

from __future__ import annotations

import pytest

from visavis.grounding import GroundingResult, parse


def read(text: str) -> GroundingResult:
    return parse(text, "ui_tars", original_size=(500, 2000), resized_size=(504, 1988))


@pytest.mark.parametrize(
    "text",
    [
        "Thought: I should click (it).\nAction: click(start_box='(500,250)')",
        "Action: click(start_box='<|box_start|>(500,250)<|box_end|>')",
        'click(start_box="(500, 250)")',
        "click(point='<point>500 250</point>')",
    ],
)
def test_click_is_a_point_labelled_with_its_action(text: str) -> None:
    found = read(text)
    assert [(i.label, i.point) for i in found.items] == [("click", (1000, 125))]
    assert found.complete
    assert found.rejects == ()


def test_drag_has_a_start_and_an_end() -> None:
    found = read("drag(start_box='<|box_start|>(1,2)<|box_end|>', end_box='<|box_start|>(3,4)<|box_end|>')")
    assert [(i.label, i.point) for i in found.items] == [("drag start", (2, 1)), ("drag end", (6, 2))]


def test_box_inside_an_action() -> None:
    assert read("left_double(start_box='[10,20,30,40]')").items[0].box == (20, 10, 60, 20)


@pytest.mark.parametrize("text", ["(500,250)", "<|box_start|>(500,250)<|box_end|>"])
def test_grounding_prompts_answer_a_bare_point(text: str) -> None:
    assert read(text).items[0].point == (1000, 125)


@pytest.mark.parametrize("text", ["type(content='(1,2)')", "finished()", "hotkey(key='ctrl c')", "wait()"])
def test_actions_without_a_place_give_nothing(text: str) -> None:
    assert read(text) == GroundingResult()


def test_typed_text_with_a_quote_does_not_hide_the_next_click() -> None:
    found = read(r"type(content='it\'s (1,2)')" + "\nclick(start_box='(500,250)')")
    assert [i.point for i in found.items] == [(1000, 125)]


@pytest.mark.parametrize("cut", range(len("click("), len("click(start_box='(500,250)'") + 1))
def test_cut_action_is_incomplete_and_never_a_wrong_point(cut: int) -> None:
    found = read("click(start_box='(500,250)'"[:cut])
    assert not found.complete
    assert all(i.point == (1000, 125) for i in found.items)


def test_empty_place_is_rejected() -> None:
    found = read("click(start_box='')")
    assert found.items == ()
    assert "no (x,y)" in found.rejects[0].reason
