"""Percentiles and the test of a change, against numbers worked out by hand."""

from __future__ import annotations

import random

import pytest

from visavis.bench.stats import compare_rounds, percentile, quartiles, spread


@pytest.mark.parametrize(("p", "value"), [(50, 5), (90, 9), (99, 10), (100, 10), (10, 1), (11, 2)])
def test_percentiles_are_nearest_rank(p: float, value: float) -> None:
    assert percentile([10, 9, 8, 7, 6, 5, 4, 3, 2, 1], p) == value


def test_quartiles() -> None:
    assert quartiles([1, 2, 3, 4, 5]) == (2, 4)
    assert quartiles([1, 2, 3, 4]) == (1.75, 3.25)
    assert quartiles([3, 1, 2]) == (1, 3)  # extremes below 4


def test_spread_pools_requests_and_keeps_rounds_apart() -> None:
    found = spread([1, 2, 3, 4], [1.5, 3.5])
    assert found is not None
    assert (found.median, found.p90, found.n) == (2.5, 4, 4)
    assert (found.low, found.high) == (1.5, 3.5)
    assert spread([], []) is None


def test_a_clear_change_is_real() -> None:
    change = compare_rounds([1.0, 1.01, 0.99, 1.02, 1.0], [1.3, 1.31, 1.29, 1.3, 1.32])
    assert change is not None
    assert change.real
    assert change.ratio == pytest.approx(1.3)
    assert change.low <= 1.3 <= change.high


def test_the_same_numbers_are_noise() -> None:
    change = compare_rounds([1.0, 1.1, 0.9, 1.05, 0.95], [0.95, 1.05, 1.0, 0.9, 1.1])
    assert change is not None
    assert not change.real


def test_two_rounds_tell_nothing() -> None:
    change = compare_rounds([1.0, 1.0], [2.0, 2.0])
    assert change is not None
    assert not change.enough
    assert not change.real
    assert compare_rounds([], [1.0]) is None


def test_noise_is_seldom_called_a_change() -> None:
    draw = random.Random(1)
    wrong = 0
    for _ in range(60):
        old, new = ([draw.gauss(1.0, 0.05) for _ in range(5)] for _ in range(2))
        change = compare_rounds(old, new)
        assert change is not None
        wrong += change.real
    assert wrong <= 4  # a test at 5 % would be wrong 3 times; the interval alone is wrong more often with 5 rounds
