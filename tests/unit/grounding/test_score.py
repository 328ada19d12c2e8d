"""ScreenSpot's rule, overlap and distance; expected values by hand."""

from __future__ import annotations

import pytest

from visavis.grounding import GroundedItem, GroundingResult, center_distance, iou, point_in_box, screenspot

TRUE = (100.0, 50.0, 200.0, 80.0)


@pytest.mark.parametrize("point", [(100, 50), (200, 80), (150, 50), (100, 80), (150, 65)])
def test_edges_count_as_inside(point: tuple[float, float]) -> None:
    assert point_in_box(point, TRUE)


@pytest.mark.parametrize("point", [(99.999, 60), (200.001, 60), (150, 49.999), (60, 150)])
def test_outside_is_outside(point: tuple[float, float]) -> None:
    assert not point_in_box(point, TRUE)


def test_centre_of_the_predicted_box_decides() -> None:
    hit = GroundingResult((GroundedItem("a", box=(0, 0, 200, 100)),))  # centre (100, 50) lies on a corner
    miss = GroundingResult((GroundedItem("a", box=(190, 70, 230, 100)),))  # overlaps, centre (210, 85) outside
    assert screenspot(hit, TRUE).hit
    assert not screenspot(miss, TRUE).hit


def test_only_the_first_answer_counts() -> None:
    items = (GroundedItem("a", point=(0, 0)), GroundedItem("b", point=(150, 60)))
    assert not screenspot(GroundingResult(items), TRUE).hit


def test_no_box_is_a_miss_counted_as_wrong_format() -> None:
    score = screenspot(GroundingResult(), TRUE)
    assert (score.hit, score.wrong_format) == (False, True)


def test_point_beyond_the_image_hits_nothing_at_the_edge() -> None:
    clipped = GroundingResult((GroundedItem("a", point=(200, 60), clipped=True),))
    assert not screenspot(clipped, TRUE).hit


def test_iou_by_hand() -> None:
    # 10×10 boxes shifted by (5, 0): intersection 50, union 150
    assert iou((0, 0, 10, 10), (5, 0, 15, 10)) == pytest.approx(1 / 3)
    assert iou((0, 0, 10, 10), (0, 0, 10, 10)) == 1
    assert iou((0, 0, 10, 10), (10, 0, 20, 10)) == 0  # they touch
    assert iou((0, 0, 10, 10), (30, 30, 40, 40)) == 0
    assert iou((5, 5, 5, 5), (5, 5, 5, 5)) == 1  # equal, without area
    assert iou((5, 5, 5, 5), (6, 6, 6, 6)) == 0


def test_centre_distance_by_hand() -> None:
    # centres (5, 5) and (8, 9): a 3-4-5 triangle
    assert center_distance((0, 0, 10, 10), (3, 4, 13, 14)) == 5
    assert center_distance((0.0, 0.0), GroundedItem("a", box=(0, 0, 12, 16))) == 10
