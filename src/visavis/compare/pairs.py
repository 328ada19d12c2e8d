"""Two backends' answers side by side: how far each pair agrees, and what each first difference is."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from visavis.compare.agreement import Judgement, first_difference, judge, logprob_of
from visavis.compare.distance import box_distance, edit_distance, share_before
from visavis.compare.judging import reference_of
from visavis.compare.result import Agreement, Answer, BackendResult, Difference, PairResult, Side
from visavis.compare.settings_apart import View, draws
from visavis.completion import TokenLogprobs

if TYPE_CHECKING:
    from visavis.families import TextTokenizer

__all__ = ["pair_up"]

_Asked = tuple[View, Answer]
SHOWN_BEFORE = 80  # characters of common text that a difference shows


def pair_up(first: View, second: View, prompts: Iterable[str], tokenizer: TextTokenizer) -> PairResult:
    """Agreement over the first round, as both were asked."""
    same, same_text, total = 0, 0, 0
    differences, agreement = [], []
    for prompt in prompts:
        total += 1
        one, two = first.answer(prompt), second.answer(prompt)
        failure = _failure(first.result, one) or _failure(second.result, two)
        if failure or one is None or two is None:
            differences.append(Difference(prompt, "failed", failure or "no answer"))
            continue
        measured = _agreement(one, two)
        agreement.append(measured)
        same += bool(measured.same_tokens)
        same_text += measured.same_text
        if not measured.same_text and (nameless := _without_ids((first, one), (second, two))):
            differences.append(Difference(prompt, "text", f"the texts differ, and {nameless} gives no token ids"))
        elif measured.position is not None:
            differences.append(_difference((first, one), (second, two), measured.position, tokenizer))
        elif not measured.same_text:
            differences.append(Difference(prompt, "text", "the texts differ, the token ids do not"))
    return PairResult(
        first.name,
        second.name,
        same,
        total,
        tuple(differences),
        same_text=same_text,
        agreement=tuple(agreement),
        without_ids=_nameless_of(first, second, prompts),
    )


def _agreement(one: Answer, two: Answer) -> Agreement:
    position = first_difference(one.token_ids, two.token_ids)
    overlap, distance = box_distance(one.boxes, two.boxes)
    nameless = any(answer.text and not answer.token_ids for answer in (one, two))  # its text is all there is
    if nameless:
        position = None
    return Agreement(
        prompt=one.prompt,
        same_tokens=None if nameless else position is None,
        same_text=one.text == two.text,
        position=position,
        share_before=None if nameless else share_before(position, one.token_ids, two.token_ids),
        edit_distance=edit_distance(one.text, two.text),
        box_iou=overlap,
        center_distance=distance,
    )


def _without_ids(*asked: _Asked) -> str:
    """The first that gives text and no ids, as some servers do; "" where there is none."""
    return next((view.name for view, answer in asked if answer.text and not answer.token_ids), "")


def _nameless_of(first: View, second: View, prompts: Iterable[str]) -> str:
    asked = [(view, answer) for p in prompts for view in (first, second) if (answer := view.answer(p)) is not None]
    return _without_ids(*asked)


def _failure(result: BackendResult, answer: Answer | None) -> str | None:
    if answer is None:
        return f"{result.backend} gave no answer"
    return None if answer.error is None else f"{result.backend} failed: {answer.error}"


def _difference(first: _Asked, second: _Asked, position: int, tokenizer: TextTokenizer) -> Difference:
    (a, one), (b, two) = first, second
    before = tokenizer.decode(one.token_ids[:position])
    before = before if len(before) <= SHOWN_BEFORE else "…" + before[-SHOWN_BEFORE:]
    ended = [r.name for r, answer in ((a, one), (b, two)) if position >= len(answer.token_ids)]
    seen: tuple[TokenLogprobs | None, TokenLogprobs | None] = (None, None)
    if draws(one.sampling) or draws(two.sampling):
        judgement = Judgement("unknown", "tokens were drawn at random (temperature above 0)")
    elif ended:
        other = two if ended == [a.name] else one
        judgement = Judgement(
            "length",
            f"{ended[0]} ended after {position} tokens ({(one if other is two else two).finish_reason}), "
            f"the other went on to {len(other.token_ids)} ({other.finish_reason})",
        )
    else:
        seen = (a.logprobs(one.prompt, position), b.logprobs(one.prompt, position))
        float32 = a.result.dtype == b.result.dtype == "float32"
        judgement = judge(*seen, float32=float32, reference=reference_of(b))
    return Difference(
        prompt=one.prompt,
        kind=judgement.kind,
        why=judgement.why.replace("the first engine", a.name).replace("the second engine", b.name),
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
