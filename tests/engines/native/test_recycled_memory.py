"""Memory is given out again when nobody holds it, and not before."""

from __future__ import annotations

import torch

from visavis.engine.kernels.cpu.recycled import RecycledMemory


def test_what_is_held_is_not_given_out_again() -> None:
    memory = RecycledMemory()
    first = memory.empty(1000, 300)
    assert first.shape == (1000, 300)
    assert first.dtype == torch.float32
    assert first.is_contiguous()
    first.fill_(1)
    part = first[10:20].view(-1)
    del first  # a view keeps it
    second = memory.empty(1000, 300).fill_(2)
    assert (part == 1).all()
    place = part.data_ptr() - 10 * 300 * 4
    del part
    third = memory.empty(500, 300)
    assert third.data_ptr() == place
    third.fill_(3)
    assert (second == 2).all()


def test_a_block_grows_in_place_of_those_that_are_too_small() -> None:
    memory = RecycledMemory()
    del_me = [memory.empty(100_000) for _ in range(3)]
    assert len(memory._blocks) == 3
    held = del_me.pop()
    del_me.clear()
    large = memory.empty(300_000).fill_(4)
    assert len(memory._blocks) == 2, "the free ones made room, the held one stays"
    held.fill_(5)
    assert (large == 4).all()


def test_the_best_fit_is_taken_and_small_ones_are_not_kept() -> None:
    memory = RecycledMemory()
    small, large = memory.empty(50_000), memory.empty(500_000)
    places = small.data_ptr(), large.data_ptr()
    del small, large
    again = memory.empty(40_000)
    assert again.data_ptr() == places[0]
    assert memory.empty(450_000).data_ptr() == places[1]
    assert memory.empty(8).shape == (8,)
    assert len(memory._blocks) == 2
