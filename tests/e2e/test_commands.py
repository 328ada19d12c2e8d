"""The installed command, as people run it: exit codes, streams, signals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.e2e

COMMAND = Path(sys.executable).with_name("visavis")
SAMPLES = Path(__file__).parents[2] / "src" / "visavis" / "assets" / "samples"
SCREEN = str(SAMPLES / "01-phone.png")
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "NO_COLOR": "1", "HF_HUB_OFFLINE": "1"}


def run(*argv: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(COMMAND), *argv], capture_output=True, text=True, timeout=120, env=ENVIRONMENT, check=False, **options
    )


def test_version_of_the_command_and_of_the_module() -> None:
    as_module = subprocess.run(
        [sys.executable, "-m", "visavis", "--version"], capture_output=True, text=True, check=True
    )
    assert run("--version").stdout == as_module.stdout
    assert as_module.stdout.startswith("visavis ")


@pytest.mark.parametrize("argv", [["--help"], ["count", "what is this?", "--image", SCREEN], ["backends"]])
def test_small_commands_never_import_torch(argv: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "visavis", *argv],
        capture_output=True,
        text=True,
        timeout=120,
        env=ENVIRONMENT,
        check=True,
    )
    imported = {line.rsplit("|", 1)[-1].strip() for line in done.stderr.splitlines()}
    assert "visavis.cli" in imported
    assert not imported & {"torch", "transformers", "av"}


def test_bad_input_is_one_line_and_exit_code_2() -> None:
    done = run("ask", "screen.png")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("visavis: ")


def test_ask_with_the_native_engine_from_process_start_to_json() -> None:
    done = run("ask", "what is this?", "--image", SCREEN, "--max-tokens", "8", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    counted = json.loads(run("count", "what is this?", "--image", SCREEN, "--json").stdout)["conversations"][0]
    assert document["prompt_tokens"] == counted["total"]
    assert document["image_tokens"] == counted["media"][0]["tokens"]
    assert 1 <= len(document["token_ids"]) <= 8
    assert len(document["timings"]["token_times_s"]) == len(document["token_ids"])
    assert document["timings"]["load_phases_s"].keys() >= {"tokenizer", "import", "load"}


def test_compare_runs_each_engine_in_its_own_process_and_fails_on_a_difference() -> None:
    argv = (
        "compare",
        "--backends",
        "native,fake",
        "--ask",
        "say a word",
        "--max-tokens",
        "6",
        "--json",
        "--rounds",
        "1",
    )
    done = run(*argv, "--fail-on-difference")
    assert done.returncode == 1, done.stderr
    document = json.loads(done.stdout)
    assert [b["backend"] for b in document["backends"]] == ["native", "fake"]
    assert all(b["peak_memory_bytes"] > 2**20 for b in document["backends"])
    assert document["backends"][1]["answers"][0]["text"] == "ok"
    assert document["pairs"][0]["same"] == 0
    assert document["pairs"][0]["differences"][0]["position"] == 0
    assert "native: warm-up" in done.stderr


def test_compare_on_the_bundled_samples_is_0_when_tokens_differ() -> None:
    done = run("compare", "--backends", "fake", "--messages", str(SAMPLES / "samples.json"))
    assert done.returncode == 0, done.stderr
    assert "fake answered 12 prompts" in done.stdout
    assert "\x1b" not in done.stdout


def children(pid: int) -> list[int]:
    """Processes below `pid`, all generations."""
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in task.read_text("ascii").split():
            found += [int(child), *children(int(child))]
    return found


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks at processes through /proc")
@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupted_compare_leaves_no_process_behind(sent: signal.Signals, code: int) -> None:
    argv = ["compare", "--backends", "fake", "--ask", "hi", "--engine-option", "hang_at=load"]
    process = subprocess.Popen(
        [str(COMMAND), *argv], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT
    )
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("fake: load"):
                break
        deadline = time.monotonic() + 30
        while not (below := children(process.pid)) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert below
        process.send_signal(sent)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == code
    assert "Traceback" not in err
    for pid in below:
        assert not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text("ascii").split()[2]
    assert "{" not in out


def test_reader_that_goes_away_is_no_error() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [str(COMMAND), "backends", "--json"],
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        env=ENVIRONMENT,
        check=False,
    )
    os.close(writer)
    assert done.returncode == 141
    assert done.stderr == ""


def test_a_question_imports_nothing_heavy_beside_torch() -> None:
    """Start-up is `import torch` and little more (benchmarks/start_up.py). What torch itself imports does not count."""
    heavy = ("transformers", "accelerate", "huggingface_hub", "av", "rich", "requests", "torchvision", "sympy", "yaml")
    code = f"""
import sys, torch
before = set(sys.modules)
from visavis.cli import main
assert main(["ask", "what is this?", "--image", {SCREEN!r}, "--max-tokens", "1", "--quiet"]) == 0
new = set(sys.modules) - before
parts = ("torch._dynamo", "torch._inductor", "PIL.TiffImagePlugin", "visavis.compare", "visavis.bench", "visavis.plan")
print([m for m in new if m.split(".")[0] in {heavy!r} or m.startswith(parts)])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=ENVIRONMENT, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
