"""Batches drawn by worker processes while the GPU trains: one image size a batch, each screen used three times."""

from __future__ import annotations

import multiprocessing
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass, fields

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from training import tokenizer as bpe
from training import words
from training.config import CELL
from training.packing import Blocks, Grid, cell_targets, questions_for
from training.screen import Screen, generate

SMALLEST, LARGEST = 8, 32  # cells a side: 224 to 896 px


@dataclass(slots=True)
class Batch:
    """Tensors of B screens with K questions each; see ``packing`` for the meaning. ``images`` uint8 (B, H, W, 3)."""

    images: torch.Tensor
    edges: torch.Tensor
    chars: torch.Tensor
    ids: torch.Tensor
    start: torch.Tensor
    stop: torch.Tensor
    gaze: torch.Tensor
    locate: torch.Tensor
    box: torch.Tensor
    ground: torch.Tensor

    def to(self, device: torch.device) -> Batch:
        return Batch(*(getattr(self, f.name).to(device, non_blocking=True) for f in fields(self)))

    def pin_memory(self) -> Batch:
        return Batch(*(getattr(self, f.name).pin_memory() for f in fields(self)))


def draw_side(rng: random.Random, cells: int) -> int:
    """An original side in pixels that the resize rounds to this many cells."""
    return min(LARGEST * CELL, max(SMALLEST * CELL, cells * CELL + rng.randint(-13, 13)))


def resized(screen: Screen, rows: int, columns: int) -> np.ndarray:
    """uint8 (H, W, 3) after the one resize (Pillow's bicubic)."""
    size = (columns * CELL, rows * CELL)
    image = screen.image if screen.image.size == size else screen.image.resize(size, Image.Resampling.BICUBIC)
    return np.asarray(image)


def draw_grid(rng: random.Random, progress: float) -> tuple[int, int]:
    """Rows and columns of a batch; the largest side grows from 14 to 32 cells over the first quarter of training."""
    top = min(LARGEST, round(14 + progress * 4 * (LARGEST - 14)))
    return rng.randint(SMALLEST, top), rng.randint(SMALLEST, top)


class Screens(IterableDataset):
    """Endless batches. ``progress`` is shared with the trainer and runs from 0 to 1."""

    def __init__(
        self,
        seed: int,
        cells: int,
        questions: int,
        progress: multiprocessing.sharedctypes.Synchronized,
        invented: float = 0.0,
    ) -> None:
        self.seed, self.cells, self.questions, self.progress = seed, cells, questions, progress
        self.invented = invented

    def __iter__(self) -> Iterator[Batch]:
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        words.invented_share = self.invented
        torch.set_num_threads(1)
        info = get_worker_info()
        number = info.id if info else 0
        rng = random.Random(f"{self.seed}-{number}")
        serial = self.seed * 1_000_000_000 + number * 10_000_000
        waiting: list[tuple] = []
        while True:
            rows, columns = draw_grid(rng, self.progress.value)
            screens = []
            for _ in range(max(4, min(128, self.cells // (rows * columns)))):
                serial += 1
                exact = rng.random() < 0.35  # many real screens are not, these need no resize
                sides = [n * CELL if exact else draw_side(rng, n) for n in (columns, rows)]
                screens.append(generate(serial, "train", *sides))
            grids = [Grid.of(s, rows, columns) for s in screens]
            images = torch.from_numpy(np.stack([resized(s, rows, columns) for s in screens]))
            targets = [cell_targets(s, g) for s, g in zip(screens, grids, strict=True)]
            edges = torch.from_numpy(np.stack([t[0] for t in targets]))
            chars = torch.from_numpy(np.stack([t[1] for t in targets]))
            for s in screens:
                s.image = None  # type: ignore[assignment]
            drawn = (screens, grids, images, edges, chars)
            yield self._asked(rng, drawn)
            waiting.append(drawn)
            if len(waiting) > 4:
                yield self._asked(rng, waiting[2])
                yield self._asked(rng, waiting.pop(0))

    def _asked(self, rng: random.Random, drawn: tuple) -> Batch:
        screens, grids, images, edges, chars = drawn
        vocab = bpe.load()
        packed = [questions_for(rng, s, g, self.questions, vocab) for s, g in zip(screens, grids, strict=True)]
        arrays = {f.name: np.stack([getattr(b, f.name) for b in packed]) for f in fields(Blocks)}
        longest = -(-int(arrays["stop"].max()) // 8) * 8
        arrays["ids"], arrays["gaze"] = arrays["ids"][:, :, :longest], arrays["gaze"][:, :, :longest]
        tensors = {k: torch.from_numpy(np.ascontiguousarray(v)) for k, v in arrays.items()}
        return Batch(images=images.clone(), edges=edges.clone(), chars=chars.clone(), **tensors)


def _as_is(batches: list[Batch]) -> Batch:
    return batches[0]


def loader(seed: int, cells: int, questions: int, progress: object, workers: int, invented: float = 0.0) -> DataLoader:
    """Batches from ``workers`` processes, pinned."""
    data = Screens(seed, cells, questions, progress, invented)  # type: ignore[arg-type]
    return DataLoader(
        data,
        batch_size=None,
        num_workers=workers,
        prefetch_factor=3 if workers else None,
        pin_memory=torch.cuda.is_available(),
        multiprocessing_context="fork" if workers else None,
    )
