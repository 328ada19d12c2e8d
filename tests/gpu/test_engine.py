"""The whole engine on its GPU kernels: greedy float32 equals transformers, and drawing equals the host's sampler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.engines.native.drive import drain, greedy, make_engine
from tests.engines.native.reference import Part, Reference, Tally
from tests.gpu.conftest import ON_GPU
from tests.reference.tiny_models import FAMILIES, VL_FAMILIES
from visavis.engine import NativeEngine
from visavis.engine.kernels.cuda.kernels import CudaKernels
from visavis.prompt import Prompt
from visavis.sampling import ResolvedSampling

TEXT: list[list[Part]] = [[1], [5], [33], [300]] if ON_GPU else [[1], [18]]
IMAGES: list[list[Part]] = [[4, ("image", (1, 4, 4)), 6]] + (
    [
        [3, ("image", (1, 4, 12)), 2, ("image", (1, 12, 4)), ("image", (1, 16, 8)), 5],
        [1, ("image", (1, 8, 6)), 7, ("video", (2, 4, 6)), 3, ("image", (1, 4, 4)), ("video", (2, 8, 4)), 2],
    ]
    if ON_GPU
    else []
)
MAX_TOKENS = 64 if ON_GPU else 4
HERE = FAMILIES if ON_GPU else ("qwen3", "qwen2_vl")  # the interpreter takes a second a token


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Reference]:
    made: dict[Any, Reference] = {}

    def get(family: str, **size: Any) -> Reference:
        key = (family, tuple(sorted(size.items())))
        if key not in made:
            made[key] = Reference(family, tmp_path_factory.mktemp(family), **size)
        return made[key]

    return get


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


def prompts_of(ref: Reference) -> list[Prompt]:
    parts = TEXT + (IMAGES if ref.family in VL_FAMILIES else [])
    return [ref.prompt(p, seed=i) for i, p in enumerate(parts)]


@pytest.mark.parametrize("family", HERE)
def test_greedy_equals_transformers(
    family: str,
    reference: Callable[..., Reference],
    engine: Callable[..., NativeEngine],
    count: Callable[..., None],
) -> None:
    ref = reference(family)
    prompts = prompts_of(ref)
    answers = [ref.answer(p) for p in prompts]
    tally = Tally()
    batch = greedy(engine(ref), prompts, MAX_TOKENS)
    alone = engine(ref, block_size=5, max_num_batched_tokens=11)
    for i, (prompt, answer, ours) in enumerate(zip(prompts, answers, batch, strict=True)):
        answer.token_ids = answer.token_ids[:MAX_TOKENS]
        tally.check(f"prompt {i} in a batch", ours, answer)
        if ON_GPU or i == 1:
            tally.check(f"prompt {i} alone, chunked", greedy(alone, [prompt], MAX_TOKENS)[0], answer)
    count(tally, "on the GPU" if ON_GPU else "in the interpreter")


def test_the_device_keeps_decoding_while_requests_end_and_come(
    reference: Callable[..., Reference], engine: Callable[..., NativeEngine]
) -> None:
    """Lengths apart, stop tokens nobody foresees, more requests than seats: each answer is as if it were alone."""
    ref = reference("qwen2")
    prompts = [ref.prompt([length], seed=40 + length) for length in (3, 9, 17, 4, 30)]
    lengths = [2, MAX_TOKENS, MAX_TOKENS - 3, 5, MAX_TOKENS // 2]
    answers = [ref.answer(p).token_ids[:n] for p, n in zip(prompts, lengths, strict=True)]
    stops = [(), (answers[1][3],), (), (), (answers[4][0],)]
    wanted = [
        answer[: min((answer.index(t) for t in stop if t in answer), default=len(answer)) + 1]
        for answer, stop in zip(answers, stops, strict=True)
    ]
    subject = engine(ref, max_num_seqs=3, block_size=4)
    for i, prompt in enumerate(prompts):
        subject.add_request(str(i), prompt, ResolvedSampling(max_tokens=lengths[i], stop_token_ids=stops[i]))
    found = [[t for t, _ in tokens] for tokens in drain(subject, len(prompts))]
    assert found == wanted
    assert subject.ahead is not None


SAMPLING = [
    {"temperature": 0.7},
    {"temperature": 1.3, "top_k": 7},
    {"temperature": 0.8, "top_p": 0.6},
    {"temperature": 1.5, "min_p": 0.1},
    {"temperature": 0.9, "top_k": 20, "top_p": 0.7, "min_p": 0.01, "repetition_penalty": 1.2},
    {"repetition_penalty": 1.3, "presence_penalty": 0.4, "frequency_penalty": 0.3},
]


@pytest.mark.parametrize("sampling", SAMPLING if ON_GPU else SAMPLING[-2:], ids=lambda s: "-".join(s))
def test_tokens_drawn_on_the_device_are_the_samplers(
    sampling: dict[str, float], reference: Callable[..., Reference], engine: Callable[..., NativeEngine]
) -> None:
    """Asked for log-probabilities the engine samples on the host, step by step: the same tokens. The second request
    comes while the first decodes, so that the first goes from the device to the host and back."""
    ref = reference("qwen2")
    prompts = [ref.prompt([length], seed=7 * length) for length in (4, 11)]
    answers: list[list[list[int]]] = []
    for extra in ({}, {"logprobs": 1}):
        subject = engine(ref)
        found: list[list[int]] = [[], []]
        steps = 0
        while steps < 3 or subject.has_work:
            if steps in (0, 3):
                i = steps // 3
                asked = ResolvedSampling(max_tokens=MAX_TOKENS + 4, seed=i + 5, **sampling, **extra)
                subject.add_request(str(i), prompts[i], asked)
            for output in subject.step():
                found[int(output.request_id)] += output.token_ids
            steps += 1
        answers.append(found)
    assert [len(tokens) for tokens in answers[0]] == [MAX_TOKENS + 4] * 2
    assert answers[0] == answers[1]
