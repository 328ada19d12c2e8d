"""A step that finds too little memory makes the next ones smaller; nobody's answer changes."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.engines.native.drive import make_engine
from tests.engines.native.reference import Part, Reference
from visavis.engine import NativeEngine
from visavis.engine.out_of_memory import is_out_of_memory
from visavis.sampling import ResolvedSampling

pytestmark = pytest.mark.engines

PARTS: list[list[Part]] = [[60], [9, ("image", (1, 8, 6)), 4], [40], [7]]


@pytest.fixture(scope="module")
def ref(reference: Callable[..., Reference]) -> Reference:
    return reference("qwen2_5_vl", seed=3)


def starve(engine: NativeEngine, too_much: Callable[[Any], bool], error: BaseException) -> None:
    """Steps for which `too_much` holds run out of memory half-way: after the model wrote to the cache."""
    run = engine.runner.run

    def short_of_memory(step: Any) -> Any:
        result = run(step)
        if too_much(step):
            raise error
        return result

    engine.runner.run = short_of_memory  # type: ignore[method-assign]


def answers_of(engine: NativeEngine, prompts: list[Any]) -> tuple[dict[str, list[int]], dict[str, str]]:
    for i, prompt in enumerate(prompts):
        engine.add_request(str(i), prompt, ResolvedSampling(max_tokens=16))
    answers: dict[str, list[int]] = {str(i): [] for i in range(len(prompts))}
    errors = {}
    while engine.has_work:
        for output in engine.step():
            answers[output.request_id] += output.token_ids
            if output.error is not None:
                errors[output.request_id] = output.error
    assert engine.pool.num_free == engine.pool.num_blocks
    return answers, errors


@pytest.mark.parametrize(
    ("too_much", "error"),
    [
        (lambda step: sum(n for _, n in step.prefills) > 20, torch.OutOfMemoryError("CUDA out of memory")),
        (lambda step: len(step.decodes) > 2, RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory")),
        (lambda step: len(step.decodes) > 1 or sum(n for _, n in step.prefills) > 16, MemoryError()),
    ],
    ids=["prompts", "decodes", "both"],
)
def test_every_answer_comes_and_it_is_said_once(
    ref: Reference, too_much: Callable[[Any], bool], error: BaseException
) -> None:
    prompts = [ref.prompt(p, seed=90 + i) for i, p in enumerate(PARTS)]
    expected = [ref.answer(p, 16).token_ids for p in prompts]
    engine = make_engine(ref, block_size=4)
    starve(engine, too_much, error)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        answers, errors = answers_of(engine, prompts)
    assert errors == {}
    assert list(answers.values()) == expected
    assert engine.statistics().out_of_memory > 0
    ours = [str(w.message) for w in said if "memory ran out" in str(w.message)]
    assert len(ours) == 1
    assert "lower max_num_batched_tokens" in ours[0]


def test_a_request_too_large_alone_fails_alone(ref: Reference) -> None:
    prompts = [ref.prompt(p, seed=90 + i) for i, p in enumerate(PARTS)]
    expected = [ref.answer(p, 16).token_ids for p in prompts]
    engine = make_engine(ref, block_size=4)
    image = len(prompts[1])
    starve(engine, lambda step: any(s.num_prompt_tokens == image for s, _ in step.prefills), MemoryError("no room"))
    with pytest.warns(UserWarning, match="memory ran out"):
        answers, errors = answers_of(engine, prompts)
    assert list(errors) == ["1"]
    assert "too little memory for this request alone: no room" in errors["1"]
    assert [answers[i] for i in "023"] == [expected[i] for i in (0, 2, 3)]
    assert engine.statistics().failed == 1


def test_other_errors_are_not_taken_for_it(ref: Reference) -> None:
    engine = make_engine(ref)
    starve(engine, lambda step: True, RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    engine.add_request("0", ref.prompt([5], seed=1), ResolvedSampling(max_tokens=2))
    with pytest.raises(RuntimeError, match="shapes cannot"):
        engine.step()


def test_torchs_own_words_are_known() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 60, dtype=torch.uint8)
    assert is_out_of_memory(caught.value)
