"""Greedy float32 answers equal transformers' token for token: alone, batched, chunked, and under preemption."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from tests.engines.native.drive import forced_logits, greedy, make_engine
from tests.engines.native.reference import Answer, Part, Reference, Tally
from tests.reference.tiny_models import FAMILIES, VL_FAMILIES
from visavis.engine.kernels.cpu.build import BuildError, find_library
from visavis.prompt import Prompt

pytestmark = pytest.mark.engines

SEEDS = (0, 1)
LOGIT_TOLERANCE = 1e-4

TEXT_PROMPTS: list[list[Part]] = [[1], [5], [33], [300]]
VISUAL_PROMPTS: list[list[Part]] = [
    [4, ("image", (1, 4, 4)), 6],  # 4 tokens, the smallest there is
    [("image", (1, 10, 18)), 3],  # no multiple of the window of 8 patches; starts the prompt
    [3, ("image", (1, 4, 12)), 2, ("image", (1, 12, 4)), ("image", (1, 16, 8)), 5],  # three sizes, two side by side
    [2, ("image", (1, 6, 6)), 4, ("image", (1, 6, 6)), 1],  # twice the same size
    [5, ("video", (3, 6, 10)), 4],
    [1, ("image", (1, 8, 6)), 7, ("video", (2, 4, 6)), 3, ("image", (1, 4, 4)), ("video", (2, 8, 4)), 2],
    [("image", (1, 4, 4)), 3, ("video", (3, 4, 4)), 2],  # Qwen2.5-VL: the video reaches beyond the text after it
]

Case = tuple[Reference, list[Prompt], list[Answer]]


@pytest.fixture(scope="module")
def cases(reference: Callable[..., Reference]) -> Callable[[str, int], Case]:
    made: dict[tuple[str, int], Case] = {}

    def get(family: str, seed: int) -> Case:
        if (family, seed) not in made:
            ref = reference(family, seed=seed)
            parts = TEXT_PROMPTS + (VISUAL_PROMPTS if family in VL_FAMILIES else [])
            prompts = [ref.prompt(p, seed=100 * seed + i) for i, p in enumerate(parts)]
            made[family, seed] = (ref, prompts, [ref.answer(p) for p in prompts])
        return made[family, seed]

    return get


@pytest.fixture
def tally(count: Callable[..., None]) -> Iterator[Tally]:
    tally = Tally()
    yield tally
    count(tally)


@pytest.fixture(params=[(f, s) for f in FAMILIES for s in SEEDS], ids=lambda p: f"{p[0]}-{p[1]}")
def case(request: pytest.FixtureRequest, cases: Callable[[str, int], Case]) -> Case:
    family, seed = request.param
    return cases(family, seed)


@pytest.fixture(params=["torch", "compiled"])
def kernels(request: pytest.FixtureRequest) -> str:
    if request.param == "compiled":
        try:
            find_library()
        except BuildError as error:
            pytest.skip(f"no compiled CPU kernels here: {error}")
    return str(request.param)


def test_greedy_alone_equals_transformers(case: Case, kernels: str, tally: Tally) -> None:
    ref, prompts, answers = case
    engine = make_engine(ref, kernels=kernels)
    for i, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        tally.check(f"prompt {i}", greedy(engine, [prompt])[0], answer)


def test_greedy_batch_of_mixed_prompts_equals_transformers(case: Case, kernels: str, tally: Tally) -> None:
    ref, prompts, answers = case
    ours = greedy(make_engine(ref, kernels=kernels), prompts)
    for i, (mine, answer) in enumerate(zip(ours, answers, strict=True)):
        tally.check(f"prompt {i}", mine, answer)


@pytest.mark.parametrize("chunk", [7, 13])
def test_greedy_chunked_at_odd_sizes_equals_transformers(case: Case, chunk: int, tally: Tally) -> None:
    """7 and 13 tokens a step: chunks begin and end inside images and share steps with decodes."""
    ref, prompts, answers = case
    engine = make_engine(ref, max_num_batched_tokens=chunk, block_size=8)
    for i, (mine, answer) in enumerate(zip(greedy(engine, prompts), answers, strict=True)):
        tally.check(f"prompt {i}", mine, answer)


def test_greedy_under_preemption_equals_transformers(case: Case, tally: Tally) -> None:
    """A pool barely larger than the longest request: running requests are thrown out and recomputed."""
    ref, prompts, answers = case
    longest = max(len(p) for p in prompts) + 64
    engine = make_engine(ref, block_size=4, num_blocks=-(-longest // 4) + 12, max_num_batched_tokens=50)
    ours = greedy(engine, prompts)
    assert engine.scheduler.num_preemptions > 0
    for i, (mine, answer) in enumerate(zip(ours, answers, strict=True)):
        tally.check(f"prompt {i}", mine, answer)


@pytest.mark.parametrize("settings", [{}, {"max_num_batched_tokens": 11, "block_size": 5}], ids=["whole", "chunked"])
def test_teacher_forced_logits_agree(case: Case, kernels: str, settings: dict[str, int]) -> None:
    ref, prompts, answers = case
    ours = forced_logits(make_engine(ref, kernels=kernels, **settings), prompts, answers)
    for i, (mine, answer) in enumerate(zip(ours, answers, strict=True)):
        worst = (mine - answer.logits).abs().max().item()
        assert worst <= LOGIT_TOLERANCE, f"prompt {i}: logits differ by {worst:.2e}"


def test_reference_answers_are_not_degenerate(case: Case) -> None:
    """A parity test on answers that repeat one token would prove little."""
    _, _, answers = case
    distinct = [len(set(a.token_ids)) for a in answers]
    assert sum(distinct) / len(distinct) > 8, distinct
    spread = torch.stack([a.logits.std(-1).mean() for a in answers])
    assert spread.min() > 1.0, spread
