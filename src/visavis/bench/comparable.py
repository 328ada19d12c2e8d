"""Whether two rows may be set side by side, and if not, why not in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from visavis.bench.result import Bench
from visavis.bench.rows import Row

__all__ = ["between_engines", "between_files", "differences"]

_CACHE_SETTINGS = ("enable_prefix_caching", "disable_radix_cache", "prefix_caching")
LONGER = 1.02
"""Answers of natural length whose mean differs by more than this factor are not the same work."""


def between_engines(bench: Bench, rows: list[Row]) -> list[str]:
    """Notes on one file: each engine against the first of its cell; equal reasons are said once."""
    said: dict[str, list[str]] = {}
    for cell in bench.cells:
        ours = [row for row in rows if row.cell == cell and not row.void]
        for other in ours[1:]:
            reasons = differences(ours[0], bench, other, bench)
            if reasons:
                names = f"{ours[0].engine.engine} and {other.engine.engine}"
                said.setdefault(f"{names}: not comparable: {'; '.join(reasons)}", []).append(cell.id)
    everywhere = len(bench.cells)
    return [text if len(cells) == everywhere else f"{text} ({', '.join(cells)})" for text, cells in said.items()]


def between_files(old: Bench, new: Bench) -> list[str]:
    """What differs between two runs as a whole."""
    reasons = []
    if old.model != new.model:
        reasons.append(f"model {old.model} against {new.model}")
    for name, words in (("cpu", "processor"), ("cores", "cores"), ("gpus", "GPUs")):
        a, b = old.machine.get(name), new.machine.get(name)
        if _listed(a) != _listed(b):
            reasons.append(f"{words} {_listed(a)} against {_listed(b)}")
    return reasons


def differences(a: Row, a_bench: Bench, b: Row, b_bench: Bench) -> list[str]:
    """Reasons, each with both values; [] where the two did the same work under the same conditions."""
    found = []

    def differ(what: str, one: Any, other: Any) -> None:
        if one != other:
            found.append(f"{what} {_shown(one)} against {_shown(other)}")

    differ("dtype", a.engine.dtype, b.engine.dtype)
    differ("device", _kind(a.engine.device), _kind(b.engine.device))
    differ("marks", tuple(sorted(a.engine.marks)), tuple(sorted(b.engine.marks)))
    differ("lengths", a_bench.config.get("lengths"), b_bench.config.get("lengths"))
    differ("prompt tokens", a.prompt_tokens, b.prompt_tokens)
    differ("image tokens", a.image_tokens, b.image_tokens)
    if _tokens(a) and _tokens(b) and max(_tokens(a), _tokens(b)) / min(_tokens(a), _tokens(b)) > LONGER:
        found.append(f"answers of {_tokens(a):.4g} tokens on average against {_tokens(b):.4g}")
    differ("sampling", _sampling(a_bench.config), _sampling(b_bench.config))
    differ("cache state", _cache(a, a_bench), _cache(b, b_bench))
    if "threads" in a.engine.settings and "threads" in b.engine.settings:
        differ("threads", a.engine.settings["threads"], b.engine.settings["threads"])
    return found


def _tokens(row: Row) -> float:
    """Mean length of the answers."""
    rate, requests = row.figures.get("tokens_per_s"), row.figures.get("requests_per_s")
    return rate.median / requests.median if rate and requests and requests.median else 0.0


def _cache(row: Row, bench: Bench) -> str:
    """Prompts never seen before make every cache cold alike; otherwise the engine's own setting counts."""
    repeated = row.cell.source != "made" or bool(bench.config.get("repeat_prompts"))
    if not repeated:
        return "unique prompts"
    settings = row.engine.settings
    known = [f"{name}={settings[name]}" for name in _CACHE_SETTINGS if name in settings]
    return f"repeated prompts, {', '.join(known) or 'no prefix cache known'}"


def _sampling(config: Mapping[str, Any]) -> Any:
    asked = config.get("sampling") or {}
    return {k: v for k, v in asked.items() if k != "seed"}


def _kind(device: str) -> str:
    return device.split(":")[0]


def _listed(value: Any) -> str:
    return ", ".join(map(str, value)) or "none" if isinstance(value, list | tuple) else str(value)


def _shown(value: Any) -> str:
    if isinstance(value, tuple) and len(value) == 2 and all(isinstance(v, int) for v in value):
        return str(value[0]) if value[0] == value[1] else f"{value[0]}–{value[1]}"
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "none"
    if isinstance(value, dict):
        return ", ".join(f"{k} {v}" for k, v in sorted(value.items())) or "greedy"
    return "unknown" if value is None or value == "" else str(value)
