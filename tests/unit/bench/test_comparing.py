"""Old against new, engine against engine: ratios, noise, and "not comparable" in so many words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.unit.bench.conftest import Rig, file_of
from visavis.bench.changes import against
from visavis.bench.comparable import differences
from visavis.bench.report import make_report
from visavis.bench.result import Bench
from visavis.families import Family
from visavis.sampling import SamplingParams


def bench_of(family: Family, plan: dict[str, Any] | None = None, **script: Any) -> Bench:
    rig = Rig(family)
    rig.add("a", **script)
    return rig.run(rig.plan(**(plan or {})))


def reasons(one: Bench, other: Bench) -> list[str]:
    (a,), (b,) = file_of(one).rows, file_of(other).rows
    return differences(a, one, b, other)


def test_twice_as_fast_is_said_so(family: Family) -> None:
    old, new = bench_of(family), bench_of(family, first_token_s=0.1, per_token_s=0.01)
    (row,) = against(old, new, "old.json").rows
    assert row.not_comparable == ()
    verdicts = {f.name: f.verdict for f in row.figures}
    assert verdicts == {"ttft": "2× faster", "tpot": "2× faster", "e2e": "2× faster", "tokens_per_s": "2× faster"}
    assert {f.name: f.change.ratio for f in row.figures}["ttft"] == pytest.approx(0.5)


def test_the_other_way_is_slower_and_the_same_is_noise(family: Family) -> None:
    fast, slow = bench_of(family, per_token_s=0.01), bench_of(family)
    verdicts = {f.name: f.verdict for f in against(fast, slow, "old").rows[0].figures}
    assert verdicts["tpot"] == "2× slower"
    assert verdicts["ttft"] == "inside the noise"


def test_too_few_rounds_tell_nothing(family: Family) -> None:
    old, new = (bench_of(family, {"rounds": 2}, per_token_s=s) for s in (0.02, 0.01))
    assert {f.verdict for f in against(old, new, "old").rows[0].figures} == {"too few rounds to tell"}


def test_equal_runs_are_comparable(family: Family) -> None:
    assert reasons(bench_of(family), bench_of(family, per_token_s=0.5)) == []


@pytest.mark.parametrize(
    ("plan", "script", "reason"),
    [
        ({}, {"dtype": "bfloat16"}, "dtype float32 against bfloat16"),
        ({"lengths": "natural"}, {}, "lengths fixed against natural"),
        (
            {"sampling": SamplingParams(temperature=0.7, seed=1)},
            {},
            "sampling greedy against temperature 0.7",
        ),
        (
            {"repeat_prompts": True},
            {"settings": {"enable_prefix_caching": True}},
            "cache state unique prompts against repeated prompts, enable_prefix_caching=True",
        ),
        ({}, {"settings": {"threads": 4}}, None),  # known on one side only
    ],
)
def test_what_differs_is_named(
    family: Family, plan: dict[str, Any], script: dict[str, Any], reason: str | None
) -> None:
    found = reasons(bench_of(family), bench_of(family, plan, **script))
    assert found == ([] if reason is None else [reason])


def test_unequal_answer_lengths_are_not_comparable(family: Family) -> None:
    natural = {"lengths": "natural", "latency_requests": 4}
    found = reasons(bench_of(family, natural), bench_of(family, natural, early_every=2))
    assert found == ["answers of 16 tokens on average against 10.5"]


def test_engines_of_one_run_are_judged_alike(rig: Rig) -> None:
    rig.add("a")
    rig.add("b", dtype="bfloat16")
    notes = file_of(rig.run()).notes
    assert "a and b: not comparable: dtype float32 against bfloat16" in notes


@pytest.mark.parametrize(("numbers", "said"), [((2, 1), True), ((2, 2), False), ((2, None), False)])
def test_engines_that_chose_other_numbers_of_threads_are_said_to(
    rig: Rig, numbers: tuple[int | None, ...], said: bool
) -> None:
    for name, number in zip("ab", numbers, strict=True):
        rig.add(name, settings={} if number is None else {"threads": number})
    note = "threads: each chose its own number: a 2, b 1; --threads N makes them equal"
    assert (note in file_of(rig.run()).notes) == said
    assert any("threads" in one for one in file_of(rig.run()).notes) == said


def test_another_machine_is_not_comparable(family: Family) -> None:
    old, new = bench_of(family), bench_of(family)
    new = replace(new, machine={**new.machine, "cpu": "another cpu"})
    found = against(old, new, "old.json")
    assert found.not_comparable == ("processor a cpu against another cpu",)
    report = make_report([("a.json", old), ("b.json", new)])
    assert report.notes == ("a.json and b.json: not comparable: processor a cpu against another cpu",)


def test_rows_without_a_partner_are_listed(rig: Rig, family: Family) -> None:
    old = bench_of(family)
    rig.add("b")
    new = rig.run()
    found = against(old, new, "old.json")
    assert found.rows == ()
    assert found.only_new == ("b: latency prompt=48 output=16",)
    assert found.only_old == ("a: latency prompt=48 output=16",)
