"""Products with quantised weights against float64, over odd shapes, groups and rows, with all that is folded in."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.engines.native.drive import greedy, make_engine
from tests.engines.native.reference import Reference, Tally
from tests.engines.native.test_quantized_weights import FORMATS as FOLDERS
from tests.engines.native.test_quantized_weights import quantised
from tests.gpu.conftest import ON_GPU
from visavis.engine.config import EngineSettings
from visavis.engine.kernels.cuda.kernels import CudaKernels
from visavis.engine.kernels.triton import twins
from visavis.engine.kernels.triton.launch import DecodeScratch, Launcher
from visavis.engine.kernels.triton.launch_quantized import QuantizedLauncher
from visavis.engine.model_config import ModelConfig
from visavis.engine.quantization.codes import quantize
from visavis.engine.quantization.weight import QuantizedWeight

FORMATS = {"int8": (8, 0), "int8-128": (8, 128), "int4-128": (4, 128), "int4-64": (4, 64), "int4-32": (4, 32)}
SHAPES = [(64, 48), (96, 33), (384, 20)] + (
    [(2112, 130), (1536, 264), (8960, 1536), (3584, 4608), (18944, 100)] if ON_GPU else []
)
ROWS = [1, 2, 3, 8, 16, 33, 64, 65, 200, 300] if ON_GPU else [1, 3]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def make(n: int, k: int, bits: int, group: int, device: torch.device) -> QuantizedWeight:
    size = group or k
    if k % size:
        size = 32  # the last group of the largest size would not be whole
    weight = QuantizedWeight.empty(
        n, k, bits=bits, group=size, scale_dtype=torch.float32 if group == 0 else torch.float16, device=device
    )
    weight.store(quantize(torch.randn(n, k, device=device) * k**-0.5, bits, size))
    return weight


@pytest.mark.parametrize("dtype", DTYPES, ids=["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parametrize("kind", ["plain", "norm-bias", "residual", "norm-silu"])
def test_product_equals_twin(
    kind: str, format_: str, shape: tuple[int, int], rows: int, dtype: torch.dtype, device: torch.device
) -> None:
    k, n = shape
    weight = make(2 * n if kind == "norm-silu" else n, k, *FORMATS[format_], device)
    x = torch.randn(rows, k, device=device).to(dtype)
    norm = (torch.rand(k, device=device) + 0.5).to(dtype) if "norm" in kind and rows == 1 else None
    bias = torch.randn(weight.shape[0], device=device).to(dtype) if "bias" in kind else None
    held = torch.randn(rows, n, device=device).to(dtype) if kind == "residual" else None
    out = torch.full((rows, n), float("nan"), device=device, dtype=dtype)
    if held is not None:
        out.copy_(held)
    scratch = DecodeScratch.make(64 * 64 * 8 * (n + 64), n + 64, device)
    launcher = QuantizedLauncher(Launcher(device))
    if not launcher.fuses(rows, dtype):
        pytest.skip("goes through `linear`")
    launcher.product(
        kind, x, weight, out, bias=bias, norm=norm, eps=1e-6, residual=held is not None, silu="silu" in kind,
        scratch=scratch,
    )  # fmt: skip
    wide = {name: None if t is None else t.double() for name, t in (("bias", bias), ("norm", norm), ("residual", held))}
    dense = weight.dequantize(torch.float64)
    expected = twins.product(x.double(), dense, eps=1e-6, silu="silu" in kind, **wide)  # type: ignore[arg-type]
    error = (out.double() - expected).norm() / expected.norm()
    assert error < (3e-5 if dtype == torch.float32 else 1.2e-2)
    assert not scratch.arrived.any(), "counters are left for the next launch"


@pytest.mark.parametrize("dense_rows", [1, 1000])
@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parametrize("residual", [False, True])
def test_linear_equals_twin_dense_and_fused(
    residual: bool, format_: str, dense_rows: int, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dense a part at a time, of 128 rows here, the last one smaller."""
    monkeypatch.setattr("visavis.engine.kernels.triton.launch_quantized.DENSE_BYTES", 1)
    k, n, rows = (384, 300, 5) if ON_GPU else (96, 150, 3)
    weight = make(n, k, *FORMATS[format_], device)
    order = torch.randperm(k, device=device)
    weight.set_order(order)
    x, bias = torch.randn(rows, k, device=device), torch.randn(n, device=device)
    held = torch.randn(rows, n, device=device)
    launcher = QuantizedLauncher(Launcher(device))
    launcher.dense_rows = dense_rows
    out = launcher.linear(x, weight, bias, held.clone() if residual else None)
    expected = twins.product(
        x.double(), weight.dequantize(torch.float64), bias=bias.double(), residual=held.double() if residual else None
    )
    assert (out - expected).norm() / expected.norm() < 3e-5


ENGINES = ["awq", "gptq-desc_act", "gptq-8-bits", "int8", "int4"] if ON_GPU else ["gptq-desc_act", "int4"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    return Reference("qwen2", tmp_path_factory.mktemp("qwen2"))


@pytest.mark.parametrize("name", ENGINES)
def test_engine_answers_as_the_dense_matrices(
    name: str, model: Reference, device: torch.device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checkpoints as transformers on the matrices they stand for; weights made at load as plain torch with the same
    codes. Alone and together, so that one row, few rows and prompts all have their kernels."""
    made = quantised(model, tmp_path / name, FOLDERS[name]) if name in FOLDERS else model
    settings = {"max_num_seqs": 8, "max_model_len": 256, "dtype": "float32"}
    settings |= {} if name in FOLDERS else {"quantization": name}
    prompts = [made.prompt([length], seed=length) for length in (5, 3, 40)]
    tokens = 16 if ON_GPU else 4
    if name in FOLDERS:
        answers = [made.answer(prompt, max_tokens=tokens) for prompt in prompts]
    plain = make_engine(made, device="cpu", kernels="torch", **settings)
    wanted = greedy(plain, prompts, max_tokens=tokens)
    plain.close()
    if not ON_GPU:

        def interpreted(config: ModelConfig, settings: EngineSettings) -> CudaKernels:
            kernels = CudaKernels(settings.device, settings.dtype, "interpreted")
            assert settings.scheme is not None
            kernels.quantize(settings.scheme)
            return kernels

        monkeypatch.setattr("visavis.engine.engine.choose_kernels", interpreted)
    engine = make_engine(made, device=device.type, **settings)
    together = greedy(engine, prompts, max_tokens=tokens)
    alone = greedy(engine, prompts[:1], max_tokens=tokens)
    assert engine.ahead is not None
    engine.close()
    tally = Tally()
    for i, ours in enumerate(together):
        if name in FOLDERS:
            tally.check(name, ours, answers[i])
        else:
            assert ours == wanted[i]
    assert alone[0] == together[0]
