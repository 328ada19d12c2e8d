"""Names of full KV blocks by what their keys and values depend on, so that equal content is found again.

A block's name is a digest over the name of the block before it and, for each of its tokens, all that goes into the
model: the token id, its rotary position on every axis, and for a visual token which item it is a piece of and which
piece. Placeholder ids alone would make all images of one size equal.
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

from visavis.engine.sequence import Sequence
from visavis.prompt import PatchRule, PreparedMedia

__all__ = ["BlockHasher", "media_key"]

DIGEST_BYTES = 16
"""BLAKE2b at 128 bits: nobody finds two contents with one name, by chance or on purpose."""


def media_key(item: PreparedMedia, rule: PatchRule | None) -> bytes | None:
    """Same key, same output of the vision tower. None for an item whose content hash is not known."""
    if not item.content_hash:
        return None
    said = f"{item.kind}|{item.content_hash}|{item.grid}|{rule}"
    return hashlib.blake2b(said.encode(), digest_size=DIGEST_BYTES).digest()


class BlockHasher:
    def __init__(self, block_size: int) -> None:
        self.block_size = block_size

    def extend(self, seq: Sequence, num_tokens: int) -> None:
        """Lengthens `seq.block_hashes` to all full blocks of the first `num_tokens` tokens. Blocks from an image
        without a content hash on get no name."""
        size = self.block_size
        first, last = len(seq.block_hashes), _nameable(seq, num_tokens) // size
        if last <= first:
            return
        rows = _rows(seq, first * size, last * size)
        name = seq.block_hashes[-1] if first else b""
        for start in range(0, len(rows), size):
            name = hashlib.blake2b(name + rows[start : start + size].tobytes(), digest_size=DIGEST_BYTES).digest()
            seq.block_hashes.append(name)


def _nameable(seq: Sequence, num_tokens: int) -> int:
    """How many of the first tokens come before any item of unknown content."""
    for item, positions in zip(seq.prompt.media, seq.visual_positions, strict=True):
        if not item.content_hash:
            num_tokens = min(num_tokens, int(positions[0]))
    return num_tokens


def _rows(seq: Sequence, start: int, stop: int) -> npt.NDArray[np.int64]:
    """(stop - start, 1 + axes + 3) per token: id, rotary positions, key of its item in two words, number in the item.

    The last three are 0 for text, and there for all prompts of a model with several axes, so that a text shares its
    beginning with a prompt that goes on to an image.
    """
    positions = seq.positions(start, stop)
    axes = len(positions)
    rows = np.zeros((stop - start, 1 + axes + (3 if axes > 1 else 0)), dtype=np.int64)
    rows[:, 0] = seq.token_ids[start:stop]
    rows[:, 1 : 1 + axes] = positions.T
    if start >= seq.num_prompt_tokens:
        return rows
    for item, places in zip(seq.prompt.media, seq.visual_positions, strict=True):
        low, high = np.searchsorted(places, (start, stop))
        if low < high:
            key = media_key(item, seq.prompt.patch_rule)
            assert key is not None  # blocks from an unknown item on are not asked for
            inside = places[low:high] - start
            rows[inside, -3:-1] = np.frombuffer(key, dtype=np.int64)
            rows[inside, -1] = np.arange(low, high)
    return rows
