"""The closed loop: each of N users waits for the answer before asking again."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from tests.unit.bench.conftest import Rig, file_of, only_row
from tests.unit.cli.conftest import Cli, cli  # noqa: F401 (a fixture)
from visavis.backends.base import Capabilities
from visavis.bench.document import as_dict
from visavis.bench.html.page import to_html
from visavis.bench.report import make_report
from visavis.bench.table import print_report

# An answer of 16 tokens alone, or in step with others: 0.2 + 15 · 0.02 = 0.5 s.


def test_users_ask_again_when_answered(rig: Rig) -> None:
    rig.add("one")
    bench = rig.run(rig.plan(load_requests=8, rounds=1), rig.cells("users", users=(2,)))
    (done,) = bench.runs[0].timed()
    assert [r.arrival_s for r in done.requests] == pytest.approx([0, 0, 0.5, 0.5, 1.0, 1.0, 1.5, 1.5])
    assert done.seconds == pytest.approx(2.0)
    row = only_row(bench)
    # 8 answers of 16 tokens in 2 s
    assert row.figures["tokens_per_s"].median == pytest.approx(64.0)
    assert row.figures["requests_per_s"].median == pytest.approx(4.0)
    assert row.figures["ttft"].median == pytest.approx(0.2)
    assert row.figures["tpot"].median == pytest.approx(0.02)
    assert row.figures["e2e"].median == pytest.approx(0.5)
    assert row.queue_s == pytest.approx(0.0)


def test_a_user_on_a_slow_engine_does_not_queue_up_more_work(rig: Rig) -> None:
    """Unlike under load: nobody asks before the answer is there, so the wait does not grow."""
    rig.add("slow", first_token_s=5.0)
    row = only_row(rig.run(rig.plan(load_requests=8, rounds=2), rig.cells("users", users=(2,))))
    assert row.figures["ttft"].median == row.figures["ttft"].p99 == pytest.approx(5.0)
    assert not any("keep up" in mark for mark in row.marks)


def test_each_user_takes_some_turns_and_a_round_has_the_requests_asked_for(rig: Rig) -> None:
    plan = rig.plan(load_requests=32)
    assert [plan.requests_of_users(n) for n in (1, 2, 5, 16)] == [32, 32, 35, 64]


def test_users_are_swept(rig: Rig) -> None:
    rig.add("one")
    cells = rig.cells("users", users=(1, 2, 4))
    assert [cell.id.split()[-1] for cell in cells] == ["users=1", "users=2", "users=4"]
    report = make_report([("a.json", rig.run(rig.plan(load_requests=8, rounds=1), cells))])
    rates = [row.figures["tokens_per_s"].median for row in report.files[0].rows]
    assert rates == pytest.approx([32, 64, 128])  # an engine that answers all at once as fast as one
    page = to_html(report)
    assert "Closed loop: each user asks again when answered" in page
    assert "tokens/s over users · 48 in, 16 out" in page
    out = io.StringIO()
    print_report(Console(file=out, width=120), report)
    assert "users: closed loop, each user asks again when answered; unique prompts" in out.getvalue()
    assert "4 users" in out.getvalue()
    assert as_dict(report)["schema"]


def test_goodput_counts_answers_that_kept_the_limits(rig: Rig) -> None:
    rig.add("one")
    plan = rig.plan(load_requests=8, rounds=1, ttft_limit=0.25)
    assert only_row(rig.run(plan, rig.cells("users", users=(2,)))).figures["goodput"].median == pytest.approx(4.0)
    strict = replace(plan, ttft_limit=0.1)
    assert only_row(rig.run(strict, rig.cells("users", users=(2,)))).figures["goodput"].median == 0.0


def test_an_engine_of_static_batches_serves_one_user_and_refuses_more(rig: Rig) -> None:
    engine = rig.add("static")
    can = engine.capabilities()
    engine.capabilities = lambda: replace(can, arrivals=False, batching="static")  # type: ignore[method-assign]
    assert isinstance(engine.capabilities(), Capabilities)
    rows = file_of(rig.run(rig.plan(load_requests=4, rounds=1), rig.cells("users", users=(1, 2)))).rows
    assert rows[0].void == ""
    assert rows[0].figures["tokens_per_s"].median == pytest.approx(32.0)
    assert rows[1].void.startswith("refused: static cannot take requests while it answers others")


def test_the_command_line(cli: Cli, tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    monkeypatch.chdir(str(tmp_path))
    script = "fake.answers=[20,21,22,23,24,25,26,27,28]"
    base = ("bench", "--backends", "fake", "--set", script, "--output-tokens", "4", "--image-size", "none")
    quick = ("--rounds", "1", "--requests", "4", "--max-warm-up", "3", "--no-ceiling", "--json")
    found = cli(*base, *quick, "--users", "1,2").json
    assert [row["id"].split()[-1] for row in found["files"][0]["rows"]] == ["users=1", "users=2"]
    assert cli(*base, "--users", "2", "--workload", "latency").complaint.endswith("--users is for --workload users")
    assert "--users" in cli(*base, "--users", "0").complaint
