"""`bad_words` as token ids."""

from __future__ import annotations

from collections.abc import Callable, Sequence

__all__ = ["spellings"]


def spellings(encode: Callable[[str], Sequence[int]], words: Sequence[str]) -> list[tuple[int, ...]]:
    """The id sequences that spell each word, at the beginning of a text and behind a space.

    The last id of a sequence is banned where prompt and answer end with the ids before it, as in transformers; other
    ways to tokenise the same letters are not found by this.
    """
    found: dict[tuple[int, ...], None] = {}
    for word in words:
        for spelling in (word, " " + word.lstrip()):
            ids = tuple(encode(spelling))
            if ids:
                found[ids] = None
    return list(found)
