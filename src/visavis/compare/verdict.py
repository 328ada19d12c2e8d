"""The result in a sentence."""

from __future__ import annotations

from visavis.compare.agreement import Kind
from visavis.compare.result import BackendResult, Comparison, PairResult
from visavis.compare.times import overlap
from visavis.compare.words import explanations

__all__ = ["sentences", "speed_ratio", "verdict"]

_KINDS: dict[Kind, tuple[str, str]] = {
    "settings": ("difference that settings explain", "differences that settings explain"),
    "near tie": ("near tie", "near ties"),
    "real": ("real disagreement", "real disagreements"),
    "length": ("answer ended early", "answers ended early"),
    "text": ("text of the same tokens", "texts of the same tokens"),
    "unknown": ("difference that cannot be judged", "differences that cannot be judged"),
    "failed": ("failed answer", "failed answers"),
}
ABOUT_EQUAL = 1.05
"""Times under this factor of each other are called equal."""


def verdict(comparison: Comparison) -> str:
    """One sentence a pair: the same tokens or not, why, and who was faster, from figures the table shows."""
    return " ".join(sentences(comparison))


def sentences(comparison: Comparison) -> list[str]:
    """The verdict's sentences."""
    by_name = {b.backend: b for b in comparison.backends}
    broken = [f"{b.backend} did not run ({b.error})" for b in comparison.backends if b.error is not None]
    if not comparison.pairs:
        alone = [b for b in comparison.backends if b.error is None]
        spoken = [f"{b.backend} answered {_prompts(len(comparison.prompts))}{_rate(b)}" for b in alone]
        return ["; ".join([*spoken, *broken]) + "."]
    said = [f"{_agreement(pair)}{_speed(by_name[pair.first], by_name[pair.second])}." for pair in comparison.pairs]
    return [*said, *(f"{text}." for text in broken)]


def speed_ratio(first: BackendResult, second: BackendResult) -> tuple[float, str] | None:
    """How many times faster the first was: per token when both know it, else in tokens/s."""
    if first.per_token_s and second.per_token_s:
        return second.per_token_s / first.per_token_s, "per token"
    if first.tokens_per_s and second.tokens_per_s:
        return first.tokens_per_s / second.tokens_per_s, "in tokens/s"
    return None


def _agreement(pair: PairResult) -> str:
    names = f"{pair.first} and {pair.second}"
    if pair.same == pair.total:
        said = f"{names} gave the same tokens on {'all ' if pair.total > 1 else ''}{_prompts(pair.total)}"
        if pair.same_text < pair.total:
            said += f", another text on {pair.total - pair.same_text}"
    else:
        kinds = [f"{count} {_KINDS[kind][count > 1]}" for kind in _KINDS if (count := pair.count(kind))]
        said = f"{names} gave the same tokens on {pair.same} of {_prompts(pair.total)} ({', '.join(kinds)})"
    because = explanations(pair)
    return f"{said}: {because}" if because else said


def _speed(first: BackendResult, second: BackendResult) -> str:
    ratio = speed_ratio(first, second)
    if ratio is None:
        return ""
    if ratio[1] == "per token" and overlap(first.per_token_spread_s, second.per_token_spread_s):
        ratio = (1.0, ratio[1])  # a difference inside the noise is none
    said = "; " + _who(first.backend, second.backend, ratio[0], f"faster {ratio[1]}")
    if first.batch is None or second.batch is None or not second.batch.tokens_per_s or not first.batch.tokens_per_s:
        return said
    at_once = first.batch.tokens_per_s / second.batch.tokens_per_s
    together = f"with all {first.batch.prompts} at once"
    if min(ratio[0], at_once) > ABOUT_EQUAL or max(ratio[0], at_once) < 1 / ABOUT_EQUAL:  # the same one both times
        return f"{said} and {max(at_once, 1 / at_once):.1f}× {together}"
    return f"{said}, {_who(first.backend, second.backend, at_once, f'faster {together}')}"


def _who(first: str, second: str, times: float, what: str) -> str:
    """`times`: how many times faster the first was."""
    if 1 / ABOUT_EQUAL < times < ABOUT_EQUAL:
        return f"they were equally fast {what.removeprefix('faster ')} (within 5 % or the noise)"
    return f"{first if times > 1 else second} was {max(times, 1 / times):.1f}× {what}"


def _rate(result: BackendResult) -> str:
    return "" if result.tokens_per_s is None else f" at {result.tokens_per_s:.0f} tokens/s, one at a time"


def _prompts(count: int) -> str:
    return f"{count} prompt{'s' if count != 1 else ''}"
