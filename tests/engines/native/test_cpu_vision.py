"""A vision tower's norm, activations and attention on the CPU against the same in float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tests.engines.native.compiled import need_compiled_kernels
from visavis.engine.kernels.base import Rotation
from visavis.engine.kernels.cpu.kernels import CpuKernels
from visavis.engine.kernels.vision import VisionOps
from visavis.engine.models.vision_layout import Run

pytestmark = pytest.mark.engines

need_compiled_kernels()


@pytest.fixture
def kernels() -> CpuKernels:
    return CpuKernels(torch.device("cpu"), torch.float32, "test", 1)


@pytest.mark.parametrize("size", [16, 1280, 72])
def test_layer_norm(kernels: CpuKernels, size: int) -> None:
    generator = torch.Generator().manual_seed(size)
    norm = kernels.layer_norm(size, 1e-6)
    norm.weight.copy_(torch.rand(size, generator=generator) + 0.5)
    norm.bias.copy_(torch.randn(size, generator=generator))
    x = torch.randn(300, size, generator=generator) * 3 + 100  # the mean must go before the squares are summed
    expected = F.layer_norm(x.double(), (size,), norm.weight.double(), norm.bias.double(), 1e-6)
    torch.testing.assert_close(norm(x).double(), expected, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["quick_gelu", "gelu_pytorch_tanh", "gelu", "silu"])
@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (700, 96)])
def test_activations(kernels: CpuKernels, name: str, shape: tuple[int, int]) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1)) * 4
    x[0, 0] = 40
    x[-1, -1] = -90
    wide = x.double()
    expected = {
        "quick_gelu": wide * (1.702 * wide).sigmoid(),
        "gelu_pytorch_tanh": F.gelu(wide, approximate="tanh"),
        "gelu": F.gelu(wide),
        "silu": F.silu(wide),
    }[name]
    got = kernels.vision(16).activate(name, x.clone())
    torch.testing.assert_close(got.double(), expected, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize(("heads", "head_dim"), [(4, 16), (2, 72), (3, 80), (1, 128), (2, 20)])
def test_attention_within_stretches(kernels: CpuKernels, heads: int, head_dim: int) -> None:
    """Around the borders of blocks of queries and keys; heads of 20 are left to torch."""
    generator = torch.Generator().manual_seed(head_dim)
    runs = [Run(3, 1), Run(2, 31), Run(1, 33), Run(1, 64), Run(2, 65), Run(1, 300), Run(1, 129)]
    n = sum(run.repeats * run.length for run in runs)
    qkv = torch.randn(n, 3, heads, head_dim, generator=generator)
    angles = torch.rand(n, 1, head_dim // 2, generator=generator) * 6
    cos, sin = angles.cos(), angles.sin()
    turn = Rotation(torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1))
    ops, plain = kernels.vision(head_dim), VisionOps(kernels)
    wide = qkv.double()
    for part in (0, 1):
        a, b = wide[:, part].chunk(2, dim=-1)
        wide[:, part] = torch.cat((a * cos - b * sin, b * cos + a * sin), -1)
    expected, start = [], 0
    for run in runs:
        for _ in range(run.repeats):
            q, k, v = wide[start : start + run.length].permute(1, 2, 0, 3)
            weights = (q @ k.transpose(1, 2) * head_dim**-0.5).softmax(-1)
            expected.append((weights @ v).transpose(0, 1).flatten(1))
            start += run.length
    got = ops.attend(qkv.clone(), turn, ops.order(runs))
    torch.testing.assert_close(got.double(), torch.cat(expected), atol=5e-6, rtol=1e-5)
    torch.testing.assert_close(got, plain.attend(qkv.clone(), turn, plain.order(runs)), atol=1e-5, rtol=1e-5)


def test_stretches_that_are_not_these_patches_are_refused(kernels: CpuKernels) -> None:
    ops = kernels.vision(16)
    turn = Rotation(torch.ones(10, 1, 16), torch.zeros(10, 1, 16))
    with pytest.raises(ValueError, match="8 patches"):
        ops.attend(torch.zeros(10, 3, 2, 16), turn, ops.order([Run(2, 4)]))
