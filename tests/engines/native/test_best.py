"""The compiled search for the largest logit against torch's."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch

from tests.engines.native.compiled import need_compiled_kernels
from visavis.engine.kernels.cpu.kernels import CpuKernels

pytestmark = pytest.mark.engines

need_compiled_kernels()


@pytest.fixture
def kernels() -> Iterator[CpuKernels]:
    made = CpuKernels(torch.device("cpu"), torch.float32, "", 1)
    yield made
    made.workers.close()


@pytest.mark.parametrize("vocab", [1, 3, 15, 16, 17, 100, 4099])
@pytest.mark.parametrize("rows", [1, 2, 9])
def test_best_is_the_first_of_the_largest(kernels: CpuKernels, rows: int, vocab: int) -> None:
    generator = torch.Generator().manual_seed(vocab)
    for values in (3, 1 << 20):  # the smaller, the more are alike
        logits = torch.randint(-values, values, (rows, vocab), generator=generator).float()
        places, totals = kernels.best(logits)
        assert places.tolist() == [row.index(max(row)) for row in logits.tolist()]
        assert totals.tolist() == pytest.approx(logits.double().sum(-1).tolist(), abs=1e-6 * values * vocab)


@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [0, 20, 32])
def test_a_total_tells_that_a_logit_is_not_finite(kernels: CpuKernels, broken: float, place: int) -> None:
    logits = torch.zeros(2, 33)
    logits[1, place] = broken
    places, totals = kernels.best(logits)
    assert totals.isfinite().tolist() == [True, False]
    assert all(0 <= place < 33 for place in places.tolist())
