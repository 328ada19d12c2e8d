"""Benchmarks of a GPU on a machine that has none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "argv",
    [
        ("run",),
        ("run", "tiny-2", "7b-1"),
        ("vision",),
        ("startup", "Qwen2-VL-7B", "folder"),
        ("tune", "Qwen2.5-1.5B", "1", "512"),
        ("parity", "folder"),
    ],
    ids=" ".join,
)
def test_without_a_gpu_the_end_comes_at_once_in_one_line(argv: tuple[str, ...], tmp_path: Path) -> None:
    pytest.importorskip("torch")
    if argv[0] == "tune":
        pytest.importorskip("triton")
    paths = os.pathsep.join([str(ROOT), str(ROOT / "src")])
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.gpu.{argv[0]}", *argv[1:]],
        env=os.environ | {"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": paths},
        cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"benchmarks.gpu.{argv[0]} needs a CUDA device\n"
    assert list(tmp_path.iterdir()) == []
