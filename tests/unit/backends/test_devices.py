"""What the driver is asked, answered by a stand-in for nvidia-smi."""

from __future__ import annotations

from pathlib import Path

import pytest

from visavis.backends.devices import gpu_bytes_of


def driver(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str, code: int = 0) -> None:
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{text}\nEND\nexit {code}\n", "utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_memory_of_an_engines_own_processes_is_added_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In MiB, one line for each process and card; others' processes do not count."""
    driver(tmp_path, monkeypatch, "101, 2048\n102, 512\n102, 256\n999, 70000\n103, [N/A]")
    assert gpu_bytes_of({100, 101, 102, 103}) == (2048 + 512 + 256) * 2**20


@pytest.mark.parametrize(
    ("text", "code"), [("", 0), ("999, 70000", 0), ("101, 5", 9), ("Failed to initialize NVML", 0)]
)
def test_what_the_driver_does_not_say_is_unknown_not_zero(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, code: int
) -> None:
    driver(tmp_path, monkeypatch, text, code)
    assert gpu_bytes_of({101}) is None


def test_without_a_driver_it_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gpu_bytes_of({101}) is None
