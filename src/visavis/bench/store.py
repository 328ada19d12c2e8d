"""Result files: written whole or not at all."""

from __future__ import annotations

import json
import os
from pathlib import Path

from visavis.bench.result import Bench, from_json, to_json
from visavis.errors import InputError, OptionError, shorten

__all__ = ["load", "save"]


def save(bench: Bench, path: Path) -> None:
    """Replaces the file in one step, so that an interruption leaves the last whole state. Raises OptionError."""
    partial = path.with_name(f"{path.name}.part")
    try:
        with partial.open("w", encoding="utf-8") as file:
            json.dump(to_json(bench), file, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        raise OptionError(f"{shorten(str(path))} cannot be written: {error.strerror or error}") from None


def load(path: Path) -> Bench:
    """Raises OptionError for a file that cannot be read, InputError for one that is no bench result."""
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        raise OptionError(f"{shorten(str(path))}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(f"{shorten(str(path))} cannot be read: {error}") from None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise InputError(f"{path.name} is not valid JSON, so no bench result") from None
    return from_json(value, path.name)
