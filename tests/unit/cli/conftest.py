"""The command line, called in this process, on the fake engine."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from visavis.cli import main

BOX = "<|object_ref_start|>Search<|object_ref_end|><|box_start|>(100,200),(300,400)<|box_end|>"


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """stdout, which must be one JSON document."""
        return json.loads(self.out)

    @property
    def complaint(self) -> str:
        """The error: exactly one line of stderr."""
        lines = [line for line in self.err.splitlines() if line.startswith("visavis: ")]
        assert len(lines) == 1, self.err
        assert "Traceback" not in self.err
        assert "usage:" not in self.err
        return lines[0]


class Cli:
    def __init__(self, capfd: pytest.CaptureFixture[str]) -> None:
        self.capfd = capfd

    def __call__(self, *argv: str) -> Done:
        self.capfd.readouterr()
        code = main(list(argv))
        out, err = self.capfd.readouterr()
        return Done(code, out, err)

    def ask(self, *argv: str, answer: str = BOX) -> Done:
        """`ask` on the fake engine that always gives `answer`."""
        return self("ask", *argv, "--backend", "fake", "--engine-option", f"answers={json.dumps(answer)}")


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str]) -> Cli:
    return Cli(capfd)


@pytest.fixture
def screen(tmp_path: Path) -> str:
    """A screen of 320×160 (width × height)."""
    path = tmp_path / "screen.png"
    Image.new("RGB", (320, 160), (200, 210, 220)).save(path)
    return str(path)
