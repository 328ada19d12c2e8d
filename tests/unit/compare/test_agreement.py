"""The law of near ties, by hand-made log-probabilities."""

from __future__ import annotations

import pytest

from visavis.compare.agreement import first_difference, judge
from visavis.completion import TokenLogprobs


def side(token: int, *top: tuple[int, float]) -> TokenLogprobs:
    return TokenLogprobs(token, dict(top)[token], top)


@pytest.mark.parametrize(
    ("first", "second", "position"),
    [
        ((1, 2, 3), (1, 2, 3), None),
        ((), (), None),
        ((1, 2, 3), (1, 9, 3), 1),
        ((1, 2, 3), (1, 2), 2),  # an end counts as a token
        ((), (5,), 0),
    ],
)
def test_first_difference(first: tuple[int, ...], second: tuple[int, ...], position: int | None) -> None:
    assert first_difference(first, second) == position


def test_float32_is_a_tie_where_the_references_two_best_are_closer_than_1e_4() -> None:
    one, two = side(7, (7, -0.70000), (8, -0.70009)), side(8, (8, -0.7), (7, -0.9))
    assert judge(one, two, float32=True, reference="first").kind == "near tie"
    assert judge(one, two, float32=True, reference="second").kind == "real"  # 0.2 nat there


def test_float32_gap_just_above_1e_4_is_no_tie() -> None:
    one = side(7, (7, -1.0), (8, -1.00011))
    assert judge(one, side(8, (8, -1.0), (7, -1.0)), float32=True, reference="first").kind == "real"


def test_bfloat16_near_tie_needs_both_sides_within_half_a_nat() -> None:
    near = side(7, (7, -0.5), (8, -1.0))  # 0.5 nat: still a tie
    assert judge(near, side(8, (8, -0.6), (7, -0.7)), float32=False, reference="first").kind == "near tie"
    far = side(8, (8, -0.3), (7, -0.81))  # 0.51 nat on one side only
    judged = judge(near, far, float32=False, reference="first")
    assert judged.kind == "real"
    assert judged.margin == pytest.approx(0.51)


def test_bfloat16_token_outside_the_other_sides_five_best_is_real() -> None:
    six = [(i, -1.0 - i / 100) for i in range(6)]
    one = side(0, *six)
    assert judge(one, side(5, (5, -1.0), (0, -1.0)), float32=False, reference="first").kind == "real"
    assert judge(one, side(4, (4, -1.0), (0, -1.0)), float32=False, reference="first").kind == "near tie"


def test_missing_log_probabilities_are_unknown_never_a_tie() -> None:
    judged = judge(None, side(1, (1, -0.1)), float32=False, reference="first")
    assert (judged.kind, judged.margin) == ("unknown", None)
    assert judge(side(1, (1, -0.1)), side(2, (2, -0.1)), float32=True, reference="first").kind == "unknown"


def test_margin_is_the_surer_sides() -> None:
    judged = judge(side(1, (1, -0.10), (2, -0.30)), side(2, (2, -0.10), (1, -0.15)), float32=False, reference="first")
    assert judged.margin == pytest.approx(0.20)
