"""Prompts made to measure: an exact number of text tokens, an image of an exact size, no two alike."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from visavis.chat.types import Conversation, Image, Message, PixelLimits, Text
from visavis.errors import OptionError
from visavis.families.base import chat_source

if TYPE_CHECKING:
    from visavis.families import Family
    from visavis.prompt import Prompt

__all__ = ["PromptMaker"]

_PLENTY = 512  # words to choose from
_FEWEST = 16
_FEWEST_IN_PROMPT = 4  # so that hardly two prompts of a long run are alike
_TRIES = 24
_PLAIN = "the quick brown fox jumps over a lazy dog while seven clear windows show many small green signs"
"""Words for tokenizers that are not known here, or have no whole words."""


class PromptMaker:
    """Deterministic: an equal seed and key make an equal prompt, on any machine."""

    def __init__(self, family: Family, seed: int, limits: PixelLimits | None = None) -> None:
        self._family = family
        self._seed = seed
        self._limits = limits or PixelLimits()
        self._words = _single_token_words(family)

    @property
    def counts_tokens(self) -> bool:
        """False for a model whose tokenizer only its server has: lengths are then words."""
        return self._family.tokenizer.vocab_size > 0

    def make(self, key: str, text_tokens: int, image: tuple[int, int] | None) -> Prompt:
        """A prompt of exactly `text_tokens` tokens beside its visual ones, template included, and with `image` one of
        (width, height) pixels of noise. Raises OptionError when the template alone is longer."""
        draw = random.Random(f"{self._seed}/{key}")
        pixels = None
        if image is not None:
            width, height = image
            noise = np.random.default_rng(draw.getrandbits(64))
            pixels = noise.integers(0, 256, (height, width, 3), dtype=np.uint8)
        order = draw.choices(self._words, k=text_tokens)
        if not self.counts_tokens:
            return self._prepare(order, pixels)
        template = self._text_tokens(["a"], pixels) - 1
        if text_tokens < template + _FEWEST_IN_PROMPT:
            raise OptionError(
                f"prompts of {text_tokens} tokens cannot be told apart: the model's template takes {template}; "
                f"give --prompt-tokens {template + _FEWEST_IN_PROMPT} or more"
            )
        count = text_tokens - template
        for _ in range(_TRIES):
            prompt = self._prepare(order[:count], pixels)
            excess = len(prompt) - prompt.num_image_tokens - text_tokens
            if excess == 0:
                return prompt
            count = min(max(1, count - excess), len(order))
            if excess < 0 and count == len(order):
                order.append(draw.choice(self._words))
                count += 1
        raise OptionError(
            f"this tokenizer makes no prompt of exactly {text_tokens} tokens out of words; try another --prompt-tokens"
        )

    def _text_tokens(self, words: list[str], pixels: np.ndarray | None) -> int:
        prompt = self._prepare(words, pixels)
        return len(prompt) - prompt.num_image_tokens

    def _prepare(self, words: list[str], pixels: np.ndarray | None) -> Prompt:
        parts: tuple[Image | Text, ...] = (Text(" ".join(words)),)
        if pixels is not None:
            parts = (Image(pixels, self._limits), *parts)
        conversation = Conversation((Message("user", parts),))
        return replace(self._family.prepare(conversation), chat=chat_source(conversation, True))


def _single_token_words(family: Family) -> Sequence[str]:
    """Words that are one token each behind a space, so that n words are n tokens."""
    tokenizer = family.tokenizer
    found: list[str] = []
    for token_id in range(tokenizer.vocab_size):
        word = tokenizer.decode([token_id])
        if not re.fullmatch(" [a-z]{3,}", word):
            continue
        # Behind a word, as it will stand: some tokenizers put a space before the first one by themselves.
        if len(tokenizer.encode(f"a{word}{word}")) - len(tokenizer.encode(f"a{word}")) == 1:
            found.append(word[1:])
            if len(found) == _PLENTY:
                break
    return found if len(found) >= _FEWEST else _PLAIN.split()
