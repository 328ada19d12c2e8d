"""The result in a sentence."""

from __future__ import annotations

from collections.abc import Mapping

from visavis.compare.result import BackendResult, Comparison, PairResult
from visavis.compare.times import from_nothing_s, overlap, start_s
from visavis.compare.verdict_compact import ABOUT_EQUAL, MANY, compact
from visavis.compare.words import differs, explanations, of, prompts, spelled_as
from visavis.report.units import duration

__all__ = ["sentences", "speed_ratio", "verdict"]

MUCH = 1.5
"""From this factor on a whole run, start included, is worth a sentence whoever answers faster."""


def verdict(comparison: Comparison) -> str:
    """One sentence a pair: the same tokens or not, why, and who was faster, from figures the table shows."""
    return " ".join(sentences(comparison))


def sentences(comparison: Comparison) -> list[str]:
    """The verdict's sentences."""
    by_name = {b.backend: b for b in comparison.backends}
    broken = [f"{b.backend} did not run ({b.error})" for b in comparison.backends if b.error is not None]
    ran = [b for b in comparison.backends if b.error is None]
    if len(ran) >= MANY and comparison.pairs:
        return [*compact(ran, comparison.pairs), *(f"{text}." for text in broken)]
    if not comparison.pairs:
        spoken = [f"{b.backend} answered {prompts(len(comparison.prompts))}{_rate(b)}" for b in ran]
        return ["; ".join([*spoken, *broken]) + "."]
    said = []
    for pair in comparison.pairs:
        first, second = by_name[pair.first], by_name[pair.second]
        said.append(f"{_agreement(pair, spelled_as(first, second))}{_speed(first, second)}.")
        if first.error is None and second.error is None and (start := _start(first, second)):
            said.append(start)
    return [*said, *(f"{text}." for text in broken)]


def speed_ratio(first: BackendResult, second: BackendResult) -> tuple[float, str] | None:
    """How many times faster the first was: per token when both know it, else in tokens/s."""
    if first.per_token_s and second.per_token_s:
        return second.per_token_s / first.per_token_s, "per token"
    if first.tokens_per_s and second.tokens_per_s:
        return first.tokens_per_s / second.tokens_per_s, "in tokens/s"
    return None


def _agreement(pair: PairResult, spelled: Mapping[str, str]) -> str:
    names = f"{pair.first} and {pair.second}"
    if pair.without_ids:
        every = prompts(pair.total)
        on = (
            f"{'all ' if pair.total > 1 else ''}{every}"
            if pair.same_text == pair.total
            else f"{pair.same_text} of {every}"
        )
        said = f"{names} gave the same text on {on} ({pair.without_ids} gives no token ids to compare)"
    elif pair.same == pair.total:
        said = f"{names} gave the same tokens on {'all ' if pair.total > 1 else ''}{prompts(pair.total)}"
        if pair.same_text < pair.total:
            said += f", another text on {pair.total - pair.same_text}" if pair.total > 1 else ", but not the same text"
    elif pair.total == 1:
        kinds = "" if pair.differences[0].kind == "settings" else f" ({differs(pair)})"
        said = f"{names} gave different answers{kinds}"
    else:
        said = f"{names} gave the same tokens on {pair.same} of {prompts(pair.total)} ({differs(pair)})"
    because = explanations(pair, spelled)
    return f"{said}: {because}" if because else said


def _speed(first: BackendResult, second: BackendResult) -> str:
    ratio = speed_ratio(first, second)
    if ratio is None:
        return ""
    if ratio[1] == "per token" and overlap(first.per_token_spread_s, second.per_token_spread_s):
        ratio = (1.0, ratio[1])  # a difference inside the noise is none
    return "; " + _faster(first, second, *ratio) + _later(first, second, ratio[0])


def _faster(first: BackendResult, second: BackendResult, times: float, what: str) -> str:
    said = _who(first.backend, second.backend, times, f"faster {what}")
    if first.batch is None or second.batch is None or not second.batch.tokens_per_s or not first.batch.tokens_per_s:
        return said
    at_once = first.batch.tokens_per_s / second.batch.tokens_per_s
    together = f"with all {first.batch.prompts} at once"
    if min(times, at_once) > ABOUT_EQUAL or max(times, at_once) < 1 / ABOUT_EQUAL:  # the same one both times
        return f"{said} and {max(at_once, 1 / at_once):.1f}× {together}"
    return f"{said}, {_who(first.backend, second.backend, at_once, f'faster {together}')}"


def _start(first: BackendResult, second: BackendResult) -> str:
    """What people see who time a script from its first line to its last, where it is mostly an engine's start."""
    if not first.answer_s or not second.answer_s or first.load_s is None or second.load_s is None:
        return ""
    slow, fast = sorted((first, second), key=from_nothing_s, reverse=True)
    assert slow.answer_s is not None  # as seen above
    assert fast.answer_s is not None
    whole, extra, answer = from_nothing_s(slow), start_s(slow) - start_s(fast), slow.answer_s - fast.answer_s
    as_fast = answer <= (ABOUT_EQUAL - 1) * fast.answer_s
    if whole < (ABOUT_EQUAL if as_fast else MUCH) * from_nothing_s(fast) or extra < ABOUT_EQUAL * answer:
        return ""
    rest = "its answer does not" if as_fast else f"its answer {duration(answer)} longer"
    return (
        f"From nothing to one answer {slow.backend} took {duration(whole)} against {duration(from_nothing_s(fast))}: "
        f"its start takes {duration(extra)} longer, {rest}."
    )


def _later(first: BackendResult, second: BackendResult, times: float) -> str:
    """What people wait longer for with the one that is faster per token, or with either of two that are equally fast;
    differences inside the noise are left out."""
    said = []
    for name, one, two, noise in (
        (
            "first token came",
            first.first_token_s,
            second.first_token_s,
            overlap(*_spreads(first, second, "first_token")),
        ),
        ("whole answer took", first.answer_s, second.answer_s, overlap(*_spreads(first, second, "answer"))),
    ):
        if not one or not two or noise:
            continue
        slow, ratio = (first, one / two) if one > two else (second, two / one)
        ahead = first if times >= ABOUT_EQUAL else second if times <= 1 / ABOUT_EQUAL else slow
        if slow is ahead and ratio > ABOUT_EQUAL:
            how = "later" if name.endswith("came") else "longer"
            shown = f"{duration(max(one, two))} against {duration(min(one, two))}"
            said.append(f"{of(slow.backend)} {name} {ratio:.1f}× {how} ({shown})")
    return f", but {' and '.join(said)}" if said else ""


def _spreads(
    first: BackendResult, second: BackendResult, what: str
) -> tuple[tuple[float, float] | None, tuple[float, float] | None]:
    return getattr(first, f"{what}_spread_s"), getattr(second, f"{what}_spread_s")


def _who(first: str, second: str, times: float, what: str) -> str:
    """`times`: how many times faster the first was."""
    if 1 / ABOUT_EQUAL < times < ABOUT_EQUAL:
        return f"they were equally fast {what.removeprefix('faster ')} (within 5 % or the noise)"
    return f"{first if times > 1 else second} was {max(times, 1 / times):.1f}× {what}"


def _rate(result: BackendResult) -> str:
    return "" if result.tokens_per_s is None else f" at {result.tokens_per_s:.0f} tokens/s, one at a time"
