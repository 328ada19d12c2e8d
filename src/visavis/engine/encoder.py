"""Images and videos of running requests: encoded once, when a chunk first reaches them, kept while there is room."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Mapping
from collections.abc import Sequence as Seq
from typing import NamedTuple

import numpy as np
import torch

from visavis.engine.block_hash import media_key
from visavis.engine.config import MAX_PATCHES_PER_PASS
from visavis.engine.encoder_cache import EncoderCache
from visavis.engine.models.vision import VisionOutput, VisionTower
from visavis.engine.models.vision_layout import Grid
from visavis.engine.sequence import Sequence
from visavis.engine.transfer import send
from visavis.patches import patchify

__all__ = ["Chunk", "VisionEncoder", "VisualRows"]

MAX_BYTES_AHEAD = 512 << 20
"""Of patches made before their turn: eleven screens of 1920×1080 at 48 MB."""

_Reader = tuple[int, int]  # uid of a request, number of the item in its prompt


class Chunk(NamedTuple):
    """Tokens start … stop of a request, computed in this step from row `row` of the batch on."""

    seq: Sequence
    start: int
    stop: int
    row: int


class VisualRows(NamedTuple):
    """Rows (v,) int64 of a step's tokens that are visual, and what stands there."""

    rows: torch.Tensor
    embeddings: torch.Tensor
    deepstack: torch.Tensor | None


class VisionEncoder:
    """`cache_bytes`: how much is kept of what no running request reads any more; 0: nothing, and requests with the same
    image do not share its output either."""

    def __init__(self, tower: VisionTower, cache_bytes: int = 0) -> None:
        self.tower = tower
        self.cache = EncoderCache(cache_bytes)
        self._reading: dict[_Reader, Hashable] = {}  # key of each item that a request has begun and not finished
        self._ahead_bytes = 0  # of patches that wait for their turn
        self._ahead_lock = threading.Lock()

    def __call__(self, chunks: Seq[Chunk]) -> VisualRows | None:
        """What the step's chunks need; None when none of them touches an image or video."""
        touched = [
            (chunk, number, int(low), int(high))
            for chunk in chunks
            for number, positions in enumerate(chunk.seq.visual_positions)
            for low, high in [np.searchsorted(positions, (chunk.start, chunk.stop))]
            if low < high
        ]
        if not touched:
            return None
        rows = [c.seq.visual_positions[number][low:high] + (c.row - c.start) for c, number, low, high in touched]
        where = send(torch.from_numpy(np.concatenate(rows)), self.tower.device)
        self._begin({(c.seq.uid, number): c.seq for c, number, _, _ in touched})
        embeddings, deepstack = [], []
        for chunk, number, low, high in touched:
            output = self.cache[self._reading[chunk.seq.uid, number]]
            embeddings.append(output.embeddings[low:high])
            if output.deepstack is not None:
                deepstack.append(output.deepstack[low:high])
        return VisualRows(where, torch.cat(embeddings), torch.cat(deepstack) if deepstack else None)

    def release(self, seq: Sequence) -> None:
        """Of the items whose tokens have all been computed."""
        for number, positions in enumerate(seq.visual_positions):
            if positions[-1] < seq.num_computed_tokens:
                self._end((seq.uid, number))

    def forget(self, seq: Sequence) -> None:
        """Of a request that ended or was preempted, all items."""
        for number in range(len(seq.visual_positions)):
            self._end((seq.uid, number))
            self._take_patches(seq, number)

    def needs_patches(self, seq: Sequence) -> bool:
        """Whether `make_patches` has something to do. A GPU makes them itself, from a quarter of the bytes."""
        return self.tower.device.type == "cpu" and any(
            self._key(seq, number) not in self.cache for number in range(len(seq.prompt.media))
        )

    def make_patches(self, seq: Sequence) -> None:
        """Makes what the tower will take of a request's items, outside the step that needs it. Any thread may call
        this. As long as `MAX_BYTES_AHEAD` are waiting, the rest is left to that step."""
        rule = seq.prompt.patch_rule
        if rule is None or not self.needs_patches(seq):
            return
        for number, item in enumerate(seq.prompt.media):
            if self._key(seq, number) in self.cache:
                continue
            num_bytes = _num_patches(seq, number) * 3 * rule.temporal_patch_size * rule.patch_size**2 * 4
            with self._ahead_lock:
                if self._ahead_bytes + num_bytes > MAX_BYTES_AHEAD:
                    return
                self._ahead_bytes += num_bytes
            seq.patches[number] = patchify(item.pixels, rule)

    def _take_patches(self, seq: Sequence, number: int) -> torch.Tensor | None:
        patches = seq.patches.pop(number, None)
        if patches is not None:
            with self._ahead_lock:
                self._ahead_bytes -= patches.nbytes
        return patches

    def _begin(self, readers: dict[_Reader, Sequence]) -> None:
        """Lets requests read their items; those that are nowhere yet are encoded, each once."""
        new = {reader: self._key(seq, reader[1]) for reader, seq in readers.items() if reader not in self._reading}
        missing = {key: (readers[reader], reader[1]) for reader, key in new.items() if key not in self.cache}
        self._encode(missing)
        self.cache.queries += len(new)
        self.cache.hits += len(new) - len(missing)
        for reader, key in new.items():
            self._take_patches(readers[reader], reader[1])  # of an item that somebody else had encoded meanwhile
            self._reading[reader] = key
            self.cache.acquire(key)
        self.cache.trim()

    def _end(self, reader: _Reader) -> None:
        key = self._reading.pop(reader, None)
        if key is not None:
            self.cache.release(key)

    def _key(self, seq: Sequence, number: int) -> Hashable:
        key = media_key(seq.prompt.media[number], seq.prompt.patch_rule) if self.cache.capacity_bytes else None
        return (seq.uid, number) if key is None else key

    def _encode(self, missing: Mapping[Hashable, tuple[Sequence, int]]) -> None:
        """Items of several requests go through the tower together."""
        # Frames of one size side by side share their attention calls.
        left = sorted(missing, key=lambda key: _grid(*missing[key])[1:])
        while left:
            batch: list[Hashable] = []
            total = 0
            while left and (not batch or total + _num_patches(*missing[left[0]]) <= MAX_PATCHES_PER_PASS):
                total += _num_patches(*missing[left[0]])
                batch.append(left.pop(0))
            grids = [_grid(*missing[key]) for key in batch]
            with self.tower.ops.torch_threads():
                output = self.tower(self._patches([missing[key] for key in batch]), grids)
            sizes = [t * h * w // self.tower.config.merge_size**2 for t, h, w in grids]
            embeddings = output.embeddings.split(sizes)
            deepstack = output.deepstack.split(sizes) if output.deepstack is not None else [None] * len(sizes)
            for key, part, deep in zip(batch, embeddings, deepstack, strict=True):
                # Copies: what the tower gave may hold on to more memory than is counted, of other items or steps.
                self.cache.put(key, VisionOutput(part.clone(), None if deep is None else deep.clone()))

    def _patches(self, items: Seq[tuple[Sequence, int]]) -> torch.Tensor:
        """Of the items; those made before their turn are taken as they are."""
        made = [self._take_patches(seq, number) for seq, number in items]
        if all(patches is None for patches in made):
            return self._make(items)
        parts = [self._make([item]) if patches is None else patches for item, patches in zip(items, made, strict=True)]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _make(self, items: Seq[tuple[Sequence, int]]) -> torch.Tensor:
        rules = [seq.prompt.patch_rule for seq, _ in items]
        media = [seq.prompt.media[number] for seq, number in items]
        return self.tower.ops.patches(media, [rule for rule in rules if rule is not None])  # all have one: checked


def _grid(seq: Sequence, number: int) -> Grid:
    grid = seq.prompt.media[number].grid
    assert grid is not None  # checked on arrival
    return grid


def _num_patches(seq: Sequence, number: int) -> int:
    t, h, w = _grid(seq, number)
    return t * h * w
