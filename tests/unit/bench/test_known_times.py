"""Engines of known speed come out at that speed; 2 % is allowed, the scripted clock gives far less."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tests.unit.bench.conftest import Rig, file_of, only_row
from visavis.bench import work
from visavis.bench.plan import poisson

EXACT = 0.02


def test_latency(rig: Rig) -> None:
    rig.add("a")  # 0.2 s to the first of 16 tokens, 0.02 s for each of the 15 others: 0.5 s
    row = only_row(rig.run())
    assert row.void == ""
    assert row.figures["ttft"].median == pytest.approx(0.2, rel=EXACT)
    assert row.figures["tpot"].median == pytest.approx(0.02, rel=EXACT)
    assert row.figures["itl"].p99 == pytest.approx(0.02, rel=EXACT)
    assert row.figures["e2e"].median == pytest.approx(0.5, rel=EXACT)
    assert row.figures["tokens_per_s"].median == pytest.approx(16 / 0.5, rel=EXACT)
    assert (row.rounds, row.requests, row.steady) == (3, 6, True)
    assert row.figures["client_e2e"].median == pytest.approx(0.5, rel=EXACT)


def test_throughput_counts_all_requests_over_the_time_of_all(rig: Rig) -> None:
    rig.add("a")
    row = only_row(rig.run(cells=rig.cells("throughput", concurrency=(4,))))
    assert row.figures["tokens_per_s"].median == pytest.approx(4 * 16 / 0.5, rel=EXACT)
    assert row.figures["requests_per_s"].median == pytest.approx(4 / 0.5, rel=EXACT)
    assert row.requests == 3 * 4


def test_load_counts_from_the_arrival(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "poisson", lambda rate, requests, key: [0.0, 0.3, 10.0])
    rig.add("a")
    plan = rig.plan(load_requests=3, ttft_limit=0.205)
    row = only_row(rig.run(plan, rig.cells("load", output_tokens=(11,))))
    # a: first token at 0.2, then 0.02 each: at 0.28, 0.30 it has 6. b, due at 0.3, is taken up by the step until 0.50.
    # That one gives a its 7th token, and 0.58 its 11th and last. b: first token after 0.2 s, last at 0.70: 0.4 s.
    # c finds the engine at rest: 0.2 and 0.4 s. So all last tokens are there 10.4 s after the start.
    assert row.figures["ttft"].median == pytest.approx(0.2, rel=EXACT)
    assert row.figures["e2e"].p90 == pytest.approx(0.58, rel=EXACT)
    assert row.figures["e2e"].median == pytest.approx(0.4, rel=EXACT)
    assert row.figures["requests_per_s"].median == pytest.approx(3 / 10.4, rel=EXACT)
    assert row.figures["goodput"].median == pytest.approx(3 / 10.4, rel=EXACT)


def test_goodput_leaves_out_requests_that_miss_a_limit(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "poisson", lambda rate, requests, key: [0.0, 0.3, 10.0])
    rig.add("a")
    plan = rig.plan(load_requests=3, tpot_limit=0.03)
    row = only_row(rig.run(plan, rig.cells("load", output_tokens=(11,))))
    # a: (0.58 − 0.2) / 10 = 38 ms a token; b and c: 20 ms.
    assert row.figures["goodput"].median == pytest.approx(2 / 10.4, rel=EXACT)
    assert row.figures["requests_per_s"].median == pytest.approx(3 / 10.4, rel=EXACT)


def test_an_engine_that_cannot_keep_up_is_said_to(rig: Rig) -> None:
    rig.add("a", serial=True)  # 0.5 s each, one after the other: 2 a second at most
    plan = rig.plan(load_requests=40)
    row = only_row(rig.run(plan, rig.cells("load", rates=(8.0,))))
    assert any(mark.startswith("does not keep up: took 2 of 8 requests a second") for mark in row.marks)
    assert row.figures["requests_per_s"].median == pytest.approx(2, rel=EXACT)
    calm = only_row(rig.run(rig.plan(load_requests=40), rig.cells("load", rates=(0.1,))))
    assert calm.marks == []


def test_two_engines_are_told_apart(rig: Rig) -> None:
    rig.add("slow")
    rig.add("fast", first_token_s=0.1, per_token_s=0.01)
    bench = rig.run()
    slow, fast = file_of(bench).rows
    assert slow.figures["e2e"].median / fast.figures["e2e"].median == pytest.approx(2, rel=EXACT)


def test_arrivals_are_poisson_and_repeat_by_their_key() -> None:
    times = poisson(4.0, 20_000, "key")
    gaps = [b - a for a, b in pairwise(times)]
    mean = sum(gaps) / len(gaps)
    variance = sum((g - mean) ** 2 for g in gaps) / len(gaps)
    assert times[0] == 0.0
    assert mean == pytest.approx(0.25, rel=0.03)
    assert variance == pytest.approx(0.25**2, rel=0.06)  # of an exponential: the mean squared
    assert poisson(4.0, 50, "key") == times[:50]
    assert poisson(4.0, 50, "other") != times[:50]
