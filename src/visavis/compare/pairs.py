"""Two backends' answers side by side: how many are the same, and what each first difference is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Literal

from visavis.compare.agreement import Judgement, first_difference, judge, logprob_of
from visavis.compare.result import Answer, BackendResult, Difference, PairResult, Side
from visavis.completion import TokenLogprobs

if TYPE_CHECKING:
    from visavis.families import TextTokenizer

__all__ = ["LogprobsAt", "pair_up"]

LogprobsAt = Callable[[str, int], TokenLogprobs | None]
"""A backend's log-probabilities for (prompt id, position of the answer); None when there are none."""

SHOWN_BEFORE = 80  # characters of common text that a difference shows


def pair_up(
    first: BackendResult,
    second: BackendResult,
    prompts: Iterable[str],
    logprobs_of_first: LogprobsAt,
    logprobs_of_second: LogprobsAt,
    tokenizer: TextTokenizer,
    *,
    sampled: bool = False,
) -> PairResult:
    """Agreement over the first round. `sampled`: tokens were drawn at random, so differences say nothing."""
    same, total = 0, 0
    differences = []
    answers_of_first, answers_of_second = first.first_round(), second.first_round()
    for prompt in prompts:
        total += 1
        one, two = answers_of_first.get(prompt), answers_of_second.get(prompt)
        failure = _failure(first, one) or _failure(second, two)
        if failure or one is None or two is None:
            differences.append(Difference(prompt, "failed", failure or "no answer"))
            continue
        position = first_difference(one.token_ids, two.token_ids)
        if position is None:
            same += 1
            continue
        differences.append(
            _difference(
                (first, one, logprobs_of_first), (second, two, logprobs_of_second), position, tokenizer, sampled
            )
        )
    return PairResult(first.backend, second.backend, same, total, tuple(differences))


def _failure(result: BackendResult, answer: Answer | None) -> str | None:
    if answer is None:
        return f"{result.backend} gave no answer"
    return None if answer.error is None else f"{result.backend} failed: {answer.error}"


_View = tuple[BackendResult, Answer, LogprobsAt]


def _difference(first: _View, second: _View, position: int, tokenizer: TextTokenizer, sampled: bool) -> Difference:
    (a, one, logprobs_of_first), (b, two, logprobs_of_second) = first, second
    before = tokenizer.decode(one.token_ids[:position])
    before = before if len(before) <= SHOWN_BEFORE else "…" + before[-SHOWN_BEFORE:]
    ended = [r.backend for r, answer in ((a, one), (b, two)) if position >= len(answer.token_ids)]
    seen: tuple[TokenLogprobs | None, TokenLogprobs | None] = (None, None)
    if sampled:
        judgement = Judgement("unknown", "tokens were drawn at random (temperature above 0)")
    elif ended:
        other = two if ended == [a.backend] else one
        judgement = Judgement(
            "length",
            f"{ended[0]} ended after {position} tokens ({(one if other is two else two).finish_reason}), "
            f"the other went on to {len(other.token_ids)} ({other.finish_reason})",
        )
    else:
        seen = (logprobs_of_first(one.prompt, position), logprobs_of_second(one.prompt, position))
        reference: Literal["first", "second"] = "second" if b.backend == "hf" else "first"
        judgement = judge(*seen, float32=a.dtype == b.dtype == "float32", reference=reference)
    return Difference(
        prompt=one.prompt,
        kind=judgement.kind,
        why=_with_names(judgement.why, a.backend, b.backend),
        position=position,
        before=before,
        first=_side(one, two, position, seen[0], tokenizer),
        second=_side(two, one, position, seen[1], tokenizer),
        margin=judgement.margin,
    )


def _side(answer: Answer, other: Answer, position: int, seen: TokenLogprobs | None, tokenizer: TextTokenizer) -> Side:
    if position >= len(answer.token_ids):
        return Side(None, None)
    token_id = answer.token_ids[position]
    other_id = other.token_ids[position] if position < len(other.token_ids) else None
    return Side(
        token_id,
        tokenizer.decode([token_id]),
        logprob=None if seen is None else seen.logprob,
        logprob_of_other=None if seen is None or other_id is None else logprob_of(seen, other_id),
    )


def _with_names(why: str, first: str, second: str) -> str:
    names: Mapping[str, str] = {"the first engine": first, "the second engine": second}
    for anonymous, name in names.items():
        why = why.replace(anonymous, name)
    return why
