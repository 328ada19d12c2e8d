"""Batches drawn by worker processes while the GPU trains: one image size a batch, each screen used three times."""

from __future__ import annotations

import argparse
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
from training.packing import Blocks, Cells, Grid, cell_targets, questions_for
from training.screen import Screen, generate

SMALLEST, LARGEST = 8, 32  # cells a side: 224 to 896 px
EXACT = 0.2  # share of screens that need no resize, as some real ones


@dataclass(slots=True)
class Batch:
    """Tensors of B screens with K questions each; see ``packing`` for the meaning. ``images`` uint8 (B, H, W, 3)."""

    images: torch.Tensor
    edges: torch.Tensor
    chars: torch.Tensor
    first: torch.Tensor
    ring: torch.Tensor
    ids: torch.Tensor
    start: torch.Tensor
    stop: torch.Tensor
    gaze: torch.Tensor
    letter: torch.Tensor
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


@dataclass(slots=True)
class Drawn:
    """Screens of one size with everything that does not depend on the questions; arrays as in ``Batch``."""

    screens: list[Screen]
    grids: list[Grid]
    images: torch.Tensor
    cells: dict[str, torch.Tensor]


def draw(rng: random.Random, split: str, serial: int, count: int, rows: int, columns: int) -> Drawn:
    """``count`` screens of a split, their seeds counted from ``serial``."""
    screens = []
    for i in range(count):
        exact = rng.random() < EXACT
        sides = [n * CELL if exact else draw_side(rng, n) for n in (columns, rows)]
        screens.append(generate(serial + i, split, *sides))
    grids = [Grid.of(s, rows, columns) for s in screens]
    images = torch.from_numpy(np.stack([resized(s, rows, columns) for s in screens]))
    targets = [cell_targets(s, g) for s, g in zip(screens, grids, strict=True)]
    cells = {f.name: torch.from_numpy(np.stack([getattr(t, f.name) for t in targets])) for f in fields(Cells)}
    for s in screens:
        s.image = None  # type: ignore[assignment]
    return Drawn(screens, grids, images, cells)


def ask_about(rng: random.Random, drawn: Drawn, questions: int, reading: float) -> Batch:
    """Fresh questions about drawn screens."""
    vocab = bpe.load()
    packed = [
        questions_for(rng, s, g, questions, vocab, reading) for s, g in zip(drawn.screens, drawn.grids, strict=True)
    ]
    arrays = {f.name: np.stack([getattr(b, f.name) for b in packed]) for f in fields(Blocks)}
    longest = -(-int(arrays["stop"].max()) // 8) * 8
    arrays |= {n: arrays[n][:, :, :longest] for n in ("ids", "gaze", "letter")}
    tensors = {k: torch.from_numpy(np.ascontiguousarray(v)) for k, v in arrays.items()}
    return Batch(images=drawn.images.clone(), **{k: v.clone() for k, v in drawn.cells.items()}, **tensors)


class Screens(IterableDataset):
    """Endless batches. ``progress`` is shared with the trainer and runs from 0 to 1; ``part`` of ``parts`` trainers."""

    def __init__(
        self, seed: int, o: argparse.Namespace, progress: multiprocessing.sharedctypes.Synchronized, part: int = 0
    ) -> None:
        self.seed, self.progress, self.part = seed, progress, part
        self.cells, self.questions, self.reading, self.invented = o.cells, o.questions, o.reading, o.invented
        self.grown = o.init is not None  # a model that can see already needs no small screens first

    def __iter__(self) -> Iterator[Batch]:
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        words.invented_share = self.invented
        torch.set_num_threads(1)
        info = get_worker_info()
        number = (info.id + self.part * info.num_workers) if info else self.part
        rng = random.Random(f"{self.seed}-{number}")
        serial = self.seed * 1_000_000_000 + number * 10_000_000
        waiting: list[Drawn] = []
        while True:
            rows, columns = draw_grid(rng, 1.0 if self.grown else self.progress.value)
            count = max(4, min(128, self.cells // (rows * columns)))
            drawn = draw(rng, "train", serial, count, rows, columns)
            serial += count
            yield ask_about(rng, drawn, self.questions, self.reading)
            waiting.append(drawn)
            if len(waiting) > 4:
                yield ask_about(rng, waiting[2], self.questions, self.reading)
                yield ask_about(rng, waiting.pop(0), self.questions, self.reading)


def loader(seed: int, o: argparse.Namespace, progress: object, part: int = 0) -> DataLoader:
    """Batches from ``o.workers`` processes, pinned."""
    return DataLoader(
        Screens(seed, o, progress, part),  # type: ignore[arg-type]
        batch_size=None,
        num_workers=o.workers,
        prefetch_factor=3 if o.workers else None,
        pin_memory=torch.cuda.is_available(),
        multiprocessing_context="fork" if o.workers else None,
    )
