"""stdout is for answers, stderr for everything said about them. With --json, stdout holds one JSON document."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from visavis.errors import OptionError, shorten_path

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from rich.console import Console

__all__ = ["Output", "add_output_options", "check_writable", "write_file"]

# Control characters would let an answer move the cursor or recolour the terminal.
_CONTROLS = {code: "\ufffd" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}

_NUMBERS = re.compile(r"\[\n[\s\d.,eE+-]+\]")
"""A list of numbers alone over several lines. Not in a string, whose line breaks are escaped."""


def _on_one_line(found: re.Match[str]) -> str:
    return f"[{' '.join(found[0][1:-1].split())}]"


def add_output_options(parser: ArgumentParser) -> None:
    group = parser.add_argument_group("output")
    group.add_argument("--json", action="store_true", help="one JSON document on stdout, for machines")
    group.add_argument("-q", "--quiet", action="store_true", help="say nothing on stderr but errors")


def check_writable(flag: str, path: str | None) -> None:
    """Raises OptionError, before any work is done, where the file that `flag` asks for cannot be written."""
    if path is None:
        return
    file = Path(path)
    try:
        file.lstat()
        possible = True
    except FileNotFoundError:
        possible = bool(file.name)
    except (OSError, ValueError):  # a name too long, or with a NUL
        possible = False
    place = file if possible and file.exists() else file.parent
    if not possible or file.is_dir() or not file.parent.is_dir() or not os.access(place, os.W_OK):
        raise OptionError(
            f"{flag} {shorten_path(path)} cannot be written: name a file in a folder that exists and is yours"
        )


def write_file(path: str, text: str) -> None:
    """A file that was asked for. Raises OptionError with the reason where it cannot be written after all."""
    try:
        Path(path).write_text(text, "utf-8")
    except OSError as error:
        raise OptionError(f"{shorten_path(path)} cannot be written: {error.strerror}") from None


class Output:
    """Where a command writes."""

    def __init__(self, args: Namespace) -> None:
        self.json: bool = args.json
        self.quiet: bool = args.quiet
        self._stdout: TextIO = sys.stdout

    def say(self, text: str) -> None:
        """A line for people, on stderr."""
        if not self.quiet:
            try:
                print(text, file=sys.stderr, flush=True)
            except BrokenPipeError:
                raise
            except OSError:  # a stderr that cannot be written must not cost the answer
                pass

    def piece(self, text: str) -> None:
        """A piece of an answer, on stdout at once."""
        if self._stdout.isatty():
            text = text.translate(_CONTROLS)
        self._stdout.write(text)
        self._stdout.flush()

    def document(self, value: Any) -> None:
        """The JSON document, on stdout."""
        ascii_only = "utf" not in (self._stdout.encoding or "utf-8").lower()  # escapes of JSON, not of Python
        text = json.dumps(value, ensure_ascii=ascii_only, indent=2, allow_nan=False)
        self._stdout.write(_NUMBERS.sub(_on_one_line, text) + "\n")
        self._stdout.flush()

    def console(self) -> Console:
        """For tables: stdout, or stderr beside --json. Colours only on a terminal and without NO_COLOR."""
        from rich.console import Console

        class OurConsole(Console):
            def on_broken_pipe(self) -> None:
                raise BrokenPipeError  # as anywhere else; rich would end the process with 1

        return OurConsole(file=sys.stderr if self.json else self._stdout, soft_wrap=True, emoji=False)

    def progress_console(self) -> Console | None:
        """stderr, where something that moves may be shown; None where it may not."""
        if self.quiet or not sys.stderr.isatty():
            return None
        from rich.console import Console

        return Console(file=sys.stderr)

    @contextmanager
    def only_ours(self) -> Iterator[None]:
        """With --json: what libraries print to stdout meanwhile goes to stderr."""
        if not self.json:
            yield
            return
        with redirect_stdout(sys.stderr):
            try:
                shares_fd = self._stdout.fileno() == 1
            except (OSError, ValueError):  # no real file, e.g. in tests
                shares_fd = False
            if not shares_fd:
                yield
                return
            self._stdout.flush()
            kept = os.dup(1)
            os.dup2(2, 1)
            try:
                yield
            finally:
                os.dup2(kept, 1)
                os.close(kept)
