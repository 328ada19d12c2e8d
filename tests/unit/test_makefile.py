"""What `make` says to people when a step fails."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    """An environment whose tools do nothing, and whose `uv` finds no index."""
    folder = tmp_path / "venv"
    (folder / "bin").mkdir(parents=True)
    for name, code in (("python", 0), ("pip", 0), ("uv", 1)):
        tool = folder / "bin" / name
        tool.write_text(f"#!/bin/sh\nexit {code}\n")
        tool.chmod(0o755)
    return folder


def make(venv: Path, torch: str) -> subprocess.CompletedProcess[str]:
    if shutil.which("make") is None or not (ROOT / "Makefile").is_file():
        pytest.skip("needs make and the checkout")
    command = ["make", "--no-print-directory", f"{venv}/.torch-{torch}", f"VENV={venv}", f"TORCH={torch}"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)


def test_an_unreachable_cpu_build_of_torch_has_two_ways_out(venv: Path) -> None:
    done = make(venv, "cpu")
    assert done.returncode == 2
    assert "https://download.pytorch.org/whl/cpu" in done.stderr
    assert "without TORCH=cpu" in done.stderr
    assert "install a CPU build of torch into" in done.stderr
    assert not (venv / ".torch-cpu").exists()  # or the next make would go on without torch


def test_the_usual_build_is_left_to_the_package_itself(venv: Path) -> None:
    done = make(venv, "default")
    assert (done.returncode, done.stderr) == (0, "")
    assert (venv / ".torch-default").exists()


def test_the_built_kernels_are_named_for_what_they_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from visavis.engine.kernels.cpu import build

    monkeypatch.setattr(build, "find_library", lambda: Path("/c/kernels.so"))
    assert build.main() == 0
    assert capsys.readouterr().out == "CPU kernels of the native engine: /c/kernels.so\n"
