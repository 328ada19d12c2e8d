"""What limits a comparison, in words."""

from __future__ import annotations

from visavis.compare.result import BackendResult, Comparison
from visavis.compare.settings_apart import draws
from visavis.report.machine import busy_words

__all__ = ["add_notes"]


def add_notes(result: Comparison) -> None:
    """What limits the comparison, in words."""
    ran = [b for b in result.backends if b.error is None]
    if busy := busy_words(result.machine):
        result.notes.append(busy)
    dtypes = {b.dtype for b in ran}
    if len(dtypes) > 1:
        said = ", ".join(f"{b.backend} {b.dtype}" for b in ran)
        result.notes.append(f"not the same arithmetic: {said}; speed and tokens are not directly comparable")
    for b in ran:
        if b.marks:
            result.notes.append(f"{b.backend} is marked {', '.join(b.marks)}: not directly comparable")
        if not b.steady:
            result.notes.append(f"{b.backend} did not give the same tokens in every round")
        if b.batch is not None and b.batch.same_as_alone < b.batch.prompts:
            changed = b.batch.prompts - b.batch.same_as_alone
            result.notes.append(
                f"{b.backend}: {changed} of {b.batch.prompts} answers change when all are asked at once"
            )
        if any(a.text and not a.token_ids for a in b.answers if a.error is None):
            result.notes.append(f"{b.backend} gives no token ids: its texts are compared")
        wrong = [a for a in b.answers if a.error is None and a.prompt_tokens != _prompt_tokens(result, b, a.prompt)]
        if wrong:
            result.notes.append(
                f"{b.backend} counted {wrong[0].prompt_tokens} prompt tokens for {wrong[0].prompt}, "
                f"it was given {_prompt_tokens(result, b, wrong[0].prompt)}"
            )
    if any(draws(a.sampling) for b in ran for a in b.answers if a.error is None):
        result.notes.append("tokens are drawn at random (temperature above 0): different tokens are expected")
    lengths = {b.backend: sum(len(a.token_ids) for a in b.answers) for b in ran}
    if len(lengths) > 1 and max(lengths.values()) > 1.1 * min(lengths.values()):
        said = ", ".join(f"{name} {count}" for name, count in lengths.items())
        result.notes.append(f"answers differ in length ({said} tokens in all): tokens/s compare unequal work")


def _prompt_tokens(result: Comparison, b: BackendResult, prompt: str) -> int:
    return next(record.prompt_tokens for record in (*b.prompts, *result.prompts) if record.id == prompt)
