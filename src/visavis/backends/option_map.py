"""Shared by the backends that pass options on to an engine: names checked, values given as text read."""

from __future__ import annotations

import difflib
import json
from collections.abc import Collection, Mapping
from typing import Any

from visavis.errors import OptionError, shorten

__all__ = ["check_extra", "refuse", "refuse_sampling"]

_QUOTES = str.maketrans({"“": '"', "”": '"', "„": '"', "‘": '"', "’": '"'})


def check_extra(
    engine: str, extra: Mapping[str, Any], known: Collection[str], ours: Mapping[str, str]
) -> dict[str, Any]:
    """Engine-specific options, each known to the engine and none of them decided elsewhere.

    `ours[name]` says what decides an option that must not be given here. JSON in text is read, curly quotes too.
    Raises OptionError naming the option and the nearest known one.
    """
    checked: dict[str, Any] = {}
    for given, value in extra.items():
        name = given.replace("-", "_")
        if name in ours:
            raise OptionError(f"{engine}.{name} is not set here: {ours[name]}")
        if name not in known:
            near = difflib.get_close_matches(name, sorted({*known} - {*ours}), n=1)
            hint = f"; did you mean {engine}.{near[0]}?" if near else ""
            raise OptionError(f"{engine} has no option {shorten(given)}{hint}")
        checked[name] = _read(engine, name, value)
    return checked


def _read(engine: str, name: str, value: Any) -> Any:
    if not isinstance(value, str):
        return value
    text = value.strip().translate(_QUOTES)
    if text[:1] in ("{", "["):
        try:
            return json.loads(text)
        except ValueError as error:
            raise OptionError(f"{engine}.{name} {shorten(value)} is not JSON: {error}") from None
    if "=" in text and not text.startswith("="):  # images=2, as people write limits
        pairs = dict(pair.partition("=")[::2] for pair in text.split(","))
        if all(v.strip().isdigit() for v in pairs.values()):
            return {k.strip(): int(v) for k, v in pairs.items()}
    return value


def refuse(engine: str, name: str, value: Any, why: str) -> None:
    """Raises OptionError unless `value` is the one that asks for nothing (None, False or "")."""
    if value not in (None, False, ""):
        raise OptionError(f"{engine} cannot honour {name} {shorten(value)}: {why}")


def refuse_sampling(engine: str, name: str, value: Any, why: str) -> OptionError:
    """The error for a sampling value that `engine` cannot honour as specified."""
    return OptionError(f"{engine} cannot honour {name} {shorten(value)}: {why}")
