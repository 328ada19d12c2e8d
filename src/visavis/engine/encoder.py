"""Images and videos of running requests: encoded once, when a chunk first reaches them, kept until consumed."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import NamedTuple

import numpy as np
import torch

from visavis.engine.models.vision import VisionOutput, VisionTower
from visavis.engine.models.vision_layout import Grid
from visavis.engine.sequence import Sequence
from visavis.patches import patchify
from visavis.prompt import PreparedMedia

__all__ = ["Chunk", "VisionEncoder", "VisualRows"]

MAX_PATCHES_PER_PASS = 16384
"""Bounds the tower's activations; a single larger item still goes through in one pass."""


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
    def __init__(self, tower: VisionTower) -> None:
        self.tower = tower
        self._outputs: dict[tuple[int, int], VisionOutput] = {}  # (uid, number of the media item)

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
        missing = {
            (c.seq.uid, n): c.seq.prompt.media[n] for c, n, _, _ in touched if (c.seq.uid, n) not in self._outputs
        }
        self._encode(missing, chunks)
        rows, embeddings, deepstack = [], [], []
        for chunk, number, low, high in touched:
            output = self._outputs[chunk.seq.uid, number]
            rows.append(chunk.seq.visual_positions[number][low:high] + (chunk.row - chunk.start))
            embeddings.append(output.embeddings[low:high])
            if output.deepstack is not None:
                deepstack.append(output.deepstack[low:high])
        where = torch.from_numpy(np.concatenate(rows)).to(self.tower.device)
        return VisualRows(where, torch.cat(embeddings), torch.cat(deepstack) if deepstack else None)

    def release(self, seq: Sequence) -> None:
        """Drops the items whose tokens have all been computed."""
        for number, positions in enumerate(seq.visual_positions):
            if positions[-1] < seq.num_computed_tokens:
                self._outputs.pop((seq.uid, number), None)

    def forget(self, seq: Sequence) -> None:
        """Drops everything of a request that ended or was preempted."""
        for number in range(len(seq.visual_positions)):
            self._outputs.pop((seq.uid, number), None)

    def _encode(self, missing: dict[tuple[int, int], PreparedMedia], chunks: Seq[Chunk]) -> None:
        rules = {chunk.seq.uid: chunk.seq.prompt.patch_rule for chunk in chunks}
        # Frames of one size side by side share their attention calls.
        keys = sorted(missing, key=lambda key: _grid(missing[key])[1:])
        while keys:
            batch: list[tuple[int, int]] = []
            patches: list[torch.Tensor] = []
            total = 0
            while keys and (not batch or total + _num_patches(missing[keys[0]]) <= MAX_PATCHES_PER_PASS):
                key = keys.pop(0)
                rule = rules[key[0]]
                assert rule is not None  # checked on arrival
                batch.append(key)
                patches.append(patchify(missing[key].pixels, rule))
                total += len(patches[-1])
            grids = [_grid(missing[key]) for key in batch]
            output = self.tower(torch.cat(patches) if len(patches) > 1 else patches[0], grids)
            sizes = [t * h * w // self.tower.config.merge_size**2 for t, h, w in grids]
            embeddings = output.embeddings.split(sizes)
            deepstack = output.deepstack.split(sizes) if output.deepstack is not None else [None] * len(sizes)
            for key, part, deep in zip(batch, embeddings, deepstack, strict=True):
                self._outputs[key] = VisionOutput(part, deep)


def _grid(item: PreparedMedia) -> Grid:
    assert item.grid is not None  # checked on arrival
    return item.grid


def _num_patches(item: PreparedMedia) -> int:
    t, h, w = _grid(item)
    return t * h * w
