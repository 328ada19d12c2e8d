"""Qwen2.5-VL's JSON in pixels of the resized image and Qwen3-VL's in 0–1000."""

from __future__ import annotations

import pytest

from visavis.grounding import GroundingResult, parse

# 1920×1080 with at most 1280 cells becomes 1316×728: x is scaled by 1920/1316, y by 1080/728.
ORIGINAL, RESIZED = (1080, 1920), (728, 1316)


def read(text: str) -> GroundingResult:
    return parse(text, "qwen2_5_vl", original_size=ORIGINAL, resized_size=RESIZED)


def read3(text: str) -> GroundingResult:
    return parse(text, "qwen3_vl", original_size=ORIGINAL, resized_size=RESIZED)


def test_fenced_json_in_resized_pixels_goes_back_by_each_side_of_its_own() -> None:
    found = read('```json\n[\n\t{"bbox_2d": [658, 364, 1316, 728], "label": "player"}\n]\n```')
    (item,) = found.items
    assert item.label == "player"
    assert item.box == (960, 540, 1920, 1080)  # the middle stays the middle
    assert found.complete
    assert not item.clipped


def test_qwen3_uses_thousandths_of_the_original_whatever_the_resize() -> None:
    (item,) = read3('{"bbox_2d": [250, 500, 750, 1000], "label": "x"}').items
    assert item.box == (480, 540, 1440, 1080)


def test_points_beside_boxes() -> None:
    found = read3('[{"point_2d": [500, 500], "label": "p"}, {"bbox_2d": [0, 0, 100, 100], "label": "b"}]')
    assert found.items[0].point == (960, 540)
    assert found.items[1].box == (0, 0, 192, 108)


def test_one_label_with_several_boxes() -> None:
    found = read3('{"bbox_2d": [[0, 0, 100, 100], [100, 0, 200, 100]], "label": "tab"}')
    assert [(i.label, i.box) for i in found.items] == [("tab", (0, 0, 192, 108)), ("tab", (192, 0, 384, 108))]


@pytest.mark.parametrize(
    "text",
    [
        "{'bbox_2d': [0, 0, 100, 100], 'label': 'a'}",
        '{"bbox_2d": [0, 0, 100, 100,], "label": "a",}',
        'Sure! Here it is: {"bbox_2d": [0, 0, 100, 100], "label": "a", "sure": True} — anything else?',
        '{"elements": [{"bbox_2d": [0, 0, 100, 100], "label": "a"}]}',
        '{"bbox_2d": [0, 0, 100, 100], "label": "a"}\n{}'.replace("\n{}", ""),
    ],
)
def test_nearly_json_is_read(text: str) -> None:
    found = read3(text)
    assert [(i.label, i.box) for i in found.items] == [("a", (0, 0, 192, 108))]
    assert found.complete
    assert found.rejects == ()


def test_unescaped_quotes_in_a_label_do_not_swallow_the_next_box() -> None:
    found = read3('[{"bbox_2d": [0,0,1,1], "label": "5" disk"}, {"bbox_2d": [0,0,1,1], "label": "say "yes", then"}]')
    assert [i.label for i in found.items] == ['5" disk', 'say "yes", then']


def test_escapes_and_unicode_in_labels() -> None:
    found = read3(r'{"bbox_2d": [0,0,1,1], "label": "语言 \"切换\" \u00e9 {x}"}')
    assert found.items[0].label == '语言 "切换" é {x}'


@pytest.mark.parametrize("cut", range(1, 47))
def test_answer_cut_anywhere_in_its_second_object_keeps_the_first(cut: int) -> None:
    first = '```json\n[{"bbox_2d": [1, 2, 3, 4], "label": "one"}, '
    second = '{"bbox_2d": [10, 20, 30, 40], "label": "two {"}'
    assert len(second) == 47
    found = read(first + second[:cut])
    assert [i.label for i in found.items] == ["one"]
    assert not found.complete
    assert [r.text for r in found.rejects] == [second[:cut].strip()]


def test_list_cut_between_objects_is_incomplete_without_a_reject() -> None:
    found = read('[{"bbox_2d": [1, 2, 3, 4], "label": "one"},')
    assert (len(found), found.complete, found.rejects) == (1, False, ())


def test_broken_object_is_rejected_and_the_others_are_kept() -> None:
    found = read('[{"bbox_2d": [1, 2, 3, 4], "label": "a"}, {"bbox_2d": [1, 2 3, 4]}, {"bbox_2d": [5, 6, 7, 8]}]')
    assert [i.label for i in found.items] == ["a", ""]
    assert [r.text for r in found.rejects] == ['{"bbox_2d": [1, 2 3, 4]}']
    assert "broken JSON" in found.rejects[0].reason


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"bbox_2d": [1, 2, 3]}', "3 numbers"),
        ('{"bbox_2d": ["1px", 2, 3, 4]}', "not a list of numbers"),
        ('{"bbox_2d": [true, 2, 3, 4]}', "not a list of numbers"),
        ('{"bbox_2d": [NaN, 2, 3, 4]}', "finite"),
        ('{"bbox_2d": [1e999, 2, 3, 4]}', "finite"),
        (f'{{"bbox_2d": [1{"0" * 400}, 2, 3, 4]}}', "finite"),
        ('{"point_2d": [1, 2, 3, 4]}', "4 numbers"),
        ('{"box_2d": [1, 2, 3, 4]}', "no bbox_2d"),
        ('{"bbox_2d": [5000, 5000, 6000, 6000]}', "outside"),
    ],
)
def test_reject_says_what_is_wrong(text: str, reason: str) -> None:
    found = read(text)
    assert found.items == ()
    assert reason in found.rejects[0].reason
    assert found.rejects[0].text == text


def test_bare_lists_are_boxes_and_points() -> None:
    found = read("[[0, 0, 658, 364], [658, 364]]")
    assert found.items[0].box == (0, 0, 960, 540)
    assert found.items[1].point == (960, 540)


def test_endless_nesting_is_no_crash() -> None:
    found = read('{"a":' * 3000 + '{"bbox_2d": [1, 2, 3, 4]}')
    assert len(found) == 1
    assert not found.complete


def test_resized_pixel_just_beyond_is_clipped() -> None:
    (item,) = read('{"bbox_2d": [0, 0, 1317, 728]}').items
    assert item.box == (0, 0, 1920, 1080)
    assert item.clipped


@pytest.mark.parametrize(
    "written",
    ['"[10, 20, 30, 40]"', '["10", "20", "30", "40"]', '[" 10 ", 20, "30.0", 4e1]'],
)
def test_numbers_in_quotes_are_numbers(written: str) -> None:
    text = f'[{{"bbox_2d": {written}, "label": "x"}}]'
    found = parse(text, "qwen2_5_vl", original_size=(100, 100), resized_size=(100, 100))
    assert [item.box for item in found.items] == [(10.0, 20.0, 30.0, 40.0)]
    assert found.rejects == ()
