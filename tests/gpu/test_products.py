"""Products of few rows against float64, over odd shapes, with everything that is folded into them."""

from __future__ import annotations

import pytest
import torch

from tests.gpu.conftest import ON_GPU
from visavis.engine.kernels.triton import twins
from visavis.engine.kernels.triton.launch import DecodeScratch, Folded, Launcher
from visavis.engine.kernels.triton.tiles import pad

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
    apart = norm is not None and rows > 1  # what several rows are given has been through its norm
    Launcher(device).product(
        kind, twins.rms_norm(x, norm, 1e-6) if apart and norm is not None else x, weight, out, bias=bias,
        norm=None if apart else norm, eps=1e-6, residual=held is not None, silu="silu" in kind,
        scratch=scratch,
    )  # fmt: skip
    wide = {name: None if t is None else t.double() for name, t in (("bias", bias), ("norm", norm), ("residual", held))}
    expected = twins.product(x.double(), weight.double(), eps=1e-6, silu="silu" in kind, **wide)  # type: ignore[arg-type]
    error = (out.float() - expected).norm() / expected.norm()
    assert error < (1e-5 if dtype == torch.float32 else 1.2e-2)
    assert not scratch.arrived.any(), "counters are left for the next launch"


@pytest.mark.parametrize("dtype", DTYPES, ids=["float32", "bfloat16"])
@pytest.mark.parametrize("rows", [2, 5, 8, 16, 33, 64] if ON_GPU else [3, 33])
@pytest.mark.parametrize(
    "shapes",
    [(96, 130, 40), (1536, 1536, 264), (8960, 1536, 64)] if ON_GPU else [(64, 48, 20), (2100, 48, 20)],
    ids=str,
)
@pytest.mark.parametrize("silu", [False, True], ids=["plain", "silu"])
@pytest.mark.parametrize("kind", ["output", "down"])  # alone, and several programs that share a sum
def test_a_norm_folded_into_the_products_around_it(
    kind: str, silu: bool, shapes: tuple[int, int, int], rows: int, dtype: torch.dtype, device: torch.device
) -> None:
    k, n, after = shapes
    x, held = torch.randn(rows, k, device=device).to(dtype), torch.randn(rows, n, device=device).to(dtype)
    first = (torch.randn(n, k, device=device) * k**-0.5).to(dtype)
    second = (torch.randn(2 * after if silu else after, n, device=device) * n**-0.5).to(dtype)
    gain = (torch.rand(n, device=device) + 0.5).to(dtype)
    scratch = DecodeScratch.make(64 * 64 * 8 * (n + 64), max(n, after), device)
    nan = float("nan")
    folded = Folded(torch.full((rows, n), nan, device=device, dtype=dtype), torch.full((n, 64), nan, device=device))
    out = held.clone()
    run = Launcher(device)
    run.product(kind, x, first, out, residual=True, scratch=scratch, fold=(folded, gain))
    error = (out.float() - twins.product(x, first, residual=held)).norm() / out.float().norm()
    assert error < (1e-5 if dtype == torch.float32 else 1.2e-2)
    result = torch.full((rows, after), nan, device=device, dtype=dtype)
    run.product("qkv", folded.x, second, result, eps=1e-6, silu=silu, scratch=scratch, folded=folded)
    expected = twins.product(out, second, norm=gain, eps=1e-6, silu=silu)
    assert (result.float() - expected).norm() / expected.norm() < (1e-5 if dtype == torch.float32 else 1.2e-2)


@pytest.mark.parametrize("dtype", DTYPES, ids=["float32", "bfloat16"])
@pytest.mark.parametrize(
    "heads", [(12, 2, 128), (4, 1, 64), (8, 8, 16)] if ON_GPU else [(3, 1, 16), (6, 3, 16)], ids=str
)
@pytest.mark.parametrize("context", [0, 63, 64, 65, 500, 513, 1024, 1025, 3000] if ON_GPU else [0, 130, 1030])
@pytest.mark.parametrize("residual", [True, False])
def test_the_product_behind_attention_joins_its_parts(
    residual: bool, context: int, heads: tuple[int, int, int], dtype: torch.dtype, device: torch.device
) -> None:
    h, k, d = heads
    n = 40
    cache = torch.randn(context + 16, 2 * k, d, device=device).to(dtype)
    qkv = torch.randn(1, h + 2 * k, d, device=device).to(dtype)
    weight = (torch.randn(n, h * d, device=device) * (h * d) ** -0.5).to(dtype)
    bias, held = torch.randn(n, device=device).to(dtype), torch.randn(1, n, device=device).to(dtype)
    table = torch.arange(context + 16, dtype=torch.int32, device=device)[None]
    zero = torch.zeros(1, dtype=torch.int32, device=device)
    still = (zero, torch.ones(1, d // 2, device=device), torch.zeros(1, d // 2, device=device))
    run = Launcher(device)
    scratch = DecodeScratch.make(k * 32 * 16 * (pad(d, 16) + 2), max(k, n), device)
    scratch.partial.fill_(float("nan"))
    attended = torch.full((1, h * d), float("nan"), device=device, dtype=dtype)
    parts = run.decode_attention(
        qkv, cache, attended, table, zero, zero + context, block_size=1, scratch=scratch, turn=still, splits=32,
        later=True,
    )  # fmt: skip
    assert parts is not None
    out = held.clone()
    run.product("output", attended, weight, out, bias=bias, residual=residual, scratch=scratch, parts=parts)
    seen = torch.cat((cache[:context], qkv[:, h:]))
    expected = twins.product(
        twins.attention(qkv[:, :h], seen, context), weight, bias=bias, residual=held if residual else None
    )
    error = (out.float() - expected).norm() / expected.norm()
    assert error < (1e-5 if dtype == torch.float32 else 1.2e-2 if ON_GPU else 3e-2)
    assert not scratch.arrived.any()
