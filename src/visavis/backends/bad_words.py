"""`bad_words` as token ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from visavis.families.base import TextTokenizer

__all__ = ["bad_word_ids"]


def bad_word_ids(tokenizer: TextTokenizer, words: Sequence[str]) -> list[tuple[int, ...]]:
    """The id sequences that spell each word, at the beginning of a text and behind a space.

    The last id of a sequence is banned where the answer ends with the ids before it, as transformers and vLLM do; other
    ways to tokenise the same letters are not found by this.
    """
    found: dict[tuple[int, ...], None] = {}
    for word in words:
        for spelling in (word, " " + word.lstrip()):
            ids = tuple(tokenizer.encode(spelling))
            if ids:
                found[ids] = None
    return list(found)
