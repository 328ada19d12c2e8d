"""Norm, rotation and gate of the CPU kernels against the same in float64."""

from __future__ import annotations

import pytest
import torch

from visavis.engine.kernels.base import Rotation
from visavis.engine.kernels.cpu.build import BuildError, find_library
from visavis.engine.kernels.cpu.kernels import CpuKernels

pytestmark = pytest.mark.engines

try:
    find_library()
except BuildError as error:
    pytest.skip(f"no compiled CPU kernels here: {error}", allow_module_level=True)


@pytest.mark.parametrize("rows", [1, 3, 49, 700])
@pytest.mark.parametrize("width", [64, 576, 72])
def test_rows_equal_float64_arithmetic(rows: int, width: int) -> None:
    """72 is no whole number of vectors: torch does those."""
    kernels = CpuKernels(torch.device("cpu"), torch.bfloat16, "test", 1)
    generator = torch.Generator().manual_seed(rows)
    x = torch.randn(rows, width, generator=generator)
    norm = kernels.rms_norm(width, 1e-5)
    norm.weight.copy_(torch.rand(width, generator=generator) + 0.5)
    wide = x.double()
    expected = wide / (wide.square().mean(-1, keepdim=True) + 1e-5).sqrt() * norm.weight.double()
    torch.testing.assert_close(norm(x).double(), expected, atol=2e-6, rtol=2e-6)
    both = torch.randn(rows, 2 * width, generator=generator) * 10
    gate, up = both.double().chunk(2, dim=1)
    torch.testing.assert_close(kernels.silu_mul(both).double(), gate * gate.sigmoid() * up, atol=2e-5, rtol=1e-5)
    heads = torch.randn(rows, 5, width, generator=generator)  # the last two stay as they are
    angles = torch.rand(rows, 1, width // 2, generator=generator) * 6
    cos, sin = angles.cos(), angles.sin()
    turn = Rotation(torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1))
    first, second = heads[:, :3].double().chunk(2, dim=-1)
    expected = torch.cat(
        (first * cos.double() - second * sin.double(), second * cos.double() + first * sin.double()), -1
    )
    kept = heads[:, 3:].clone()
    kernels.rotate_(heads[:, :3], turn)
    torch.testing.assert_close(heads[:, :3].double(), expected, atol=2e-6, rtol=1e-6)
    assert torch.equal(heads[:, 3:], kept)
    kernels.workers.close()
