"""Flags that say what the answer must match."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from visavis.errors import OptionError, shorten, shorten_path

__all__ = ["add_structured_options", "structured_option"]

_FLAGS = {"json_schema": "--json-schema", "regex": "--regex", "choice": "--choice", "grammar": "--grammar"}


def add_structured_options(parser: ArgumentParser) -> None:
    group = parser.add_argument_group("structured output", "The answer is made to match; give one of these.")
    group.add_argument("--json-schema", metavar="FILE|JSON", help="JSON that this schema describes")
    group.add_argument("--regex", metavar="EXPRESSION", help="a text the whole of which matches (Rust's syntax)")
    group.add_argument("--choice", action="append", metavar="TEXT", help="one of these texts; repeatable")
    group.add_argument("--grammar", metavar="FILE|TEXT", help="a text of this grammar (Lark's syntax, rule start)")


def structured_option(args: Namespace) -> dict[str, Any] | None:
    """What was asked for, as `SamplingParams` takes it; None for nothing. Raises OptionError."""
    given = {name: value for name in _FLAGS if (value := getattr(args, name, None)) is not None}
    if not given:
        return None
    if len(given) > 1:
        raise OptionError(f"{' and '.join(_FLAGS[name] for name in given)}: an answer can match one of them; give one")
    ((name, value),) = given.items()
    if name in ("json_schema", "grammar") and not _is_inline(name, value):
        value = _read(name, value)
    return {name: value}


def _is_inline(name: str, value: str) -> bool:
    """A schema is an object or a boolean, a grammar has a rule; what else is given is a file."""
    if name == "grammar":
        return ":" in value and not Path(value).expanduser().is_file()
    return value.lstrip().startswith("{") or value.strip() in ("true", "false")


def _read(name: str, path: str) -> str:
    try:
        return Path(path).expanduser().read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not a text file"
        kind = "a schema as JSON" if name == "json_schema" else "a grammar with a rule start"
        raise OptionError(
            f"{_FLAGS[name]} {shorten_path(path)}: {shorten(reason)}; a file or {kind} is needed"
        ) from None
