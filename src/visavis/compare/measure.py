"""One loaded backend, put through its paces: warm-up, every prompt alone, all prompts at once; then, untimed, the
log-probabilities that a difference is judged by."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import median, quantiles

from visavis.backends.base import ModelInterface
from visavis.compare.agreement import TOP_K
from visavis.compare.cases import Case, is_right
from visavis.compare.result import Answer, BackendResult, BatchResult
from visavis.completion import Completion, TokenLogprobs
from visavis.sampling import SamplingParams

__all__ = ["Say", "logprobs_at", "measure", "record_logprobs"]

WARM_UP_TOKENS = 8

Say = Callable[[str, str, int, int], None]
"""Called as (backend, what it does, done, total)."""


def measure(
    model: ModelInterface,
    cases: Sequence[Case],
    sampling: SamplingParams,
    result: BackendResult,
    *,
    rounds: int,
    batch: bool,
    record: bool,
    say: Say,
) -> dict[str, Completion]:
    """Fills `result` with every answer and the figures made of them. Raises BackendError when the engine dies.

    With `record`, returns the answers of untimed requests that came with log-probabilities, as far as those repeat the
    timed ones; see `record_logprobs` for the others.
    """
    result.warm_up_s = _warm_up(model, cases, sampling, say)
    for number in range(1, rounds + 1):
        for done, case in enumerate(cases):
            what = "one at a time" if rounds == 1 else f"one at a time, round {number} of {rounds}"
            say(model.name, what, done, len(cases))
            (completion,) = model.complete([case.prompt], sampling)
            result.answers.append(_answer(model, case, number, completion))
    recorded: dict[str, Completion] = {}
    if batch and len(cases) > 1:
        say(model.name, f"all {len(cases)} at once", 0, 1)
        record = record and model.capabilities().logprobs
        for case, completion in zip(cases, _untimed_batch(model, cases, sampling, record), strict=True):
            if record and completion.token_ids == result.first_round()[case.id].token_ids:
                recorded[case.id] = completion
        result.batch = _all_at_once(model, cases, sampling, result)
    _summarise(result)
    return recorded


def record_logprobs(
    model: ModelInterface,
    cases: Sequence[Case],
    sampling: SamplingParams,
    recorded: dict[str, Completion],
    say: Say,
) -> dict[str, Completion]:
    """`recorded`, and every prompt missing there once more, alone and untimed, with log-probabilities; {} where the
    engine gives none."""
    if not model.capabilities().logprobs:
        return {}
    found = dict(recorded)
    missing = [case for case in cases if case.id not in recorded]
    for done, case in enumerate(missing):
        say(model.name, "log-probabilities (untimed)", done, len(missing))
        (found[case.id],) = model.complete([case.prompt], replace(sampling, logprobs=TOP_K))
    return found


def logprobs_at(
    model: ModelInterface, case: Case, sampling: SamplingParams, answer: Answer, position: int
) -> TokenLogprobs | None:
    """A backend's log-probabilities where its answer parts from another, by answering again up to there.

    None when the engine gives none, when its answer had ended, or when it does not repeat itself.
    """
    if not model.capabilities().logprobs or position >= len(answer.token_ids):
        return None
    shorter = replace(
        sampling, logprobs=TOP_K, max_tokens=position + 1, min_tokens=min(sampling.min_tokens or 0, position + 1)
    )
    (completion,) = model.complete([case.prompt], shorter)
    return repeated_logprobs(completion, answer, position)


def repeated_logprobs(completion: Completion | None, answer: Answer, position: int) -> TokenLogprobs | None:
    """The log-probabilities at `position` of a repeated answer, if it repeats the timed one up to and with it."""
    if completion is None or completion.logprobs is None or len(completion.logprobs) <= position:
        return None
    if completion.token_ids[: position + 1] != answer.token_ids[: position + 1]:
        return None
    return completion.logprobs[position]


def _warm_up(model: ModelInterface, cases: Sequence[Case], sampling: SamplingParams, say: Say) -> float:
    """A real request, with an image when any prompt has one. Seconds."""
    say(model.name, "warm-up", 0, 1)
    case = next((c for c in cases if c.prompt.media), cases[0])
    tokens = min(sampling.max_tokens or WARM_UP_TOKENS, WARM_UP_TOKENS)
    short = replace(sampling, max_tokens=tokens, min_tokens=min(sampling.min_tokens or 0, tokens))
    start = model.clock()
    model.complete([case.prompt], short)
    return model.clock() - start


def _answer(model: ModelInterface, case: Case, number: int, completion: Completion) -> Answer:
    grounded = completion.media_sizes and completion.box_format != "none" and completion.error is None
    return Answer(
        prompt=case.id,
        round=number,
        text=completion.text,
        token_ids=completion.token_ids,
        finish_reason=completion.finish_reason,
        prompt_tokens=completion.prompt_tokens,
        queue_s=completion.timings.queue_s,
        token_times_s=completion.timings.token_times,
        total_s=completion.timings.total_s,
        sampling=completion.sampling.as_dict(),
        boxes=completion.boxes().as_dict() if grounded else None,
        right=None if completion.error is not None else is_right(case.expected, completion),
        error=completion.error,
        tokens=_spelled(model, completion) if number == 1 else (),
    )


def _spelled(model: ModelInterface, completion: Completion) -> tuple[str, ...]:
    family = model.family
    return () if family is None else tuple(family.tokenizer.decode([i]) for i in completion.token_ids)


def _untimed_batch(
    model: ModelInterface, cases: Sequence[Case], sampling: SamplingParams, record: bool
) -> list[Completion]:
    """The first batch of all prompts is not timed: it is the warm-up of its shapes. With `record` it runs to the end
    and brings the log-probabilities, which so cost no pass of their own."""
    prompts = [case.prompt for case in cases]
    if record:
        return model.complete(prompts, replace(sampling, logprobs=TOP_K))
    tokens = min(sampling.max_tokens or 2, 2)
    short = replace(sampling, max_tokens=tokens, min_tokens=min(sampling.min_tokens or 0, tokens))
    return model.complete(prompts, short)


def _all_at_once(
    model: ModelInterface, cases: Sequence[Case], sampling: SamplingParams, result: BackendResult
) -> BatchResult:
    """Every prompt submitted together."""
    prompts = [case.prompt for case in cases]
    start = model.clock()
    completions = model.complete(prompts, sampling)
    seen_here = model.clock() - start
    good = [c for c in completions if c.error is None]
    seconds = max((c.timings.token_times[-1] for c in good if c.timings.token_times), default=seen_here)
    generated = sum(c.completion_tokens for c in good)
    gaps = [c.timings.per_token_s for c in good if c.timings.per_token_s is not None]
    alone = result.first_round()
    same = sum(
        completion.error is None and alone[case.id].token_ids == completion.token_ids
        for case, completion in zip(cases, completions, strict=True)
    )
    return BatchResult(
        prompts=len(cases),
        tokens=generated,
        seconds=seconds,
        tokens_per_s=generated / seconds if seconds > 0 else 0.0,
        same_as_alone=same,
        failed=len(completions) - len(good),
        per_token_s=median(gaps) if gaps else None,
    )


def _summarise(result: BackendResult) -> None:
    good = [a for a in result.answers if a.error is None]
    firsts = [a.first_token_s for a in good if a.first_token_s is not None]
    gaps = [a.per_token_s for a in good if a.per_token_s is not None]
    result.first_token_s = median(firsts) if firsts else None
    result.per_token_s = median(gaps) if gaps else None
    result.first_token_spread_s, result.per_token_spread_s = _quartiles(firsts), _quartiles(gaps)
    whole = [a.token_times_s[-1] for a in good if a.token_times_s]
    result.answer_s, result.answer_spread_s = median(whole) if whole else None, _quartiles(whole)
    busy = sum(a.token_times_s[-1] for a in good if a.token_times_s)
    tokens = sum(len(a.token_times_s) for a in good)
    result.tokens_per_s = tokens / busy if busy > 0 else None
    judged = [a.right for a in result.answers if a.round == 1 and a.right is not None]
    result.right = sum(judged) if judged else None
    ids: dict[str, set[tuple[int, ...]]] = {}
    for answer in good:
        ids.setdefault(answer.prompt, set()).add(answer.token_ids)
    result.steady = all(len(different) == 1 for different in ids.values())


def _quartiles(values: Sequence[float]) -> tuple[float, float] | None:
    """First and third quartile; None for fewer than two values."""
    if len(values) < 2:
        return None
    low, _, high = quantiles(values, n=4, method="inclusive")
    return low, high
