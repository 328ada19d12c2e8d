"""Norm, rotation and gate of the CPU kernels against the same in float64."""

from __future__ import annotations

import pytest
import torch

from tests.engines.native.compiled import need_compiled_kernels
from visavis.engine.kernels.base import Rotation
from visavis.engine.kernels.cpu.kernels import CpuKernels

pytestmark = pytest.mark.engines

need_compiled_kernels()


@pytest.mark.parametrize("rows", [1, 3, 49, 700])
@pytest.mark.parametrize("width", [64, 576, 72])
def test_rows_equal_float64_arithmetic(rows: int, width: int) -> None:
    """72 is no multiple of 16: torch does its norm and gate."""
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


@pytest.mark.parametrize("size", [64, 72])
def test_norm_of_some_heads_of_each_token(size: int) -> None:
    """As queries or keys lie, also in place."""
    kernels = CpuKernels(torch.device("cpu"), torch.bfloat16, "test", 1)
    generator = torch.Generator().manual_seed(1)
    norm = kernels.rms_norm(size, 1e-5)
    norm.weight.copy_(torch.rand(size, generator=generator) + 0.5)
    qkv = torch.randn(300, 5, size, generator=generator)
    wide = qkv[:, 1:4].double()
    expected = wide / (wide.square().mean(-1, keepdim=True) + 1e-5).sqrt() * norm.weight.double()
    new = norm(qkv[:, 1:4])
    torch.testing.assert_close(new.double(), expected, atol=2e-6, rtol=2e-6)
    kept = qkv[:, [0, 4]]
    kernels.normalise_(qkv[:, 1:4], norm)
    assert torch.equal(qkv[:, 1:4], new)
    assert torch.equal(qkv[:, [0, 4]], kept)
    kernels.workers.close()


def test_norm_of_a_token_alone_rounds_as_among_others() -> None:
    kernels = CpuKernels(torch.device("cpu"), torch.bfloat16, "test", 1)
    norm = kernels.rms_norm(64, 1e-5)
    norm.weight.fill_(0.7)
    heads = torch.randn(100, 5, 64, generator=torch.Generator().manual_seed(1))[:, 1:4]
    alone = torch.cat([norm(token) for token in heads.split(1)])
    assert torch.equal(norm(heads), alone)
    kernels.workers.close()


def test_norm_of_another_dtype() -> None:
    kernels = CpuKernels(torch.device("cpu"), torch.bfloat16, "test", 1)
    norm = kernels.rms_norm(64, 1e-5)
    norm.weight.fill_(2)
    x = torch.randn(3, 64, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    torch.testing.assert_close(norm(x), x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * 2, atol=2e-6, rtol=2e-6)
    kernels.workers.close()
