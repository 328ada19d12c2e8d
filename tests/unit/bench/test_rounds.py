"""Who is measured when, and what an interruption leaves."""

from __future__ import annotations

import pytest

from tests.unit.bench.conftest import Rig, file_of, only_row
from visavis.bench.result import from_json, to_json
from visavis.bench.steady import Criterion


def texts(rig: Rig, engine: str) -> list[str]:
    return [request.prompt.text for batch in rig.engines[engine].batches for request in batch]


def lengths(rig: Rig, engine: str) -> list[tuple[str, int]]:
    return [(r.prompt.text, r.sampling.max_tokens) for batch in rig.engines[engine].batches for r in batch]


def test_engines_alternate_and_take_turns_in_beginning(rig: Rig) -> None:
    rig.add("a")
    rig.add("b")
    rig.run()
    rounds = [(engine, what) for engine, what in rig.said if ": round " in what]
    assert [engine for engine, _ in rounds] == ["a", "b", "b", "a", "a", "b"]


def test_all_engines_get_the_same_prompts_in_a_round(rig: Rig) -> None:
    rig.add("a")
    rig.add("b")
    rig.run()
    a, b = ([t for t, n in lengths(rig, name) if n == 16] for name in ("a", "b"))  # those that wake it are shorter
    assert a == b
    assert len(a) == 1 + 3 * 2 + 3 * 2  # cold, warm-up, timed


def test_no_prompt_is_asked_twice_of_an_engine(rig: Rig) -> None:
    rig.add("a")
    rig.add("b")
    rig.run(cells=(*rig.cells(), *rig.cells("throughput", concurrency=(1, 2))))
    asked = texts(rig, "a")
    assert len(set(asked)) == len(asked)


def test_prompts_repeat_when_asked_to_and_the_file_says_so(rig: Rig) -> None:
    rig.add("a")
    bench = rig.run(rig.plan(repeat_prompts=True))
    assert len(set(texts(rig, "a"))) == 2  # two requests a round, the same in every round
    assert bench.config["cache"] == "repeated prompts"


def test_reload_starts_the_engine_for_every_round(rig: Rig) -> None:
    rig.add("a", phases={"import": 1.0, "load": 2.0})
    bench = rig.run(rig.plan(reload=True))
    assert len(bench.engine("a").sessions) == 3
    assert [r.session for r in bench.runs[0].timed()] == [0, 1, 2]
    assert bench.engine("a").sessions[0]["import"] == 1.0
    assert rig.engines["a"].closed == 3


@pytest.mark.parametrize(
    ("figures", "steady"),
    [
        ([1.0, 1.0], False),  # too few
        ([1.0, 1.05, 1.09], True),
        ([1.0, 1.05, 1.11], False),
        ([5.0, 1.0, 1.0, 1.0], True),  # only the last three count
    ],
)
def test_the_criterion(figures: list[float], steady: bool) -> None:
    assert Criterion(window=3, within=0.1).steady(figures) is steady


def test_an_interrupted_run_keeps_its_rounds_and_says_so(rig: Rig) -> None:
    rig.add("a", interrupt_in_batch=10)
    plan, cells = rig.plan(latency_requests=2), rig.cells()
    bench = rig.new(plan, cells)
    with pytest.raises(KeyboardInterrupt):
        rig.run(plan, cells, bench)
    # 1 cold, 3 warm-up rounds of 2, and from batch 7 the first round of 2; batch 10 was the second of round 2
    row = only_row(bench)
    assert not bench.complete
    assert row.rounds == 1
    assert row.figures["e2e"].median == pytest.approx(0.5)
    assert "interrupted after 1 of 3 rounds" in row.marks
    assert any("interrupted" in note for note in file_of(bench).notes)


def test_resuming_measures_only_what_is_missing_with_prompts_never_seen(rig: Rig) -> None:
    engine = rig.add("a", interrupt_in_batch=10)
    plan, cells = rig.plan(latency_requests=2), rig.cells()
    bench = rig.new(plan, cells)
    with pytest.raises(KeyboardInterrupt):
        rig.run(plan, cells, bench)
    kept = bench.runs[0].timed()[0]
    engine.interrupt_in_batch = -1
    again = from_json(to_json(bench), "a.json")  # as from the file
    rig.run(plan, cells, again)
    row = only_row(again)
    assert again.complete
    assert row.rounds == 3
    assert again.runs[0].timed()[0].requests[0].token_times_s == kept.requests[0].token_times_s
    assert [r.session for r in again.runs[0].timed()] == [0, 1, 1]
    asked = texts(rig, "a")
    repeated = len(asked) - len(set(asked))
    assert repeated == 1  # of round 2, whose first request had been answered when it was interrupted


def test_every_round_is_saved(rig: Rig) -> None:
    rig.add("a")
    rig.run()
    assert rig.saves >= 3 + 1
