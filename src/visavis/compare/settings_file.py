"""A settings file: what two (or more) people set, one table each, in TOML or JSON.

[transformers]                 # a name of one's own
backend = "hf"                 # not needed where the name is a backend's
max_new_tokens = 128
skip_special_tokens = false

[vllm]
repetition_penalty = 1.05
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from visavis.errors import OptionError, shorten

__all__ = ["find_settings_file", "read_settings_file"]


def read_settings_file(path: str) -> dict[str, dict[str, Any]]:
    """Settings by name, in the file's order. Raises OptionError naming file and place."""
    file = Path(path).expanduser()
    try:
        text = file.read_text("utf-8-sig")
    except FileNotFoundError:
        raise OptionError(f"--settings {shorten(path)}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(f"--settings {shorten(path)} cannot be read: {error}") from None
    try:
        found = json.loads(text) if file.suffix.lower() == ".json" else tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        kind = "JSON" if file.suffix.lower() == ".json" else "TOML"
        raise OptionError(f"{file.name} is not valid {kind}: {error}") from None
    if not isinstance(found, Mapping) or not found:
        raise OptionError(f"{file.name}: one table for each set-up is needed, e.g. [hf] and [vllm]")
    for name, table in found.items():
        if not isinstance(table, Mapping):
            raise OptionError(f"{file.name}: {shorten(name)} stands in no table; write it below a [name]")
        if any(letter in name for letter in ".,=") or not name.strip():
            raise OptionError(f"{file.name}: the name {shorten(name)} may hold no dot, comma or equals sign")
    return {name: dict(table) for name, table in found.items()}


def find_settings_file(folder: Path) -> str | None:
    """`settings.toml` or `settings.json` of an example's folder."""
    for name in ("settings.toml", "settings.json"):
        if (folder / name).is_file():
            return str(folder / name)
    return None
