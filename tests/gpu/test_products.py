"""Products of few rows against float64, over odd shapes, with everything that is folded into them."""

from __future__ import annotations

import pytest
import torch

from tests.gpu.conftest import ON_GPU
from visavis.engine.kernels.triton import twins
from visavis.engine.kernels.triton.launch import DecodeScratch, Launcher

SHAPES = [(64, 48), (80, 33), (2100, 20)] + ([(96, 130), (1536, 264), (8960, 1536), (3584, 4608)] if ON_GPU else [])
ROWS = [1, 2, 3, 5, 7, 8, 16, 33, 64] if ON_GPU else [1, 3]
DTYPES = [torch.float32, torch.bfloat16]


@pytest.mark.parametrize("dtype", DTYPES, ids=["float32", "bfloat16"])
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", ["plain", "norm-bias", "residual", "norm-silu"])
def test_product_equals_twin(
    kind: str, shape: tuple[int, int], rows: int, dtype: torch.dtype, device: torch.device
) -> None:
    k, n = shape
    x = torch.randn(rows, k, device=device).to(dtype)
    weight = (torch.randn(2 * n if kind == "norm-silu" else n, k, device=device) * k**-0.5).to(dtype)
    norm = (torch.rand(k, device=device) + 0.5).to(dtype) if "norm" in kind else None
    bias = torch.randn(weight.shape[0], device=device).to(dtype) if "bias" in kind else None
    out = torch.full((rows, n), float("nan"), device=device, dtype=dtype)
    held = torch.randn(rows, n, device=device).to(dtype) if kind == "residual" else None
    if held is not None:
        out.copy_(held)
    scratch = DecodeScratch.make(64 * 64 * 8 * (n + 64), n, device)
    Launcher(device).product(
        kind, x, weight, out, bias=bias, norm=norm, eps=1e-6, residual=held is not None, silu="silu" in kind,
        scratch=scratch,
    )  # fmt: skip
    wide = {name: None if t is None else t.double() for name, t in (("bias", bias), ("norm", norm), ("residual", held))}
    expected = twins.product(x.double(), weight.double(), eps=1e-6, silu="silu" in kind, **wide)  # type: ignore[arg-type]
    error = (out.float() - expected).norm() / expected.norm()
    assert error < (1e-5 if dtype == torch.float32 else 1.2e-2)
    assert not scratch.arrived.any(), "counters are left for the next launch"
