"""From screens and questions to arrays: token blocks, where each answer token looks, and what lies under each cell.

A block is one question with its answer, to be appended to a screen's prefix; blocks of a screen do not see each other.
Cells are the 28 px squares of the resized image, in raster order. Rectangles of cells are inclusive ranges.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from tokenizers import Tokenizer

from training.config import AFTER_IMAGE, CELL, END, HEAD, TURN
from training.questions import Question, ask, thousandths
from training.screen import Screen, TextAt

MAX_BLOCK = 128
CHAR_ROWS, CHAR_COLUMNS = 2, 14
RING, LONGEST, SKIP = 8, 32, 255
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

    ``gaze`` (K, L, 4) are the cells that help to write token i, ``letter`` (K, L) which letter of the caption it is (-1
    for others), ``locate`` (K, 2, 4) the cells of the element and its text, ``box`` (K, 4) the element in 0–1,
    ``ground`` (K,) tells the task.
    """

    ids: np.ndarray
    start: np.ndarray
    stop: np.ndarray
    gaze: np.ndarray
    letter: np.ndarray
    locate: np.ndarray
    box: np.ndarray
    ground: np.ndarray


@lru_cache(maxsize=4096)
def _fixed(text: str, vocab: Tokenizer) -> tuple[int, ...]:
    return tuple(vocab.encode(text).ids)


def spell(text: str, vocab: Tokenizer) -> list[int]:
    """Printable ASCII as one token a character, whatever merges the tokenizer knows.

    Answers are taught so: a model that writes pieces of words learns the pieces, and reads no others.
    """
    return [vocab.token_to_id("\u0120" if char == " " else char) for char in text]


def answer_tokens(question: Question, screen: Screen, grid: Grid, vocab: Tokenizer) -> list[tuple[int, Rect, int]]:
    """(id, cells to look at, letter) of every answer token, the end of the turn last."""
    element = screen.elements[question.element]
    grounding = question.task == "ground"
    name, at = (element.name, element.name_at) if grounding else (element.text, element.text_at)
    letters = [
        (token, grid.rect(x, at.y, x + 0.02, at.y + 0.02), i)
        for i, (token, x) in enumerate(zip(spell(name, vocab), at.xs, strict=True))
    ]
    end = (_fixed(END, vocab)[0], NOWHERE, -1)
    if not grounding:
        return [*letters, end]
    x1, y1, x2, y2 = element.box
    first, last = grid.rect(x1, y1, x1 + 1, y1 + 1), grid.rect(x2 - 1, y2 - 1, x2, y2)
    start, close = "<|object_ref_start|>", "<|object_ref_end|>"
    box = question.answer[len(start + name + close) :]
    out = [(_fixed(start, vocab)[0], NOWHERE, -1), *letters, (_fixed(close, vocab)[0], NOWHERE, -1)]
    encoded = vocab.encode(box)
    comma = box.index("),(")
    for token, (a, _) in zip(encoded.ids, encoded.offsets, strict=True):
        inside = 0 < a < len(box) - 1
        out.append((token, (first if a <= comma else last) if inside else NOWHERE, -1))
    return [*out, end]


def blocks(screen: Screen, grid: Grid, asked: list[Question], vocab: Tokenizer) -> Blocks:
    """Encode questions with their answers."""
    heads = vocab.encode_batch([q.text + TURN for q in asked])
    k = len(asked)
    out = Blocks(
        np.zeros((k, MAX_BLOCK), np.int16),
        np.zeros(k, np.int16),
        np.zeros(k, np.int16),
        np.full((k, MAX_BLOCK, 4), -1, np.int8),
        np.full((k, MAX_BLOCK), -1, np.int8),
        np.full((k, 2, 4), -1, np.int8),
        np.zeros((k, 4), np.float32),
        np.zeros(k, np.bool_),
    )
    for i, (q, head) in enumerate(zip(asked, heads, strict=True)):
        answer = answer_tokens(q, screen, grid, vocab)
        start = len(head.ids)
        stop = min(MAX_BLOCK, start + len(answer))
        answer = answer[: max(0, stop - start)]
        out.ids[i, : min(start, stop)] = head.ids[:MAX_BLOCK]
        out.start[i], out.stop[i] = min(start, stop), stop
        if answer:
            out.ids[i, start:stop], out.gaze[i, start:stop], out.letter[i, start:stop] = zip(*answer, strict=True)
        element = screen.elements[q.element]
        out.locate[i, 0] = grid.rect(*element.box)
        out.locate[i, 1] = grid.text(element.name_at if q.task == "ground" else element.text_at)
        out.box[i] = np.array(thousandths(element.box, screen.width, screen.height)) / 1000
        out.ground[i] = q.task == "ground"
    return out


@dataclass(slots=True)
class Cells:
    """What lies under each of C cells.

    ``edges`` (C, 4) float32: left, top, right, bottom of the element that covers most of the cell, in cells from the
    screen's corner, NaN where there is none. ``chars`` (C, 28) uint8: character code minus 32 for each half row and
    2 px column whose middle a character sits on, 0 where there is none. ``first`` (C, 2) uint8: one more than the
    place that the first character of each half row has in its text, 0 for none. ``ring`` (C, 16) uint8: the characters
    of each half row again, each at its place in the text modulo 8. ``SKIP`` marks the far end of long texts, which is
    not asked.
    """

    edges: np.ndarray
    chars: np.ndarray
    first: np.ndarray
    ring: np.ndarray


def cell_targets(screen: Screen, grid: Grid) -> Cells:
    """The cells of one screen."""
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
    first = np.zeros((grid.rows * CHAR_ROWS, grid.columns), np.uint8)
    ring = np.zeros((grid.rows * CHAR_ROWS, grid.columns, RING), np.uint8)
    for text, at in screen.texts:
        row = int(at.y * grid.sy * CHAR_ROWS / CELL)
        if not 0 <= row < chars.shape[0]:
            continue
        for i, (char, x) in enumerate(zip(text, at.xs, strict=True)):
            column = int(x * grid.sx * CHAR_COLUMNS / CELL)
            if char == " " or not 0 <= column < chars.shape[1]:
                continue
            cell = column // CHAR_COLUMNS
            chars[row, column] = ord(char) - 32
            near = i < LONGEST
            if not first[row, cell]:
                first[row, cell] = i + 1 if near else SKIP
            ring[row, cell, i % RING] = ord(char) - 32 if near else SKIP
    return Cells(edges.reshape(-1, 4), *(_by_cell(a, grid) for a in (chars, first, ring.reshape(len(ring), -1))))


def _by_cell(halves: np.ndarray, grid: Grid) -> np.ndarray:
    """(half rows, columns·n) to (C, half rows a cell · n)."""
    shaped = halves.reshape(grid.rows, CHAR_ROWS, grid.columns, -1).transpose(0, 2, 1, 3)
    return shaped.reshape(grid.rows * grid.columns, -1)


def questions_for(
    rng: random.Random, screen: Screen, grid: Grid, count: int, vocab: Tokenizer, reading: float = 0.5
) -> Blocks:
    """``count`` fresh questions about a screen, encoded."""
    return blocks(screen, grid, ask(rng, screen, count, reading), vocab)


def head_ids(vocab: Tokenizer) -> list[int]:
    """Everything before the image."""
    return vocab.encode(HEAD).ids


def close_id(vocab: Tokenizer) -> int:
    """The one token after the image."""
    return vocab.token_to_id(AFTER_IMAGE)
