"""`visavis compare` with all four engines, each in its own interpreter, on the bundled model and its twelve samples."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import combinations
from pathlib import Path

import pytest

from tests.peers.conftest import FAST_START, interpreter

pytestmark = pytest.mark.peers

ENGINES = ("native", "hf", "vllm", "sglang")


def test_four_engines_in_one_table_say_the_same_tokens_on_the_twelve_samples(tmp_path: Path) -> None:
    pythons = [word for engine in ENGINES[2:] for word in ("--python", f"{engine}={interpreter(engine)}")]
    options = ["--dtype", "float32", "--max-model-len", "1024", "--set", "vllm.enforce_eager=true"]
    options += ["--set", "sglang.max_total_tokens=8192"]
    command = [sys.executable, "-m", "visavis", "compare", "--backends", ",".join(ENGINES), *pythons, *options]
    report = tmp_path / "report.html"
    done = subprocess.run(
        [*command, "--json", "--report", str(report)],
        capture_output=True,
        text=True,
        env={**os.environ, **FAST_START},
        timeout=1500,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    by_name = {b["backend"]: b for b in found["backends"]}
    assert tuple(by_name) == ENGINES
    assert {b["dtype"] for b in by_name.values()} == {"float32"}
    for name, backend in by_name.items():
        assert backend["error"] is None
        assert len(backend["answers"]) == 12, name
        assert (backend["batch"]["prompts"], backend["batch"]["same_as_alone"]) == (12, 12), name
        assert backend["interpreter"] == (interpreter(name) if name in ENGINES[2:] else sys.executable)
    pairs = {(p["first"], p["second"]): p for p in found["pairs"]}
    assert set(pairs) == set(combinations(ENGINES, 2))
    assert {(p["same"], p["same_text"], p["total"]) for p in pairs.values()} == {(12, 12, 12)}
    assert "all gave the same answers on all 12 prompts" in found["verdict"]
    page = report.read_text("utf-8")
    assert all(name in page for name in ENGINES)
