"""In which settings two requests to one prompt differ: sampling by field and origin, prompt, pixels, engine options."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from visavis.compare.cases import Case
from visavis.compare.pair_result import CauseKind, SettingDifference
from visavis.compare.result import Answer, BackendResult
from visavis.compare.setups import ENGINE, Setup
from visavis.completion import TokenLogprobs
from visavis.prompt import Prompt

__all__ = ["PRACTICALLY_GREEDY", "View", "draws", "settings_apart", "shown"]

PRACTICALLY_GREEDY = 0.01
"""With top_p up to this the best token alone is kept wherever it has that share of probability."""
_NOT_SETTINGS = frozenset({"n", "logprobs", "prompt_logprobs", "eos_token_ids"})
_LENGTH = frozenset({"max_tokens", "min_tokens", "stop", "stop_token_ids", "ignore_eos"})
_PRECISION = frozenset({"dtype", "quantization", "device"})


@dataclass(frozen=True, slots=True)
class View:
    """One backend of a pair: how it was asked, what it answered, and its log-probabilities at (prompt, position)."""

    setup: Setup
    result: BackendResult
    cases: dict[str, Case]  # with the prompts it got
    logprobs: Callable[[str, int], TokenLogprobs | None]

    @property
    def name(self) -> str:
        return self.result.backend

    def answer(self, prompt: str) -> Answer | None:
        return self.result.first_round().get(prompt)


def draws(sampling: Mapping[str, Any]) -> bool:
    """Whether tokens are drawn at random: a temperature above 0 and more than the best token to draw from.

    `sampling` as in `Answer.sampling`."""
    settings = {name: entry["value"] for name, entry in sampling["settings"].items()}
    return bool(settings["temperature"] > 0 and settings["top_k"] != 1 and settings["top_p"] > PRACTICALLY_GREEDY)


def settings_apart(first: View, second: View, prompt: str) -> list[SettingDifference]:
    """What a difference of two answers may come from, before anything is judged. Empty: both were asked the same."""
    one, two = first.answer(prompt), second.answer(prompt)
    found: list[SettingDifference] = []
    if one is not None and two is not None:
        found += _sampling(prompt, one, two)
    mine, theirs = first.cases[prompt].prompt, second.cases[prompt].prompt
    if first.setup.system != second.setup.system and mine.canonical_ids != theirs.canonical_ids:
        found.append(
            SettingDifference(
                prompt,
                "system",
                "prompt ids",
                first.setup.system,
                second.setup.system,
                f"{len(mine.canonical_ids)} ids",
                f"{len(theirs.canonical_ids)} ids",
            )
        )
    if [m.content_hash for m in mine.media] != [m.content_hash for m in theirs.media]:
        found.append(
            SettingDifference(prompt, "pixels", "pixels", _sizes(mine), _sizes(theirs), _hashes(mine), _hashes(theirs))
        )
    return found + _engine(prompt, first, second)


def _sampling(prompt: str, one: Answer, two: Answer) -> list[SettingDifference]:
    ours, theirs = one.sampling["settings"], two.sampling["settings"]
    both_greedy = ours["temperature"]["value"] == theirs["temperature"]["value"] == 0
    found = []
    for name, entry in ours.items():
        other = theirs[name]
        if name in _NOT_SETTINGS or entry["value"] == other["value"] or (name == "seed" and both_greedy):
            continue
        kind: CauseKind = "special tokens" if name == "special_tokens" else "length" if name in _LENGTH else "sampling"
        found.append(
            SettingDifference(prompt, name, kind, entry["value"], other["value"], entry["origin"], other["origin"])
        )
    return found


def _engine(prompt: str, first: View, second: View) -> list[SettingDifference]:
    one, two = dict(first.setup.engine), dict(second.setup.engine)
    # What was really used counts: "auto" is another dtype on another engine.
    told = (("dtype", one, first), ("dtype", two, second))
    origins: dict[str, list[str]] = {}
    for name, options, view in told:
        origins.setdefault(name, []).append("set" if options.get(name) else "the engine's choice")
        options[name] = view.result.dtype
    found = []
    for name in sorted({*one, *two}):
        if one.get(name) == two.get(name):
            continue
        if name not in ENGINE and name != "engine_seed" and first.setup.backend != second.setup.backend:
            continue  # an option of one engine alone has no equal on another
        kind: CauseKind = "precision" if name in _PRECISION else "engine option"
        before, after = origins.get(name, ["set" if name in one else "", "set" if name in two else ""])
        found.append(SettingDifference(prompt, name, kind, one.get(name), two.get(name), before, after))
    return found


def _sizes(prompt: Prompt) -> list[str]:
    """Width × height of each image as the engine gets it."""
    return [f"{m.size[1]}×{m.size[0]}" for m in prompt.media]


def _hashes(prompt: Prompt) -> str:
    return ", ".join(f"{m.num_tokens} tokens, hash {m.content_hash[:8]}" for m in prompt.media)


def shown(value: Any) -> str:
    """A setting's value for people."""
    if value is None or value == () or value == []:
        return "none"
    if isinstance(value, list | tuple):
        return ", ".join(str(v) for v in value)
    if isinstance(value, float):
        return f"{value:g}"
    return str(value)
