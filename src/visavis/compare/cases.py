"""`Case`: one prompt of a comparison, and whether an answer to it is right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from visavis.chat.types import PixelLimits
from visavis.compare.result import Expected, PromptRecord
from visavis.completion import Completion
from visavis.detokenize import FRAME_TOKENS
from visavis.errors import OptionError
from visavis.grounding import screenspot
from visavis.prompt import Prompt

__all__ = ["Case", "Prepare", "is_right"]

Prepare = Callable[[PixelLimits | None, str | None], Prompt]
"""The same case with pixel limits and a system prompt of one backend's own (None: as for all)."""


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """A prompt, prepared once and handed to every backend."""

    id: str
    question: str  # the last user text, for people
    prompt: Prompt
    expected: Expected | None = None
    images: tuple[Any, ...] = ()  # uint8 (height, width, 3), upright originals; for the report
    prepare: Prepare | None = None
    _prepared: dict[tuple[PixelLimits | None, str | None], Prompt] = field(default_factory=dict)

    def prompted(self, pixels: PixelLimits | None, system: str | None) -> Prompt:
        """Its prompt under settings of one backend's own. Raises OptionError where it cannot be prepared anew."""
        key = (pixels, system)
        if key in self._prepared:
            return self._prepared[key]
        if pixels is None and system is None:
            return self.prompt
        if self.prepare is None:
            raise OptionError(f"{self.id}: this prompt was made beforehand, so pixel limits and system are fixed")
        self._prepared[key] = prompt = self.prepare(pixels, system)
        return prompt

    def under(self, pixels: PixelLimits | None, system: str | None) -> Case:
        """The case with that prompt; from it, too, every other one can be had."""
        self._prepared.setdefault((None, None), self.prompt)
        prompt = self.prompted(pixels, system)
        return self if prompt is self.prompt else replace(self, prompt=prompt)

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
    text = completion.text
    for token in FRAME_TOKENS:  # they stay with special_tokens="all" and are no part of what was said
        text = text.replace(token, "")
    return text.strip() == expected.text.strip()
