"""Streams that are closed, full or of another encoding, and folders that are gone: seen from outside the process."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from visavis.cli import main

FULL = Path("/dev/full")
C_LOCALE = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def shell(
    arguments: str, redirections: str = "", *, before: str = "", **variables: str
) -> subprocess.CompletedProcess[bytes]:
    """`visavis` by a shell, whose `redirections` may close streams."""
    line = f"{before} exec {shlex.quote(sys.executable)} -m visavis {arguments} {redirections}"
    here = {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "VISAVIS_TRACEBACK": ""}
    return subprocess.run(["sh", "-c", line], env={**os.environ, **here, **variables}, capture_output=True, timeout=60)


def test_with_stderr_closed_stdout_still_holds_the_document_alone() -> None:
    done = shell("count hi --json", "2>&-")
    assert done.returncode == 0
    assert json.loads(done.stdout)["conversations"]


def test_with_stderr_closed_bad_input_is_still_2_and_says_nothing_on_stdout() -> None:
    done = shell("count hi --image nowhere.png", "2>&-")
    assert (done.returncode, done.stdout) == (2, b"")


def test_with_stdout_closed_nothing_breaks() -> None:
    done = shell("count hi", ">&-")
    assert done.returncode == 0
    assert b"rror" not in done.stderr


@pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full")
@pytest.mark.parametrize("command", ["count hi -q", "count hi -q --json", "plan -q --gpu-memory 24GiB"])
def test_output_to_a_full_disk_is_one_line_and_1(command: str) -> None:
    done = shell(command, "> /dev/full")
    assert done.returncode == 1
    assert done.stderr.decode().splitlines() == ["visavis: the output cannot be written: No space left on device"]


@pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full")
def test_a_full_stderr_does_not_cost_the_answer() -> None:
    done = shell("count hi", "2> /dev/full")
    assert (done.returncode, b"tokens" in done.stdout) == (0, True)


def test_a_reader_that_leaves_is_141_for_tables_too() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    line = [sys.executable, "-m", "visavis", "count", "hi", "-q"]
    with os.fdopen(writer, "wb") as gone:
        done = subprocess.run(line, stdout=gone, stderr=subprocess.PIPE, timeout=60)
    assert (done.returncode, done.stderr) == (141, b"")


def test_json_is_json_in_every_encoding_of_stdout(tmp_path: Path) -> None:
    (tmp_path / "m.json").write_text('[{"id": "é 图 😀", "messages": "hi"}]', "utf-8")
    done = shell(f"count --messages {tmp_path / 'm.json'} --json", PYTHONIOENCODING="latin-1")
    assert json.loads(done.stdout.decode("latin-1"))["conversations"][0]["id"] == "é 图 😀"


def test_a_question_in_utf8_is_understood_in_a_locale_without_it() -> None:
    counts = [
        json.loads(shell("count 'hé 图' --json", **locale).stdout)["conversations"][0]["total"]
        for locale in ({}, C_LOCALE)
    ]
    assert counts[0] == counts[1]


@pytest.mark.parametrize(
    "arguments",
    [
        "count hi --image x.png",
        "count --messages x.json",
        "ask hi --image x.png --draw o.png --backend fake",
        "samples s",
    ],
)
def test_in_a_folder_that_is_gone_the_missing_file_is_named(arguments: str, tmp_path: Path) -> None:
    gone = shlex.quote(str(tmp_path / "gone"))
    done = shell(arguments, before=f"mkdir {gone} && cd {gone} && rmdir {gone} &&")
    assert done.returncode == 2
    assert b"internal" not in done.stderr
    assert b"No such file" in done.stderr or b"no such file" in done.stderr


def test_a_warning_is_one_line_without_a_place_in_the_code(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def warn(args: object) -> int:
        warnings.warn("float16 may overflow", stacklevel=2)
        return 0

    monkeypatch.setattr("visavis.cli.backends.run", warn)
    assert main(["backends"]) == 0
    assert capsys.readouterr().err == "visavis: warning: float16 may overflow\n"
