"""The page's tables: answers, settings with origins, environment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from visavis.compare.result import Agreement, Answer, BackendResult, Comparison, PromptRecord
from visavis.compare.settings_apart import shown
from visavis.compare.setups import SPELLINGS

__all__ = ["Cell", "PromptRow", "SettingRow", "answers_of", "environment_of", "settings_of"]

MOST_PROMPTS = 40
_NOT_SHOWN = frozenset({"n", "logprobs", "prompt_logprobs"})


@dataclass(frozen=True, slots=True)
class PromptRow:
    record: PromptRecord
    answers: tuple[tuple[str, Answer | None, str], ...]  # backend, answer, its error
    agreement: tuple[tuple[str, str, Agreement], ...]


@dataclass(frozen=True, slots=True)
class Cell:
    value: str
    origin: str = ""


@dataclass(frozen=True, slots=True)
class SettingRow:
    name: str
    cells: tuple[Cell, ...]

    @property
    def differs(self) -> bool:
        return len({cell.value for cell in self.cells}) > 1

    @property
    def said(self) -> bool:
        """Somebody decided it."""
        return any(cell.origin not in ("", "neutral") for cell in self.cells)


def answers_of(comparison: Comparison) -> list[PromptRow]:
    rows = []
    for record in comparison.prompts[:MOST_PROMPTS]:
        answers = tuple((b.backend, b.first_round().get(record.id), b.error or "") for b in comparison.backends)
        agreement = tuple(
            (pair.first, pair.second, measured)
            for pair in comparison.pairs
            for measured in pair.agreement
            if measured.prompt == record.id
        )
        rows.append(PromptRow(record, answers, agreement))
    return rows


def settings_of(comparison: Comparison) -> list[SettingRow]:
    """What held for the first prompt, by backend: what differs first, then what somebody set, then the rest."""
    ran = [b for b in comparison.backends if b.answers]
    if not ran:
        return []
    asked = [b.answers[0].sampling["settings"] for b in ran]
    rows = [
        SettingRow(name, tuple(Cell(shown(s[name]["value"]), str(s[name]["origin"])) for s in asked))
        for name in asked[0]
        if name not in _NOT_SHOWN
    ]
    rows.append(SettingRow("pixels", tuple(_pixels(comparison, b) for b in ran)))
    rows.append(SettingRow("dtype", tuple(Cell(b.dtype, _origin(b, "dtype")) for b in ran)))
    rows.append(SettingRow("device", tuple(Cell(b.device, _origin(b, "device")) for b in ran)))
    shown_already = {row.name for row in rows}
    other = dict.fromkeys(name for b in ran for name in b.own if SPELLINGS.get(name, name) not in shown_already)
    rows += [SettingRow(name, tuple(_own(b, name) for b in ran)) for name in other]
    return sorted(rows, key=lambda row: (not row.differs, not row.said))


def _pixels(comparison: Comparison, b: BackendResult) -> Cell:
    records = {r.id: r for r in (*comparison.prompts, *b.prompts)}
    media = records[b.answers[0].prompt].media
    sizes = ", ".join(f"{m['size'][1]}×{m['size'][0]}" for m in media) or "no image"
    hashes = ", ".join(f"hash {m['content_hash'][:8]}" for m in media)
    return Cell(sizes, hashes)


def _own(b: BackendResult, name: str) -> Cell:
    if name not in b.own:
        return Cell("–")
    return Cell(shown(b.own[name]), f"set for {b.backend}")


def _origin(b: BackendResult, name: str) -> str:
    return f"set for {b.backend}" if name in b.own else ""


def environment_of(comparison: Comparison) -> list[tuple[str, str]]:
    """Name and value, for people."""
    machine: dict[str, Any] = dict(comparison.machine)
    found = [("visavis", comparison.visavis_version), ("model", comparison.model), ("started", comparison.started)]
    for name in ("cpu", "cores", "system", "python", "load_average"):
        if machine.get(name) is not None:
            found.append((name.replace("_", " "), str(machine[name])))
    if machine.get("memory_bytes"):
        found.append(("memory", f"{machine['memory_bytes'] / 2**30:.0f} GiB"))
    found += [("GPU", gpu) for gpu in machine.get("gpus", ())]
    found += [(name, version) for name, version in machine.get("packages", {}).items() if name != "visavis"]
    found += [(name, value) for name, value in machine.get("environment", {}).items()]
    for b in comparison.backends:
        settings = ", ".join(f"{k} {v}" for k, v in b.settings.items() if v is not None)
        found.append((f"{b.backend} ({b.engine} {b.version})", settings or b.error or "–"))
    found.append(
        ("clocks", "token times are stamped in the engine's process by a monotonic clock, counted from submission")
    )
    return found
