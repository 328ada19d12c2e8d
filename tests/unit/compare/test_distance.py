"""Distances of two answers, against arithmetic done another way."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from visavis.compare.distance import box_distance, edit_distance, share_before


def by_table(a: str, b: str) -> int:
    """Wagner and Fischer's table, row by row."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        before, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (x != y))
    return row[-1]


@given(st.text("abc", max_size=70), st.text("abc", max_size=70))
def test_edit_distance_is_that_of_the_table(a: str, b: str) -> None:
    assert edit_distance(a, b) == by_table(a, b)


def test_known_edit_distances() -> None:
    assert edit_distance("kitten", "sitting") == 3
    assert edit_distance("", "abc") == 3
    assert edit_distance("(573,12),(591,39)", "(573,12),(590,42)") == 3  # 1→0, 3→4, 9→2


@pytest.mark.parametrize(
    ("position", "first", "second", "share"),
    [(None, (1, 2), (1, 2), 1.0), (None, (), (), 1.0), (3, (1, 2, 3, 4), (1, 2, 3), 0.75), (0, (1,), (2,), 0.0)],
)
def test_share_before_the_first_difference(
    position: int | None, first: tuple[int, ...], second: tuple[int, ...], share: float
) -> None:
    assert share_before(position, first, second) == share


def test_boxes_and_points() -> None:
    one = {"items": [{"label": "a", "box": [0, 0, 10, 10]}]}
    two = {"items": [{"label": "a", "box": [5, 0, 15, 10]}]}
    point = {"items": [{"label": "a", "point": [5.0, 8.0]}]}
    assert box_distance(one, two) == (pytest.approx(50 / 150), pytest.approx(5.0))
    assert box_distance(one, point) == (None, pytest.approx(3.0))
    assert box_distance(one, {"items": []}) == box_distance(None, one) == (None, None)
