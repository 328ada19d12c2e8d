"""Beside the steps themselves: kernels made ready beforehand, and a decode step that finds too little memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.engines.native.drive import drain, make_engine
from tests.engines.native.reference import Reference
from tests.gpu.conftest import ON_GPU
from tests.reference.tiny_models import FAMILIES
from visavis.engine import NativeEngine
from visavis.engine.kernels.cuda.graphs import DecodeGraphs
from visavis.engine.kernels.cuda.kernels import CudaKernels
from visavis.engine.kernels.cuda.warm_up import WarmUp
from visavis.sampling import ResolvedSampling


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch, device: torch.device) -> Callable[..., NativeEngine]:
    """Engines on the kernels under test; without a GPU in the interpreter, on CPU memory."""

    def make(ref: Reference, **settings: Any) -> NativeEngine:
        if not ON_GPU:
            monkeypatch.setattr(
                "visavis.engine.engine.choose_kernels",
                lambda config, settings: CudaKernels(settings.device, settings.dtype, "interpreted"),
            )
        settings = {"device": device.type, "dtype": "float32", "max_num_seqs": 8, "max_model_len": 1024, **settings}
        return make_engine(ref, **settings)

    return make


@pytest.mark.parametrize("family", FAMILIES if ON_GPU else ("qwen2_5_vl",))
def test_every_kernel_can_be_made_ready_beforehand(
    family: str, engine: Callable[..., NativeEngine], device: torch.device, tmp_path: Path
) -> None:
    subject = engine(Reference(family, tmp_path))
    model, encoder = subject.runner.model, subject.runner.encoder
    assert subject.ahead is not None
    warming = WarmUp(device, threads=4 if ON_GPU else 1)  # the interpreter can do one thing at a time
    warming.prompts(model.kernels, model)  # type: ignore[arg-type]
    if encoder is not None:
        warming.pictures(encoder.tower)
    warming.decoding(subject.ahead.step)
    warming.wait()
    assert warming.errors == []
    if ON_GPU:
        subject.ahead.ready()
        assert model.kernels.warming.errors == []  # type: ignore[attr-defined]
    assert len(model.layers) > 1
    assert model.layers[0].kernels is model.kernels


def test_a_failure_beforehand_is_told_and_stops_nothing(device: torch.device) -> None:
    def fails() -> None:
        raise ValueError("no such kernel")

    warming = WarmUp(device)
    warming.add(fails)
    with pytest.warns(UserWarning, match="could not be made ready beforehand: .ValueError: no such kernel"):
        warming.wait()
    warming.wait()


@pytest.mark.parametrize("where", ["prepare", "run"])  # while the graph is captured, and when it is launched
@pytest.mark.parametrize("many", [1, 2, 3] if ON_GPU else [2])
def test_decode_steps_short_of_memory_go_on_without_their_graph(
    where: str, many: int, engine: Callable[..., NativeEngine], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Requests end one after the other, so that steps become small enough again."""
    ref = Reference("qwen2", tmp_path)
    prompts = [ref.prompt([length], seed=length) for length in (3, 9, 5)]
    lengths = (4, 7, 12) if ON_GPU else (3, 4, 6)
    wanted = [ref.answer(p).token_ids[:n] for p, n in zip(prompts, lengths, strict=True)]
    real = getattr(DecodeGraphs, where)
    found_too_little = []

    def short_of_memory(self: DecodeGraphs, size: int, mode: Any) -> None:
        if size >= many:
            found_too_little.append(size)
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nMore advice")
        real(self, size, mode)

    subject = engine(ref)
    monkeypatch.setattr(DecodeGraphs, where, short_of_memory)
    for i, (prompt, length) in enumerate(zip(prompts, lengths, strict=True)):
        subject.add_request(str(i), prompt, ResolvedSampling(max_tokens=length))
    with pytest.warns(UserWarning, match=r"memory ran out .*2.00 GiB.*without their CUDA graph.*lower .*max_num_seqs"):
        found = [[t for t, _ in tokens] for tokens in drain(subject, len(prompts))]
    assert found == wanted
    assert found_too_little
    assert subject.counters.out_of_memory == len(found_too_little) <= 3
    assert subject.pool.num_free == subject.pool.num_blocks
