"""The vision tower runs once per image, whoever asks, and no answer changes by it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.engines.native.drive import greedy, make_engine
from tests.engines.native.reference import Part, Reference
from tests.engines.native.test_prefix_caching import CountingTower, other_pixels
from visavis.engine.kernels.cpu import recycled
from visavis.engine.kernels.cpu.kernels import CpuKernels
from visavis.prompt import Prompt

pytestmark = pytest.mark.engines

IMAGE: Part = ("image", (1, 8, 6))
VIDEO: Part = ("video", (2, 6, 8))


def after_text(prompt: Prompt, ref: Reference, seed: int) -> Prompt:
    """The same images behind another beginning, so that no block is found again."""
    lead = ref.prompt([5], seed=seed)
    ids = (*lead.token_ids, *prompt.token_ids[5:])
    return replace(prompt, token_ids=ids, canonical_ids=ids)


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"])
def test_images_seen_before_are_not_encoded_again_and_answers_equal_transformers(
    reference: Callable[..., Reference], family: str
) -> None:
    ref = reference(family, seed=1)
    first = [ref.prompt([5, IMAGE, 3, VIDEO, 2], seed=40), ref.prompt([5, VIDEO, 4], seed=41)]
    prompts = first + [after_text(p, ref, seed=50 + i) for i, p in enumerate(first)]
    expected = [ref.answer(p, 16).token_ids for p in prompts]
    engine = make_engine(ref, max_num_batched_tokens=31)
    tower = CountingTower(engine)
    assert greedy(engine, prompts[:2], 16) == expected[:2]
    assert sorted(tower.seen) == [(1, 8, 6), (2, 6, 8), (2, 6, 8)]
    assert greedy(engine, prompts[2:], 16) == expected[2:]
    assert len(tower.seen) == 3
    cache = engine.runner.encoder.cache  # type: ignore[union-attr]
    assert (cache.queries, cache.hits, cache.num_read) == (6, 3, 0)


def test_items_of_requests_in_one_step_go_through_the_tower_together_and_equal_ones_once(
    reference: Callable[..., Reference],
) -> None:
    ref = reference("qwen2_5_vl", seed=3)
    mine = ref.prompt([5, IMAGE, 3], seed=42)
    prompts = [mine, after_text(mine, ref, 60), other_pixels(mine, "else")]
    expected = [ref.answer(p, 8).token_ids for p in prompts]
    engine = make_engine(ref, enable_prefix_caching=False)
    tower = CountingTower(engine)
    calls: list[int] = []
    original = tower.tower
    tower.tower = lambda patches, grids: calls.append(len(grids)) or original(patches, grids)
    assert greedy(engine, prompts, 8) == expected
    assert calls == [2]  # one call, two different images


def test_without_a_budget_no_image_is_used_twice(reference: Callable[..., Reference]) -> None:
    ref = reference("qwen2_5_vl", seed=3)
    prompt = ref.prompt([5, IMAGE, 3], seed=43)
    engine = make_engine(ref, encoder_cache_bytes=0, enable_prefix_caching=False)
    tower = CountingTower(engine)
    both = greedy(engine, [prompt, prompt], 8)
    assert greedy(engine, [prompt], 8) == both[:1] == both[1:]
    assert len(tower.seen) == 3
    assert engine.runner.encoder.cache.num_bytes == 0  # type: ignore[union-attr]


def test_another_image_of_the_same_size_is_no_hit(reference: Callable[..., Reference]) -> None:
    ref = reference("qwen3_vl", seed=1)
    prompt = ref.prompt([5, IMAGE, 3], seed=44)
    other = other_pixels(prompt, "else")
    expected = [ref.answer(p, 8).token_ids for p in (prompt, other)]
    assert expected[0] != expected[1]
    engine = make_engine(ref, enable_prefix_caching=False)
    assert greedy(engine, [prompt], 8) + greedy(engine, [other], 8) == expected


def test_a_small_budget_evicts_and_answers_stay_right(reference: Callable[..., Reference]) -> None:
    ref = reference("qwen3_vl", seed=1)
    prompts = [ref.prompt([5, IMAGE, 3], seed=45 + i) for i in range(4)]
    expected = [ref.answer(p, 8).token_ids for p in prompts]
    per_image = 12 * 64 * 4 * 3  # tokens · hidden · bytes · (embedding + 2 deepstack features)
    engine = make_engine(ref, encoder_cache_bytes=2 * per_image, max_num_seqs=2, enable_prefix_caching=False)
    for _ in range(2):
        assert greedy(engine, prompts, 8) == expected
    cache = engine.runner.encoder.cache  # type: ignore[union-attr]
    assert cache.num_bytes == 2 * per_image
    assert cache.evictions == 6  # eight images read one pair after the other, none of them still there


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"])
def test_what_is_kept_holds_on_to_no_memory_of_a_step(
    reference: Callable[..., Reference], monkeypatch: pytest.MonkeyPatch, family: str
) -> None:
    monkeypatch.setattr(recycled, "SMALL", 0)
    ref = reference(family, seed=1)
    engine = make_engine(ref, device="cpu")
    if not isinstance(engine.runner.kernels, CpuKernels):
        pytest.skip("no compiled CPU kernels here")
    greedy(engine, [ref.prompt([5, IMAGE, 3], seed=40)], 4)
    memory = engine.runner.kernels.recycled
    assert memory.num_bytes > 0
    engine.runner.kernels.give_back_memory()
    assert memory.num_bytes == 0
    assert engine.runner.encoder.cache.num_bytes > 0  # type: ignore[union-attr]
