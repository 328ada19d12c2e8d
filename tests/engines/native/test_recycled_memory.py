"""Memory is given out again when nobody holds it, and not before."""

from __future__ import annotations

import pytest
import torch

from visavis.engine.kernels.cpu import recycled
from visavis.engine.kernels.cpu.arena import ALIGNMENT
from visavis.engine.kernels.cpu.recycled import RecycledMemory


def test_what_is_held_is_not_given_out_again() -> None:
    memory = RecycledMemory()
    first = memory.empty(1000, 300)
    assert first.shape == (1000, 300)
    assert first.dtype == torch.float32
    assert first.is_contiguous()
    assert first.data_ptr() % ALIGNMENT == 0
    first.fill_(1)
    part = first[10:20].view(-1)
    del first  # a view keeps it
    second = memory.empty(1000, 300).fill_(2)
    assert (part == 1).all()
    place = part.data_ptr() - 10 * 300 * 4
    del part
    third = memory.empty(900, 300)
    assert third.data_ptr() == place
    third.fill_(3)
    assert (second == 2).all()


def test_a_block_grows_in_place_of_those_that_are_too_small() -> None:
    memory = RecycledMemory()
    block, large_block = 4 * 500_000 + ALIGNMENT, 4 * 1_000_000 + ALIGNMENT
    made = [memory.empty(500_000) for _ in range(3)]
    assert memory.num_bytes == 3 * block
    held = made.pop()
    made.clear()
    large = memory.empty(1_000_000).fill_(4)
    assert memory.num_bytes == block + large_block, "the free ones made room, the held one stays"
    held.fill_(5)
    assert (large == 4).all()
    memory.give_back()
    assert memory.num_bytes == block + large_block
    del large
    memory.give_back()
    assert memory.num_bytes == block


def test_the_best_fit_is_taken_and_small_ones_are_not_kept() -> None:
    memory = RecycledMemory()
    small, large = memory.empty(500_000), memory.empty(5_000_000)
    places = small.data_ptr(), large.data_ptr()
    held = memory.num_bytes
    del small, large
    again = memory.empty(400_000)
    assert again.data_ptr() == places[0]
    assert memory.empty(4_500_000).data_ptr() == places[1]
    assert memory.empty(8).shape == (8,)
    assert memory.num_bytes == held


def test_what_nothing_needs_for_long_goes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recycled, "PATIENCE", 3)
    memory = RecycledMemory()
    memory.empty(5_000_000)
    for _ in range(3):
        memory.empty(400_000)
        assert memory.num_bytes > 20_000_000, "a block of far more than is asked for is not taken, and stays a while"
    memory.empty(400_000)
    assert memory.num_bytes < 2_000_000
