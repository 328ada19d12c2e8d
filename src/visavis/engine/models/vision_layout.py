"""Where a vision tower's patches lie: positions, frames, windows and position-grid taps, from grid sizes alone.

A grid is (t, h, w) in patches. Patches come as `visavis.patches.patchify` makes them: frame by frame, cell by cell
(merge × merge patches together). Everything here is plain index arithmetic on the CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

import torch

__all__ = ["Run", "WindowLayout", "frame_runs", "interpolation_taps", "patch_positions", "window_layout"]

Grid = tuple[int, int, int]


class Run(NamedTuple):
    """`repeats` neighbouring stretches of `length` patches that attend within themselves: one attention call."""

    repeats: int
    length: int


class WindowLayout(NamedTuple):
    """Cells ordered window by window.

    `order` (cells,) says which cell stands at each place, `inverse` undoes it.
    """

    order: torch.Tensor
    inverse: torch.Tensor
    runs: list[Run]


def patch_positions(grids: Sequence[Grid], merge: int) -> torch.Tensor:
    """(patches, 2) int64: row and column of each patch in its frame."""
    parts = []
    for t, h, w in grids:
        rows = torch.arange(h).view(h // merge, 1, merge, 1).expand(-1, w // merge, -1, merge)
        columns = torch.arange(w).view(1, w // merge, 1, merge).expand(h // merge, -1, merge, -1)
        frame = torch.stack([rows.reshape(-1), columns.reshape(-1)], dim=-1)
        parts.append(frame.repeat(t, 1))
    return torch.cat(parts)


def frame_runs(grids: Sequence[Grid]) -> list[Run]:
    """Frames attend within themselves; neighbouring frames of one size share a call."""
    lengths = [h * w for t, h, w in grids for _ in range(t)]
    return [Run(sum(1 for _ in group), length) for length, group in groupby(lengths)]


def window_layout(grids: Sequence[Grid], merge: int, cells_per_side: int, *, by_size: bool = True) -> WindowLayout:
    """Windows of `cells_per_side`² cells, cut off at the right and bottom edges of a frame. With `by_size` those of one
    size lie together, whatever frame they are from; else those of a frame do, and neighbours of one size are a run."""
    ids = []  # per cell: the number of its window
    first = 0
    for t, h, w in grids:
        rows, columns = h // merge, w // merge
        across = -(-columns // cells_per_side)
        down = -(-rows // cells_per_side)
        y = torch.arange(rows).div(cells_per_side, rounding_mode="floor")
        x = torch.arange(columns).div(cells_per_side, rounding_mode="floor")
        frame = (y[:, None] * across + x).view(-1)
        frames = torch.arange(t)[:, None] * (across * down) + frame + first
        ids.append(frames.view(-1))
        first += t * across * down
    window = torch.cat(ids)
    sizes = torch.bincount(window, minlength=first)
    # By size, then by window, then as they were.
    order = (sizes[window] * first + window if by_size else window).argsort(stable=True)
    inverse = torch.empty_like(order)
    inverse[order] = torch.arange(len(order))
    in_turn = sizes.sort().values if by_size else sizes
    runs = [Run(sum(1 for _ in group), size * merge**2) for size, group in groupby(in_turn.tolist())]
    return WindowLayout(order, inverse, runs)


def interpolation_taps(grids: Sequence[Grid], merge: int, side: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Bilinear taps into a learned `side` × `side` position grid whose corners meet the frame's corners.

    Returns indices (patches, 4) int64 and weights (patches, 4) float32.
    """
    indices, weights = [], []
    positions = patch_positions([(1, h, w) for _, h, w in grids], merge)
    start = 0
    for t, h, w in grids:
        rows, columns = positions[start : start + h * w].float().unbind(-1)
        start += h * w
        top, bottom, y = _axis_taps(rows, h, side)
        left, right, x = _axis_taps(columns, w, side)
        index = torch.stack([top * side + left, top * side + right, bottom * side + left, bottom * side + right], -1)
        weight = torch.stack([(1 - y) * (1 - x), (1 - y) * x, y * (1 - x), y * x], dim=-1)
        indices.append(index.repeat(t, 1))
        weights.append(weight.repeat(t, 1))
    return torch.cat(indices), torch.cat(weights)


def _axis_taps(position: torch.Tensor, size: int, side: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Lower tap, upper tap and the upper one's share, for patches at `position` of `size` along one axis."""
    source = position * (side - 1) / max(size - 1, 1)
    low = source.floor()
    lower = low.long().clamp(0, side - 1)
    return lower, (lower + 1).clamp(max=side - 1), source - low
