"""`Case`: one prompt of a comparison, and whether an answer to it is right."""

from __future__ import annotations

from dataclasses import dataclass

from visavis.compare.result import Expected, PromptRecord
from visavis.completion import Completion
from visavis.grounding import screenspot
from visavis.prompt import Prompt

__all__ = ["Case", "is_right"]


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """A prompt, prepared once and handed to every backend."""

    id: str
    question: str  # the last user text, for people
    prompt: Prompt
    expected: Expected | None = None

    def record(self) -> PromptRecord:
        """What the result keeps of it: sizes and hashes, no pixels."""
        media = tuple(
            {
                "kind": m.kind,
                "source": m.source,
                "original_size": m.original_size,
                "size": m.size,
                "tokens": m.num_tokens,
                "content_hash": m.content_hash,
            }
            for m in self.prompt.media
        )
        return PromptRecord(
            id=self.id,
            question=self.question,
            prompt_tokens=len(self.prompt),
            image_tokens=self.prompt.num_image_tokens,
            media=media,
            prepare_s=self.prompt.prepare_s,
            expected=self.expected,
        )


def is_right(expected: Expected | None, completion: Completion) -> bool | None:
    """None where no true answer is known. See `Expected` for the rule."""
    if expected is None or (expected.box is None and expected.text is None):
        return None
    if expected.box is not None:
        if not completion.media_sizes:
            return False
        return screenspot(completion.boxes(), expected.box).hit
    assert expected.text is not None
    return completion.text.strip() == expected.text.strip()
