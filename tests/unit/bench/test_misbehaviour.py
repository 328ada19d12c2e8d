"""Engines that do not behave are reported as what they are."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.bench.conftest import Rig, file_of, only_row


def test_a_slow_first_call_is_shown_beside_and_changes_no_figure(rig: Rig) -> None:
    rig.add("a", first_call_s=7.0)
    row = only_row(rig.run())
    assert row.cold_ttft == pytest.approx(7.2)
    assert row.cold_e2e == pytest.approx(7.5)
    assert row.figures["ttft"].p99 == pytest.approx(0.2)
    assert row.steady is True
    assert row.warm_up_rounds == 3  # the cold call is no warm-up round


def test_answers_that_stop_early_void_the_row(rig: Rig) -> None:
    rig.add("a", early_every=4)
    row = only_row(rig.run(rig.plan(latency_requests=4, rounds=2)))
    assert "2 of 8 requests failed" in row.void
    assert "5 of 16 tokens" in row.void
    assert row.figures == {}
    assert len(row.failures) == 2


def test_with_natural_lengths_an_early_end_is_an_answer_like_any_other(rig: Rig) -> None:
    rig.add("a", early_every=4)
    row = only_row(rig.run(rig.plan(latency_requests=4, rounds=2, lengths="natural")))
    assert row.void == ""
    assert row.output_tokens == (5, 16)
    # 3 answers of 0.5 s and 16 tokens, one of 0.2 + 4 · 0.02 s and 5 tokens
    assert row.figures["tokens_per_s"].median == pytest.approx((3 * 16 + 5) / (3 * 0.5 + 0.28), rel=0.02)


def test_one_failure_in_ten_voids_the_row_and_each_is_listed(rig: Rig) -> None:
    rig.add("a", fail_every=10)
    bench = rig.run(rig.plan(latency_requests=10, rounds=3))
    row = only_row(bench)
    assert row.void.startswith("3 of 30 requests failed")
    assert all("out of luck" in failure for failure in row.failures)
    assert row.figures == {}
    assert len(bench.runs[0].timed()) == 3  # the observations stay in the file


def test_chunks_of_several_tokens_do_not_flatter_the_time_per_token(rig: Rig) -> None:
    rig.add("a", chunk=4, per_token_s=0.08)  # a step gives 4 tokens: 0.02 s a token
    row = only_row(rig.run())
    assert row.figures["tpot"].median == pytest.approx(0.02, rel=0.02)
    assert row.figures["itl"].median == pytest.approx(0.08, rel=0.02)
    assert row.tokens_per_delivery == 4
    assert row.output_tokens == (16, 16)
    assert any("chunks of 4 tokens" in mark for mark in row.marks)
    assert row.figures["tokens_per_s"].median == pytest.approx(16 / (0.2 + 3 * 0.08), rel=0.02)


def test_an_engine_that_never_settles_is_measured_and_marked(rig: Rig) -> None:
    rig.add("a", drift=1.2)  # 20 % slower with every batch
    row = only_row(rig.run(rig.plan(latency_requests=1)))
    assert row.steady is False
    assert row.warm_up_rounds == 10
    assert any("not steady after 10" in mark for mark in row.marks)
    assert row.void == ""


def test_an_engine_that_dies_loses_its_row_and_the_other_goes_on(rig: Rig) -> None:
    rig.add("a")
    rig.add("dying", die_in_batch=7)  # 4 of warm-up, then two a round
    bench = rig.run(rig.plan(latency_requests=1))
    good, bad = file_of(bench).rows
    assert good.void == ""
    assert good.rounds == 3
    assert "the fake engine broke down" in bad.void
    assert bench.engine("dying").error is not None
    assert bench.complete


def test_an_engine_that_cannot_be_loaded_is_part_of_the_result(rig: Rig) -> None:
    rig.add("a")
    rig.add("broken", fail_load="no such kernel")
    bench = rig.run()
    good, bad = file_of(bench).rows
    assert good.void == ""
    assert "no such kernel" in bad.void
    assert any("broken: could not be loaded: no such kernel" in note for note in file_of(bench).notes)


def test_load_on_an_engine_that_takes_no_requests_meanwhile_is_refused_before_any_work(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = rig.add("a")
    can = replace(engine.capabilities(), arrivals=False, batching="static")
    monkeypatch.setattr(engine, "capabilities", lambda: can)
    row = only_row(rig.run(cells=rig.cells("load")))
    assert row.void.startswith("refused: a cannot take requests while it answers others (static batches)")
    assert engine.batches == []


def test_what_an_engine_refuses_is_said_with_the_row(rig: Rig) -> None:
    rig.add("a", sampling=frozenset({"temperature"}))  # it cannot ignore the end token
    rig.add("b")
    refused, good = file_of(rig.run()).rows
    assert refused.void.startswith("refused: a cannot honour ignore_eos")
    assert good.void == ""
