"""Two ranks on the GPU kernels: decoding ahead in graphs that hold sums over ranks. Needs two GPUs, or, without any,
Triton's interpreter, whose ranks are processes on the CPU."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.engines.native.drive import drain, greedy, make_engine
from tests.engines.native.reference import Part, Reference, Tally
from tests.gpu.conftest import ON_GPU
from tests.reference.tiny_models import FAMILIES, VL_FAMILIES
from visavis.engine import NativeEngine
from visavis.engine.kernels.cuda.kernels import CudaKernels
from visavis.engine.parallel import group as group_module
from visavis.engine.parallel.decode import ParallelAhead
from visavis.sampling import ResolvedSampling

pytestmark = pytest.mark.skipif(ON_GPU and torch.cuda.device_count() < 2, reason="needs two GPUs")

TOKENS = 48 if ON_GPU else 4
TEXT: list[list[Part]] = [[1], [33], [300]] if ON_GPU else [[1], [70]]  # more than one part of attention's keys
IMAGES: list[list[Part]] = [[4, ("image", (1, 4, 4)), 6]]
if ON_GPU:
    IMAGES.append([1, ("image", (1, 8, 6)), 7, ("video", (2, 4, 6)), 3, ("image", (1, 16, 8)), 2])
HERE = FAMILIES if ON_GPU else ("qwen2", "qwen3_vl")


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch, device: torch.device) -> Callable[..., NativeEngine]:
    def make(ref: Reference, **settings: Any) -> NativeEngine:
        if not ON_GPU:
            monkeypatch.setattr(
                "visavis.engine.engine.choose_kernels",
                lambda config, settings: CudaKernels(settings.device, settings.dtype, "interpreted"),
            )
            monkeypatch.setattr(group_module, "WORKER", "tests.gpu.interpreted_worker")
            monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parents[2]), *sys.path]))
        settings = {"device": device.type, "dtype": "float32", "max_num_seqs": 8, "max_model_len": 1024, **settings}
        return make_engine(ref, tensor_parallel_size=2, **settings)

    return make


@pytest.mark.parametrize("family", HERE)
def test_two_ranks_answer_as_transformers(
    family: str, engine: Callable[..., NativeEngine], tmp_path: Path, capsys: Any
) -> None:
    """And what rank 0 draws on the device is what the host's sampler draws, step by step, from the gathered logits."""
    ref = Reference(family, tmp_path / family)
    prompts = [ref.prompt(p, seed=i) for i, p in enumerate(TEXT + (IMAGES if family in VL_FAMILIES else []))]
    answers = [ref.answer(p, TOKENS) for p in prompts]
    subject = engine(ref)
    assert isinstance(subject.ahead, ParallelAhead)
    try:
        tally = Tally()
        for i, (ours, answer) in enumerate(zip(greedy(subject, prompts, TOKENS), answers, strict=True)):
            tally.check(f"prompt {i}", ours, answer)
        tally.check("prompt 1 alone", greedy(subject, prompts[1:2], TOKENS)[0], answers[1])
        drawn = []
        for extra in ({}, {"logprobs": 1}):
            for i, prompt in enumerate(prompts[:2]):
                asked = {"temperature": 0.9, "top_p": 0.8, "repetition_penalty": 1.2, "seed": i, **extra}
                subject.add_request(str(i), prompt, ResolvedSampling(max_tokens=TOKENS, **asked))  # type: ignore[arg-type]
            drawn.append([[t for t, _ in tokens] for tokens in drain(subject, 2)])
        assert drawn[0] == drawn[1]
    finally:
        subject.close()
    with capsys.disabled():
        print(f"\n{family}, two ranks: {tally}", end=" ")
