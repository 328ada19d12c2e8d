"""`--image -`: the picture on standard input."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from tests.unit.cli.conftest import Cli


class Piped:
    """A standard input that holds bytes."""

    def __init__(self, data: bytes, terminal: bool = False) -> None:
        self.buffer = io.BytesIO(data)
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


def test_an_image_is_read_from_stdin(cli: Cli, screen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    named = cli("count", "--image", screen, "--json").json["conversations"][0]
    monkeypatch.setattr("sys.stdin", Piped(Path(screen).read_bytes()))
    piped = cli("count", "--image", "-", "--json").json["conversations"][0]
    assert piped["total"] == named["total"]
    assert piped["media"][0]["original_size"] == [160, 320]


@pytest.mark.parametrize(
    ("data", "terminal", "said"),
    [
        (b"", False, "--image - reads from stdin, and nothing came on it"),
        (b"", True, "--image - reads from stdin, which is the terminal; give it a file"),
        (b"hello", False, "--image - is plain text, not an image"),
    ],
)
def test_what_is_wrong_on_stdin_is_said(
    cli: Cli, data: bytes, terminal: bool, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", Piped(data, terminal))
    done = cli.ask("what is this?", "--image", "-")
    assert done.code == 2
    assert said in done.complaint


def test_stdin_is_read_once(cli: Cli) -> None:
    done = cli.ask("compare these", "--image", "-", "--image", "-")
    assert done.code == 2
    assert "can be read once" in done.complaint
