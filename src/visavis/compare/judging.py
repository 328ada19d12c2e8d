"""The law of near ties, applied to an answer that was asked for again with equal settings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from visavis.compare.agreement import Judgement, judge
from visavis.compare.lab import Lab
from visavis.compare.settings_apart import View, draws
from visavis.completion import TokenLogprobs

__all__ = ["judge_at", "reference_of"]


def reference_of(second: View) -> Literal["first", "second"]:
    """Whose two best tokens decide in float32: transformers' where it takes part."""
    return "second" if second.setup.backend == "hf" else "first"


def judge_at(
    first: View,
    second: View,
    prompt: str,
    equalised: frozenset[str],
    ids: tuple[Sequence[int], Sequence[int]],
    position: int,
    lab: Lab,
) -> Judgement:
    """What the first difference is that is left when `equalised` are equal. Both answers have a token there."""
    answer = first.answer(prompt)
    if answer is not None and draws(answer.sampling):
        return Judgement("unknown", "tokens were drawn at random (temperature above 0)")
    dtype = first.result.dtype if "dtype" in equalised else second.result.dtype
    variant = lab.variant(second, first, prompt, equalised)
    told = lab.ask(variant, logprobs_to=position)
    seen: TokenLogprobs | None = None
    if not isinstance(told, str) and told.logprobs is not None and len(told.logprobs) > position:
        repeats = tuple(told.token_ids[: position + 1]) == tuple(ids[1][: position + 1])
        seen = told.logprobs[position] if repeats else None
    float32 = first.result.dtype == dtype == "float32"
    judged = judge(first.logprobs(prompt, position), seen, float32=float32, reference=reference_of(second))
    why = judged.why.replace("the first engine", first.name).replace("the second engine", second.name)
    return Judgement(judged.kind, f"at token {position}, with equal settings: {why}", judged.margin)
