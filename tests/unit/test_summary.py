"""What the parity tests compared is told at the end of a run, not among its dots."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
CONFTEST = "from tests.conftest import count, pytest_terminal_summary\n"
TESTS = """
import pytest

@pytest.mark.parametrize("n", [1, 2, 4])
def test_numbers(n, count):
    count(n)

def test_word(count):
    count("seen", "here")
"""


def test_what_variants_of_a_test_counted_is_added_up_after_the_dots(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST, "utf-8")
    (tmp_path / "test_it.py").write_text(TESTS, "utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--rootdir={tmp_path}", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if line]
    assert lines[0].split() == ["....", "[100%]"], done.stdout + done.stderr
    assert "what the parity tests compared" in lines[1]
    assert lines[2:4] == ["test_numbers: 7", "test_word here: seen"]
