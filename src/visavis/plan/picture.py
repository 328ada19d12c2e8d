"""A device's memory as a bar of letters: one letter a part, so that nothing depends on colour."""

from __future__ import annotations

from collections.abc import Sequence

from visavis.plan.types import MemoryPart

__all__ = ["COLOURS", "LETTERS", "bar", "cells", "letter_of"]

LETTERS = {
    "embedding": "E",
    "attention": "A",
    "mlp": "M",
    "experts": "X",
    "norms": "N",
    "vision tower": "V",
    "merger": "G",
    "lm_head": "H",
    "other programs": "p",
    "overhead": "o",
    "engine's own": "e",
    "activations": "a",
    "KV cache": "k",
    "free": "·",
}
"""Capitals are weights."""

COLOURS = {"weights": "blue", "activations": "yellow", "overhead": "red", "kv": "green", "free": "bright_black"}


def letter_of(part: MemoryPart) -> str:
    return LETTERS.get(part.name, "?")


def cells(parts: Sequence[MemoryPart], total: float, width: int) -> list[tuple[MemoryPart, int]]:
    """How many of `width` cells each part gets, in proportion, by largest remainder; parts under half a cell get none.

    The bar is `total` bytes long, or as long as its parts where they need more.
    """
    length = max(total, sum(part.bytes for part in parts))
    if length <= 0 or width < 1:
        return []
    exact = [part.bytes / length * width for part in parts]
    counts = [int(value) for value in exact]
    missing = round(sum(exact)) - sum(counts)
    by_remainder = sorted(range(len(parts)), key=lambda i: counts[i] - exact[i])
    for i in by_remainder[:missing]:
        counts[i] += 1
    return [(part, count) for part, count in zip(parts, counts, strict=True) if count]


def bar(parts: Sequence[MemoryPart], total: float, width: int) -> str:
    """`MMMMMMAAEkkkkkkk···`; where the parts need more than `total`, a `|` stands at the device's end."""
    text = "".join(letter_of(part) * count for part, count in cells(parts, total, width))
    needed = sum(part.bytes for part in parts)
    if needed > total * 1.001:
        end = round(width * total / needed)
        text = f"{text[:end]}|{text[end:]}"
    return text
