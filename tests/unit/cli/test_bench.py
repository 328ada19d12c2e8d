"""`visavis bench` and `visavis bench report`, on the fake engine."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli.conftest import Cli, Done
from tests.unit.servers.scripted import Exchange, Server, piece, serving, usage
from visavis.backends.fake import FakeModel
from visavis.backends.worker import WorkerModel
from visavis.bench.store import load, save
from visavis.cli.bench_work import able_to
from visavis.errors import OptionError

ANSWERS = json.dumps(list(range(20, 400)))
QUICK = (
    "--backends", "fake", "--set", f"fake.answers={ANSWERS}", "--set", "fake.first_token_s=0.2",
    "--set", "fake.per_token_s=0.02", "--image-size", "none", "--prompt-tokens", "48", "--output-tokens", "16",
    "--no-ceiling",
)  # fmt: skip


def bench(cli: Cli, *argv: str) -> Done:
    return cli("bench", *QUICK, *argv)


def test_known_times_come_out_of_a_process_within_two_percent(cli: Cli, tmp_path: Path) -> None:
    done = bench(cli, "--rounds", "2", "--requests", "2", "--json", "-q", "--out", str(tmp_path / "r.json"))
    assert done.code == 0
    latency, throughput = done.json["files"][0]["rows"]
    assert latency["id"] == "latency prompt=48 output=16"
    figures = {name: figure["median"] for name, figure in latency["figures"].items()}
    assert figures["ttft"] == pytest.approx(0.2, rel=0.02)
    assert figures["tpot"] == pytest.approx(0.02, rel=0.02)
    assert figures["e2e"] == pytest.approx(0.5, rel=0.02)
    assert throughput["figures"]["tokens_per_s"]["median"] == pytest.approx(8 * 16 / 0.5, rel=0.02)
    (engine,) = done.json["files"][0]["engines"]
    assert engine["sessions"][0]["load"] == 0.5  # the script's
    assert engine["peak_memory_bytes"] > 1 << 20
    assert done.err == ""


def test_files_are_written_and_can_be_reported_again(cli: Cli, tmp_path: Path) -> None:
    out, html, table = tmp_path / "a.json", tmp_path / "a.html", tmp_path / "a.csv"
    assert bench(cli, "--workload", "latency", "--rounds", "3", "--requests", "1", "--out", str(out)).code == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.json"]
    done = cli("bench", "report", str(out), "--html", str(html), "--csv", str(table), "--compare-to", str(out))
    assert done.code == 0
    assert "inside the noise" in done.out
    assert html.read_text().startswith("<!doctype html>")
    assert {row["figure"] for row in csv.DictReader(table.open())} >= {"ttft", "tpot", "e2e", "tokens_per_s"}


def test_how_much_there_is_to_measure_is_said_once(cli: Cli, tmp_path: Path) -> None:
    out = str(tmp_path / "r.json")
    done = bench(
        cli, "--workload", "latency", "--output-tokens", "2,4", "--rounds", "2", "--requests", "1", "--out", out
    )
    assert f"4 timed rounds to measure: 2 rows × 1 engine × 2; result file: {out}\n" in done.err
    assert done.err.endswith(f"result file: {out}\n")  # and where it is, once more, below the tables
    assert "\nfake: start\n" in done.err


def test_load_needs_rates_and_shows_goodput(cli: Cli, tmp_path: Path) -> None:
    done = bench(
        cli, "--rates", "0.5", "--requests", "3", "--rounds", "1", "--ttft", "300ms", "--json", "-q",
        "--out", str(tmp_path / "r.json"),
    )  # fmt: skip
    (row,) = done.json["files"][0]["rows"]
    assert row["cell"]["rate"] == 0.5
    assert row["figures"]["goodput"]["median"] == pytest.approx(row["figures"]["requests_per_s"]["median"])


def test_a_messages_file_is_measured_as_it_is(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "chats.json"
    file.write_text(json.dumps([[{"role": "user", "content": "hi"}], [{"role": "user", "content": "hello there"}]]))
    done = cli(
        "bench", "--backends", "fake", "--set", f"fake.answers={ANSWERS}", "--messages", str(file), "--no-ceiling",
        "--workload", "latency", "--output-tokens", "8", "--rounds", "2", "--json", "-q",
        "--out", str(tmp_path / "r.json"),
    )  # fmt: skip
    (row,) = done.json["files"][0]["rows"]
    assert row["requests"] == 4
    assert done.json["files"][0]["config"]["cache"] == "repeated prompts"


def test_failures_give_exit_code_1_and_are_listed(cli: Cli, tmp_path: Path) -> None:
    done = bench(
        cli, "--set", 'fake.fail={"0": "out of luck"}', "--workload", "latency", "--rounds", "1", "--requests", "2",
        "--out", str(tmp_path / "r.json"),
    )  # fmt: skip
    assert done.code == 1
    assert "void" in done.out
    assert "2 of 2 requests failed; first: round 1, request 1: out of luck" in done.out


def served(exchange: Exchange) -> None:
    exchange.begin_stream()
    for text in "abcde":
        time.sleep(0.01)
        exchange.event(piece(text))
    exchange.event(piece(finish="stop"))
    exchange.event(usage(50, 10))  # two tokens in each piece of text
    exchange.event("[DONE]")


def test_any_openai_compatible_server_is_measured_from_outside(cli: Cli, tmp_path: Path) -> None:
    with serving(Server(answers=[served])) as server:
        done = cli(
            "bench", "--backends", "openai", "-m", "some-model", "--set", f"openai.base_url={server.url}", "--set",
            "openai.model=m", "--natural", "--image-size", "none", "--prompt-tokens", "20", "--output-tokens", "16",
            "--workload", "latency,throughput,load", "--rates", "20", "--requests", "3", "--rounds", "1",
            "--concurrency", "2", "--json", "-q", "--out", str(tmp_path / "r.json"),
        )  # fmt: skip
    assert done.code == 0, done.err
    rows = done.json["files"][0]["rows"]
    assert [row["void"] for row in rows] == ["", "", ""]
    assert rows[0]["output_tokens"] == [10, 10]  # as the server counted them, not the 5 pieces
    assert rows[0]["prompt_tokens"] == [50, 50]
    assert rows[0]["tokens_per_delivery"] is None
    assert rows[0]["figures"]["ttft"]["median"] >= 0.01
    assert done.json["files"][0]["engines"][0]["marks"]  # what the server alone decides
    assert len(server.bodies[0]["messages"][0]["content"].split()) == 20
    assert len({str(body["messages"]) for body in server.bodies}) == len(server.bodies)


def test_a_server_that_cannot_ignore_the_end_is_refused_by_name(cli: Cli, tmp_path: Path) -> None:
    with serving(Server(answers=[served])) as server:
        done = cli(
            "bench", "--backends", "openai", "-m", "some-model", "--set", f"openai.base_url={server.url}", "--set",
            "openai.model=m", "--image-size", "none", "--workload", "latency", "--out", str(tmp_path / "r.json"),
        )  # fmt: skip
    assert done.code == 1
    assert "refused: openai cannot honour ignore_eos" in done.out
    assert server.bodies == []


def test_an_interrupted_result_is_resumed_with_its_own_options(cli: Cli, tmp_path: Path) -> None:
    out = tmp_path / "r.json"
    assert bench(cli, "--workload", "latency", "--rounds", "3", "--requests", "1", "--out", str(out)).code == 0
    result = load(out)
    kept = result.runs[0].timed()[0]
    result.complete = False
    result.runs[0].rounds = [r for r in result.runs[0].rounds if r.kind != "timed" or r.number == 0]
    save(result, out)
    shown = cli("bench", "report", str(out))
    assert "interrupted after 1 of 3 rounds" in shown.out
    assert cli("bench", "--resume", str(out), "--rounds", "5").complaint.endswith("leave out --rounds")
    assert cli("bench", "--resume", str(out)).code == 0
    again = load(out)
    assert again.complete
    assert [r.number for r in again.runs[0].timed()] == [0, 1, 2]
    assert again.runs[0].timed()[0] == kept
    assert any("resumed" in note for note in again.notes)
    assert "is complete" in cli("bench", "--resume", str(out)).complaint


def test_ctrl_c_keeps_what_was_measured(tmp_path: Path) -> None:
    out = tmp_path / "r.json"
    command = [
        sys.executable, "-m", "visavis", "bench", *QUICK, "--workload", "latency", "--requests", "1", "--rounds", "500",
        "--set", "fake.real_step_s=0.005", "--out", str(out),
    ]  # fmt: skip
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    until = time.monotonic() + 60
    while time.monotonic() < until and not (out.exists() and '"kind":"timed"' in out.read_text()):
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    said, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "visavis bench --resume" in err
    assert "interrupted" in said
    result = load(out)
    assert not result.complete
    assert 1 <= len(result.runs[0].timed()) < 500


LOAD = ("--workload", "load", "--rates", "1")


@pytest.mark.parametrize("argv", [LOAD, ("--users", "1,2"), ("--workload", "latency,load", "--rates", "1")])
def test_an_engine_that_takes_no_request_meanwhile_is_refused_before_it_is_started(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, argv: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(FakeModel, "takes_arrivals", False)
    monkeypatch.setattr(WorkerModel, "load", lambda *_: pytest.fail("an engine was started"))
    done = bench(cli, *argv)
    assert done.code == 2
    needed = "users" if argv[0] == "--users" else "load"
    assert f"fake cannot take a request while answering others, as --workload {needed} needs" in done.complaint
    assert "--backends native" in done.complaint
    assert done.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_one_user_at_a_time_is_for_every_engine(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeModel, "takes_arrivals", False)
    assert bench(cli, "--users", "1", "--rounds", "1", "--requests", "2", "--out", str(tmp_path / "r.json")).code == 0


def test_engines_that_cannot_do_a_workload_are_left_out_unless_they_are_named() -> None:
    hf = "hf (takes no requests while it answers others, as load needs)"
    assert able_to(("native", "hf"), ("latency", "load"), (1,), named=False) == (("native",), (hf,))
    assert able_to(("native", "hf"), ("latency", "throughput"), (1,), named=True) == (("native", "hf"), ())
    with pytest.raises(OptionError, match=r"^hf cannot .* leave hf out of --backends, or measure latency and through"):
        able_to(("native", "hf"), ("load",), (1,), named=True)
    with pytest.raises(OptionError, match="name another engine"):
        able_to(("hf",), ("users",), (1, 4), named=False)


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        (("--workload", "speed"), "known: latency, throughput, users, load"),
        (("--workload", "load"), "load needs --rates"),
        (("--rates", "1", "--workload", "latency"), "--rates is for --workload load"),
        (("--concurrency", "2", "--workload", "latency"), "--concurrency is for --workload throughput"),
        (("--rates", "fast"), "requests a second are needed"),
        (("--concurrency", "0"), "whole numbers from 1 on"),
        (("--image-size", "big"), "WIDTHxHEIGHT or none"),
        (("--ttft", "1s"), "limits for goodput"),
        (("--rates", "1", "--ttft", "soon"), "a time is needed"),
        (("--max-tokens", "5"), "give --output-tokens"),
        (("--ignore-eos",), "bench does anyway"),
        (("--stop", "x"), "add --natural"),
        (("--steady-within", "200%"), "a share is needed"),
        (("--max-warm-up", "2"), "3 rounds are needed"),
        (("--prompt-tokens", "5"), "give --prompt-tokens"),
        (("--output-tokens", "100000"), "do not fit the context"),
        (("--out", "/nowhere/r.json"), "there is no folder"),
        (("--html", "/nowhere/r.html"), "no such folder"),
        (("--compare-to", "/nowhere/r.json"), "no such file"),
        (("--resume", "/nowhere/r.json"), "no such file"),
        (("word",), "unknown"),
    ],
)
def test_bad_input_is_one_line_and_leaves_no_file(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, argv: tuple[str, ...], complaint: str
) -> None:
    monkeypatch.chdir(tmp_path)
    quick: dict[str, Any] = dict(zip(QUICK[::2], QUICK[1::2], strict=False))
    base = [] if argv[0] == "--resume" else ["--backends", "fake", "--set", quick["--set"]]
    done = cli("bench", *base, *argv)
    assert done.code == 2
    assert complaint in done.complaint
    assert list(tmp_path.iterdir()) == []


def test_an_existing_result_is_not_overwritten(cli: Cli, tmp_path: Path) -> None:
    out = tmp_path / "r.json"
    out.write_text("precious")
    assert "exists" in bench(cli, "--out", str(out)).complaint
    assert out.read_text() == "precious"


def test_report_takes_no_option_of_the_bench(cli: Cli, tmp_path: Path) -> None:
    out = tmp_path / "r.json"
    out.write_text("{}")
    assert "--rounds has no meaning there" in cli("bench", "--rounds", "3", "report", str(out)).complaint
    assert "is not a bench result" in cli("bench", "report", str(out)).complaint
