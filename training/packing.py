"""From screens and questions to arrays: token blocks, where each answer token looks, and what lies under each cell.

A block is one question with its answer, to be appended to a screen's prefix; blocks of a screen do not see each other.
Cells are the 28 px squares of the resized image, in raster order. Rectangles of cells are inclusive ranges.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
from tokenizers import Tokenizer

from training.config import AFTER_IMAGE, CELL, END, HEAD, TURN
from training.questions import Question, ask, thousandths
from training.screen import Screen, TextAt

MAX_BLOCK = 120
CHAR_ROWS, CHAR_COLUMNS = 2, 14
NOWHERE = (-1, -1, -1, -1)
Rect = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class Grid:
    """The cells of a resized screen and the scale from its original pixels."""

    rows: int
    columns: int
    sx: float
    sy: float

    @classmethod
    def of(cls, screen: Screen, rows: int, columns: int) -> Grid:
        return cls(rows, columns, columns * CELL / screen.width, rows * CELL / screen.height)

    def at(self, x: float, y: float) -> tuple[int, int]:
        """Row and column of a point in original pixels."""
        row, column = int(y * self.sy // CELL), int(x * self.sx // CELL)
        return min(max(row, 0), self.rows - 1), min(max(column, 0), self.columns - 1)

    def rect(self, x1: float, y1: float, x2: float, y2: float) -> Rect:
        """Cells touched by a box in original pixels."""
        r1, c1 = self.at(x1, y1)
        r2, c2 = self.at(x2 - 0.01, y2 - 0.01)
        return r1, c1, r2, c2

    def text(self, at: TextAt, start: int = 0, stop: int | None = None) -> Rect:
        """Cells of some characters of a written text."""
        xs = at.xs[start:stop] or at.xs[:1]
        return self.rect(xs[0], at.y - at.size * 0.25, xs[-1] + 0.02, at.y + at.size * 0.3)


@dataclass(slots=True)
class Blocks:
    """Token blocks of one screen. ``ids`` (K, L) padded with 0; ``start``, ``stop`` (K,) bound the answer tokens.

    ``gaze`` (K, L, 4) are the cells that help to write token i, ``locate`` (K, 2, 4) those of the element and its text,
    ``box`` (K, 4) the element in 0–1, ``ground`` (K,) tells the task.
    """

    ids: np.ndarray
    start: np.ndarray
    stop: np.ndarray
    gaze: np.ndarray
    locate: np.ndarray
    box: np.ndarray
    ground: np.ndarray


def _gaze(question: Question, screen: Screen, grid: Grid, offsets: list[tuple[int, int]], shift: int) -> list[Rect]:
    """One rectangle an answer token; ``shift`` is where the answer starts in the encoded string."""
    element = screen.elements[question.element]
    spelled = element.name if question.task == "ground" else element.text
    at = element.name_at if question.task == "ground" else element.text_at
    lead = len("<|object_ref_start|>") if question.task == "ground" else 0
    answer = question.answer
    comma = answer.find("),(", lead + len(spelled))
    x1, y1, x2, y2 = element.box
    first, last = grid.rect(x1, y1, x1 + 1, y1 + 1), grid.rect(x2 - 1, y2 - 1, x2, y2)
    out: list[Rect] = []
    for a, b in offsets:
        a, b = a - shift - lead, b - shift - lead
        if 0 <= a < len(spelled):
            piece = spelled[a:b]
            a += len(piece) - len(piece.lstrip())
            out.append(grid.text(at, a, max(a + 1, b)))
        elif a < 0 or question.task == "read" or a + lead >= len(answer):
            out.append(NOWHERE)
        else:
            out.append(first if a + lead <= comma else last)
    return out


def blocks(screen: Screen, grid: Grid, asked: list[Question], vocab: Tokenizer) -> Blocks:
    """Encode questions with their answers."""
    heads = [q.text + TURN for q in asked]
    encoded = vocab.encode_batch([h + q.answer + END for h, q in zip(heads, asked, strict=True)])
    k = len(asked)
    out = Blocks(
        np.zeros((k, MAX_BLOCK), np.int16),
        np.zeros(k, np.int16),
        np.zeros(k, np.int16),
        np.full((k, MAX_BLOCK, 4), -1, np.int8),
        np.full((k, 2, 4), -1, np.int8),
        np.zeros((k, 4), np.float32),
        np.zeros(k, np.bool_),
    )
    for i, (q, head, e) in enumerate(zip(asked, heads, encoded, strict=True)):
        ids = e.ids[:MAX_BLOCK]
        start = next(j for j, (a, _) in enumerate(e.offsets) if a >= len(head))
        out.ids[i, : len(ids)] = ids
        out.start[i], out.stop[i] = min(start, len(ids)), len(ids)
        gaze = _gaze(q, screen, grid, e.offsets[start : len(ids)], len(head))
        out.gaze[i, start : len(ids)] = gaze or np.zeros((0, 4), np.int8)
        element = screen.elements[q.element]
        out.locate[i, 0] = grid.rect(*element.box)
        out.locate[i, 1] = grid.text(element.name_at if q.task == "ground" else element.text_at)
        out.box[i] = np.array(thousandths(element.box, screen.width, screen.height)) / 1000
        out.ground[i] = q.task == "ground"
    return out


def cell_targets(screen: Screen, grid: Grid) -> tuple[np.ndarray, np.ndarray]:
    """What lies under each cell.

    edges (C, 4) float32: left, top, right, bottom of the element under the cell's centre (or overlapping it most), in
    cells from the screen's corner, NaN where there is none. chars (C, 28) uint8: character code minus 32 for each half
    row and 2 px column whose middle a character sits on, 0 where there is none.
    """
    edges = np.full((grid.rows, grid.columns, 4), np.nan, np.float32)
    best = np.zeros((grid.rows, grid.columns), np.float32)
    for e in screen.elements:
        x1, y1, x2, y2 = e.box
        box = np.array((x1 * grid.sx, y1 * grid.sy, x2 * grid.sx, y2 * grid.sy), np.float32) / CELL
        r1, c1, r2, c2 = grid.rect(x1, y1, x2, y2)
        rows, columns = np.arange(r1, r2 + 1), np.arange(c1, c2 + 1)
        high = np.minimum(rows + 1, box[3]) - np.maximum(rows, box[1])
        wide = np.minimum(columns + 1, box[2]) - np.maximum(columns, box[0])
        share = high[:, None] * wide[None]
        view = best[r1 : r2 + 1, c1 : c2 + 1]
        better = share > view
        view[better] = share[better]
        edges[r1 : r2 + 1, c1 : c2 + 1][better] = box
    chars = np.zeros((grid.rows * CHAR_ROWS, grid.columns * CHAR_COLUMNS), np.uint8)
    for text, at in screen.texts:
        row = int(at.y * grid.sy * CHAR_ROWS / CELL)
        if 0 <= row < chars.shape[0]:
            for char, x in zip(text, at.xs, strict=True):
                column = int(x * grid.sx * CHAR_COLUMNS / CELL)
                if char != " " and 0 <= column < chars.shape[1]:
                    chars[row, column] = ord(char) - 32
    shaped = chars.reshape(grid.rows, CHAR_ROWS, grid.columns, CHAR_COLUMNS).transpose(0, 2, 1, 3)
    return edges.reshape(-1, 4), shaped.reshape(-1, CHAR_ROWS * CHAR_COLUMNS)


def questions_for(rng: random.Random, screen: Screen, grid: Grid, count: int, vocab: Tokenizer) -> Blocks:
    """``count`` fresh questions about a screen, encoded."""
    return blocks(screen, grid, ask(rng, screen, count), vocab)


def head_ids(vocab: Tokenizer) -> list[int]:
    """Everything before the image."""
    return vocab.encode(HEAD).ids


def close_id(vocab: Tokenizer) -> int:
    """The one token after the image."""
    return vocab.token_to_id(AFTER_IMAGE)
