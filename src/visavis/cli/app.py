"""`visavis`: finds the command, runs it, turns every error into one line and an exit code."""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Any

from visavis import __version__
from visavis.cli.parser import Parser
from visavis.errors import InputError, VisavisError

__all__ = ["build_parser", "main"]

COMMANDS = ("ask", "compare", "bench", "count", "plan", "samples", "backends")
"""Each is a module of this package with `add_parser` and `run`."""

BAD_INPUT, FAILED, INTERRUPTED, TERMINATED, BROKEN_PIPE = 2, 1, 130, 143, 141
_UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)

DESCRIPTION = """\
One chat, any engine, face to face: vision-language models through interchangeable engines, compared fairly.

  visavis compare                              the bundled model on every engine here, 12 sample screens
  visavis ask "where is the search button?" -m MODEL --image screen.png --draw found.png
  visavis bench --backends native,hf           speed alone, measured until it is steady
  visavis plan -m MODEL --gpu-memory 24GiB     what fits, every setting and why, before anything is downloaded
  visavis count --image screen.png             tokens, before any engine starts

visavis COMMAND --help says more. MODEL: a Hugging Face folder or hub id; without it the bundled tiny-screen."""


class _Terminated(BaseException):
    """SIGTERM, as an exception, so that engines and their processes are closed on the way out."""


def build_parser(command: str | None = None) -> Parser:
    """The command line, or as much of it as one `command` needs, whose module alone is then imported. Imports nothing
    heavy."""
    parser = Parser(prog="visavis", description=DESCRIPTION)
    parser.add_argument("--version", action="version", version=f"visavis {__version__}")
    commands = parser.add_subparsers(title="commands", dest="command", metavar="COMMAND", parser_class=Parser)
    for name in (command,) if command in COMMANDS else COMMANDS:
        module = import_module(f"visavis.cli.{name}")
        added = module.add_parser(commands)
        added.set_defaults(run=module.run, parser=added)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command. Returns 0; 1 when an engine failed (or answers differ and --fail-on-difference was given);
    2 for bad input; 130 after Ctrl-C."""
    _open_missing_streams()
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # a terminal without Unicode must not end an answer
    try:
        with _terminations(), _warnings_in_a_line():
            code = _guarded(argv)
            sys.stdout.flush()
            return code
    except _Terminated:
        return TERMINATED
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        _drop_stdout()  # whoever read our output has gone
        return BROKEN_PIPE
    except OSError as error:  # the last flush
        if error.errno not in _UNWRITABLE:
            raise
        return _unwritable(error)


def _guarded(argv: Sequence[str] | None) -> int:
    """Runs one command; errors become one line and a code."""
    try:
        return _run(argv)
    except InputError as error:
        return _fail(BAD_INPUT, error)
    except VisavisError as error:
        return _fail(FAILED, error)
    except SystemExit as end:  # --help and --version
        return end.code if isinstance(end.code, int) else 0
    except BrokenPipeError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno in _UNWRITABLE and error.filename is None:
            return _unwritable(error)
        if os.environ.get("VISAVIS_TRACEBACK"):
            raise
        return _fail(FAILED, f"internal error, {type(error).__name__}: {error}; VISAVIS_TRACEBACK=1 shows where")


def _run(argv: Sequence[str] | None) -> int:
    words = sys.argv[1:] if argv is None else argv
    parser = build_parser(words[0] if words else None)
    args = parser.parse_all(argv)
    if args.command is None:
        parser.print_help(sys.stderr)
        return BAD_INPUT
    code: int = args.run(args)
    return code


def _fail(code: int, error: object) -> int:
    with suppress(OSError):  # a stderr that cannot be written: the code still tells
        print(f"visavis: {' '.join(str(error).split())}", file=sys.stderr)
    return code


def _unwritable(error: OSError) -> int:
    _drop_stdout()
    return _fail(FAILED, f"the output cannot be written: {error.strerror}")


def _drop_stdout() -> None:
    """What is still buffered must not raise again at exit."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _open_missing_streams() -> None:
    """A stream closed by the caller (`>&-`) leads to nowhere: files opened later must not get its number, and what is
    meant for stderr must not fall back to stdout."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            found = os.open(os.devnull, os.O_RDWR)  # the lowest free number: this one
            if found != number:
                os.dup2(found, number)
                os.close(found)
            setattr(sys, name, open(number, "r" if number == 0 else "w", encoding="utf-8", closefd=False))  # noqa: SIM115


@contextmanager
def _warnings_in_a_line() -> Iterator[None]:
    """A warning is one line for people, without the place in the code where it was raised."""

    def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        if issubclass(category, UserWarning):
            _fail(0, f"warning: {message}")

    with warnings.catch_warnings():
        warnings.showwarning = show
        warnings.filterwarnings("ignore", module=r"PIL\.")  # broken EXIF and the like: the picture is read all the same
        yield


@contextmanager
def _terminations() -> Iterator[None]:
    """SIGTERM ends the command the same clean way as Ctrl-C."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def terminate(number: int, frame: Any) -> None:
        raise _Terminated

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
