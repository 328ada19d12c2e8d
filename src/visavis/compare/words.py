"""What re-runs showed, in words."""

from __future__ import annotations

from collections.abc import Mapping

from visavis.compare.agreement import Kind
from visavis.compare.pair_result import CauseKind, PairResult, Rerun
from visavis.compare.result import BackendResult
from visavis.compare.setups import SPELLINGS

__all__ = ["differs", "effect", "explanations", "findings", "joined", "of", "prompts", "the_rest"]

_KINDS: dict[Kind, tuple[str, str]] = {
    "settings": ("difference that settings explain", "differences that settings explain"),
    "near tie": ("near tie", "near ties"),
    "real": ("real disagreement", "real disagreements"),
    "length": ("answer ended early", "answers ended early"),
    "text": ("text of the same tokens", "texts of the same tokens"),
    "unknown": ("difference that cannot be judged", "differences that cannot be judged"),
    "failed": ("failed answer", "failed answers"),
}

NAMES: dict[CauseKind, str] = {
    "prompt ids": "another prompt",
    "pixels": "other pixels",
    "sampling": "sampling",
    "length": "length",
    "special tokens": "special tokens",
    "precision": "precision",
    "engine option": "an engine option",
    "near tie": "a near tie",
    "real disagreement": "a real disagreement",
    "unknown": "what cannot be judged",
    "failed": "a failure",
}


def joined(names: tuple[str, ...] | list[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}" if names else ""


def of(name: str) -> str:
    """`native's`, `transformers'`."""
    return f"{name}'" if name.endswith("s") else f"{name}'s"


def prompts(count: int) -> str:
    """`1 prompt`, `12 prompts`."""
    return f"{count} prompt{'s' if count != 1 else ''}"


def differs(pair: PairResult) -> str:
    """Its differences by kind: `1 near tie, 2 real disagreements`."""
    return ", ".join(f"{count} {_KINDS[kind][count > 1]}" for kind in _KINDS if (count := pair.count(kind)))


def the_rest(pair: PairResult) -> str:
    """Beside some differences: what the other prompts gave. "" where there are none, or no others."""
    others = pair.total - len(pair.differences)
    if not pair.differences or not others:
        return ""
    if others == 1:
        return f"the other prompt is the same for {pair.first} and {pair.second}"
    return f"the other {others} prompts are the same for {pair.first} and {pair.second}"


def effect(rerun: Rerun) -> str:
    """What one re-run brought."""
    if rerun.error is not None:
        return f"refused: {rerun.error}"
    if rerun.drawn:
        return "tokens drawn at random, which proves nothing"
    if rerun.same_tokens and rerun.same_text:
        return "the same answer"
    if not rerun.changed:
        return "changed nothing"
    if rerun.same_tokens:
        return f"the same tokens; the texts are {_characters(rerun.edit_distance)} apart"
    return f"another answer, which parts at token {rerun.position}; {_characters(rerun.edit_distance)} apart"


def spelled_as(*backends: BackendResult) -> dict[str, str]:
    """Settings that somebody gave under another name, with it: `special_tokens (skip_special_tokens)`."""
    given = {SPELLINGS[name]: name for b in backends for name in b.own if name in SPELLINGS}
    return {name: f"{name} ({other})" for name, other in given.items()}


def explanations(pair: PairResult, spelled: Mapping[str, str] | None = None) -> str:
    """What settings explain, in a clause: `repetition_penalty explains the tokens, special_tokens the text`. `spelled`:
    names to say for some."""
    parts: dict[tuple[tuple[str, ...], str, str], int] = {}
    for difference in pair.differences:
        for c in difference.causes:
            if c.how in ("alone", "jointly"):
                parts[c.settings, c.how, c.part] = parts.get((c.settings, c.how, c.part), 0) + 1
    said = []
    total = len(pair.differences)
    for (settings, how, part), count in sorted(parts.items(), key=lambda item: -item[1]):
        verb = ("explain" if how == "jointly" else "explains") + " "
        what = {"tokens": "the tokens", "text": "the text", "some": "a part"}.get(part, "it")
        only = "" if total == 1 else f" ({count} of {total})"
        names = joined([(spelled or {}).get(name, name) for name in settings])
        said.append(f"{names}{' jointly' if how == 'jointly' else ''} {verb}{what}{only}")
    return ", ".join(said)


def findings(pair: PairResult) -> list[str]:
    """Over all prompts: which settings explain what, which changed nothing, what is left."""
    said = []
    total = len(pair.differences)
    if not total:
        return []
    explaining: set[str] = set()
    parts = {(c.settings, c.how): c.part for d in pair.differences for c in d.causes}
    for (kind, how, settings), prompts in pair.causes().items():
        count = f"{len(prompts)} of {total} difference{'s' if total > 1 else ''}" if total > 1 else "the difference"
        explaining |= set(settings)
        what = {"tokens": "the tokens of ", "text": "the text of ", "some": "a part of "}.get(
            parts.get((settings, how), "all"), ""
        )
        if how == "alone":
            said.append(f"{settings[0]} explains {what}{count} ({NAMES[kind]})")
        elif how == "jointly":
            said.append(f"{joined(settings)} jointly explain {what}{count}, neither alone")
        elif how == "not tested":
            said.append(f"not tested: {joined(settings) or NAMES[kind]} on {count}")
        else:
            unexplained = f"unexplained by settings: {count}, " if pair.reruns else f"{count}: "
            said.append(f"{unexplained}{NAMES[kind]}")
    singles = [r for r in pair.reruns if len(r.equalised) == 1 and not r.drawn]
    idle = [
        name
        for name in dict.fromkeys(r.equalised[0] for r in singles)
        if name not in explaining and all(not r.changed for r in singles if r.equalised[0] == name)
    ]
    if idle:
        said.append(f"made equal, {joined(idle)} changed nothing")
    tested = {name for r in pair.reruns for name in r.equalised}
    untested = [name for name in dict.fromkeys(s.name for s in pair.settings) if name not in tested]
    if untested and pair.reruns:
        said.append(f"{joined(untested)} not tested: it needs the engine loaded anew, and the rest explains all")
    return said


def _characters(count: int | None) -> str:
    return "1 character" if count == 1 else f"{count} characters"
