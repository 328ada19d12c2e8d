"""Where the CPU's weights lie."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from visavis.engine.kernels.cpu.arena import ALIGNMENT, CHUNK_BYTES, HUGE_PAGE, Arena

THP = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def _smaps_of(address: int) -> dict[str, str]:
    """What Linux says of the mapping that holds `address`."""
    fields: dict[str, str] = {}
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, _, rest = line.partition(" ")
        if not name.endswith(":"):
            start, _, end = name.partition("-")
            inside = int(start, 16) <= address < int(end, 16)
        elif inside:
            fields[name[:-1]] = rest.strip()
    return fields


@pytest.mark.skipif(
    not sys.platform.startswith("linux") or not THP.exists() or "[never]" in THP.read_text(),
    reason="no transparent huge pages on this machine",
)
def test_weights_may_lie_on_huge_pages() -> None:
    tensor = Arena().empty((4 * HUGE_PAGE,), torch.uint8)
    assert tensor.data_ptr() % HUGE_PAGE == 0
    found = _smaps_of(tensor.data_ptr())
    if "THPeligible" not in found:
        pytest.skip("this kernel does not tell")
    assert found["THPeligible"] == "1"


def test_tensors_begin_at_cache_lines_and_do_not_overlap() -> None:
    arena = Arena()
    shapes = [(3, 5), (1,), (7, 11), (CHUNK_BYTES // 4,), (2, 3)]  # one that needs a mapping of its own
    tensors = [arena.empty(shape, torch.float32).fill_(i) for i, shape in enumerate(shapes)]
    for i, (shape, tensor) in enumerate(zip(shapes, tensors, strict=True)):
        assert tensor.shape == shape
        assert tensor.data_ptr() % ALIGNMENT == 0
        assert bool((tensor == i).all())
