"""Index arithmetic of the vision towers on grids small enough to write down."""

from __future__ import annotations

import pytest
import torch

from visavis.engine.models.vision_layout import (
    Run,
    frame_runs,
    interpolation_taps,
    patch_positions,
    window_layout,
)


def test_patches_of_a_cell_come_together() -> None:
    assert patch_positions([(1, 2, 4)], 2).tolist() == [
        [0, 0], [0, 1], [1, 0], [1, 1],
        [0, 2], [0, 3], [1, 2], [1, 3],
    ]  # fmt: skip
    assert patch_positions([(2, 2, 2), (1, 2, 2)], 2).tolist() == patch_positions([(1, 2, 2)], 2).tolist() * 3


def test_frames_of_one_size_share_a_call() -> None:
    assert frame_runs([(3, 4, 6), (1, 6, 4), (1, 2, 2), (1, 4, 6)]) == [Run(4, 24), Run(1, 4), Run(1, 24)]


def test_windows_are_cut_at_the_edges_and_sorted_by_size() -> None:
    """3 × 5 cells in windows of 2 × 2: sizes 4 4 2 / 2 2 1."""
    layout = window_layout([(1, 6, 10)], merge=2, cells_per_side=2)
    assert layout.runs == [Run(1, 4), Run(3, 8), Run(2, 16)]
    assert layout.order.tolist() == [14, 4, 9, 10, 11, 12, 13, 0, 1, 5, 6, 2, 3, 7, 8]
    assert layout.order[layout.inverse].tolist() == list(range(15))


def test_windows_never_cross_frames_or_images() -> None:
    layout = window_layout([(2, 2, 2), (1, 2, 2)], merge=2, cells_per_side=4)
    assert layout.runs == [Run(3, 4)]


@pytest.mark.parametrize("grid", [(1, 4, 6), (2, 2, 2), (1, 16, 8), (1, 20, 34)])
def test_position_taps_equal_bilinear_interpolation(grid: tuple[int, int, int]) -> None:
    """Against torch's own `interpolate` with aligned corners, reordered cell by cell."""
    side, t, h, w = 6, *grid
    table = torch.randn(side * side, 5, generator=torch.Generator().manual_seed(0))
    indices, weights = interpolation_taps([grid], 2, side)
    ours = (table[indices] * weights[:, :, None]).sum(1)
    image = table.T.view(1, 5, side, side)
    resized = torch.nn.functional.interpolate(image, (h, w), mode="bilinear", align_corners=True)[0]
    rows, columns = patch_positions([grid], 2).unbind(-1)
    assert ours.shape == (t * h * w, 5)
    torch.testing.assert_close(ours, resized[:, rows, columns].T, atol=1e-5, rtol=1e-5)
