"""Beginnings that were computed before are read from the cache, and no answer changes by it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from tests.engines.native.drive import drain, forced_logits, greedy, make_engine
from tests.engines.native.reference import Part, Reference, Tally
from visavis.engine import NativeEngine
from visavis.prompt import Prompt
from visavis.sampling import ResolvedSampling

pytestmark = pytest.mark.engines

BLOCK = 4
IMAGE: Part = ("image", (1, 8, 6))  # 12 tokens and a marker on each side
ENDS: dict[str, list[list[Part]]] = {
    # One seed, so that prompts are equal as far as their parts are.
    "text": [[40], [40, 9], [40, 9, 1], [24]],
    "image": [[9, IMAGE, 5], [9, IMAGE, 5, 7], [9, IMAGE, 5, IMAGE, 3], [9, IMAGE, 5, IMAGE, 3, 6]],
}


class CountingTower:
    def __init__(self, engine: NativeEngine) -> None:
        assert engine.runner.encoder is not None
        tower = engine.runner.encoder.tower
        self.tower, self.config, self.device, self.ops = tower, tower.config, tower.device, tower.ops
        self.seen: list[Any] = []
        engine.runner.encoder.tower = self  # type: ignore[assignment]

    def __call__(self, patches: torch.Tensor, grids: list[Any]) -> Any:
        self.seen += grids
        return self.tower(patches, grids)


def other_pixels(prompt: Prompt, name: str) -> Prompt:
    """The same ids and grids, other images."""
    random = np.random.default_rng(len(name))
    media = tuple(
        replace(m, pixels=random.integers(0, 256, m.pixels.shape, dtype=np.uint8), content_hash=f"{name}{i}")
        for i, m in enumerate(prompt.media)
    )
    return replace(prompt, media=media)


@pytest.fixture(scope="module")
def ref(reference: Callable[..., Reference]) -> Reference:
    return reference("qwen2_5_vl", seed=3)


@pytest.mark.parametrize("kernels", ["torch", "auto"])
@pytest.mark.parametrize(
    ("family", "kind"),
    [("llama", "text"), ("qwen3", "text"), ("qwen2_vl", "image"), ("qwen2_5_vl", "image"), ("qwen3_vl", "image")],
)
def test_answers_from_the_cache_equal_transformers(
    reference: Callable[..., Reference], family: str, kind: str, kernels: str
) -> None:
    ref = reference(family, seed=1)
    prompts = [ref.prompt(parts, seed=5) for parts in ENDS[kind]]
    answers = [ref.answer(p, 24) for p in prompts]
    engine = make_engine(ref, block_size=BLOCK, kernels=kernels, max_num_batched_tokens=64)
    tally = Tally()
    for round_ in range(3):
        hits = engine.scheduler.prefix_hits
        for i, (mine, answer) in enumerate(zip(greedy(engine, prompts, 24), answers, strict=True)):
            tally.check(f"round {round_}, prompt {i}", mine, answer)
        if round_:
            expected = sum((len(p) - 1) // BLOCK * BLOCK for p in prompts)  # all full blocks before the last token
            assert engine.scheduler.prefix_hits - hits == expected
    assert tally.ties == []


@pytest.mark.parametrize("family", ["qwen3", "qwen3_vl"])
def test_logits_after_a_hit_agree_with_transformers(reference: Callable[..., Reference], family: str) -> None:
    ref = reference(family, seed=2)
    prompts = [ref.prompt(parts, seed=6) for parts in ENDS["image" if ref.vision else "text"]]
    answers = [ref.answer(p, 12) for p in prompts]
    engine = make_engine(ref, block_size=BLOCK)
    greedy(engine, prompts, 1)
    hits = engine.scheduler.prefix_hits
    logits = forced_logits(engine, prompts, answers)
    assert engine.scheduler.prefix_hits > hits
    for mine, answer in zip(logits, answers, strict=True):
        assert (mine - answer.logits).abs().max() <= 1e-4


def test_the_same_ids_with_another_image_are_no_hit(ref: Reference) -> None:
    prompt = ref.prompt([9, IMAGE, 5], seed=7)
    others = [other_pixels(prompt, name) for name in ("a", "bb")]
    answers = [ref.answer(p, 16).token_ids for p in (prompt, *others)]
    assert len({tuple(a) for a in answers}) == 3  # else this would show nothing
    engine = make_engine(ref, block_size=BLOCK)
    assert greedy(engine, [prompt], 16) == answers[:1]
    for other, answer in zip(others, answers[1:], strict=True):
        hits = engine.scheduler.prefix_hits
        assert greedy(engine, [other], 16) == [answer]
        assert engine.scheduler.prefix_hits - hits == 8  # the 9 text tokens before the image, in whole blocks
    assert greedy(engine, [prompt, *others], 16) == answers


def test_no_image_is_encoded_that_a_hit_covers_and_one_cut_by_its_end_is(ref: Reference) -> None:
    """Tokens: 9 text, marker, 12 image, marker, …: 23 in all, so 5 blocks of 4 end inside the image, 24 behind it."""
    engine = make_engine(ref, block_size=BLOCK, encoder_cache_bytes=0)
    tower = CountingTower(engine)
    longer, shorter = ref.prompt([9, IMAGE, 5], seed=8), ref.prompt([9, IMAGE], seed=8)
    assert len(shorter) == 23
    greedy(engine, [longer], 4)
    assert tower.seen == [(1, 8, 6)]
    greedy(engine, [longer], 4)
    assert tower.seen == [(1, 8, 6)]  # 24 of 28 tokens
    greedy(engine, [shorter], 4)
    assert tower.seen == [(1, 8, 6)] * 2  # 20 of 23 tokens: the last image tokens are wanted again


def test_the_last_token_is_always_computed(ref: Reference) -> None:
    engine = make_engine(ref, block_size=BLOCK)
    prompt = ref.prompt([16], seed=9)
    first = greedy(engine, [prompt], 8)
    assert greedy(engine, [prompt], 8) == first
    assert engine.scheduler.prefix_hits == 12  # not the fourth block, which holds the last token


def test_an_answer_is_part_of_the_beginning_of_the_next_turn(ref: Reference) -> None:
    engine = make_engine(ref, block_size=BLOCK)
    prompt = ref.prompt([10], seed=10)
    answer = greedy(engine, [prompt], 15)[0]
    ids = (*prompt.token_ids, *answer, 20, 21, 22)
    turn = replace(prompt, token_ids=ids, canonical_ids=ids, position_ids=np.tile(np.arange(len(ids)), (3, 1)))
    expected = ref.answer(turn, 8).token_ids
    assert greedy(engine, [turn], 8) == [expected]
    assert engine.scheduler.prefix_hits == 24  # 10 + 15 tokens, of which the very last was never computed


def test_requests_running_together_share_blocks_and_an_abort_leaves_them_to_the_other(ref: Reference) -> None:
    engine = make_engine(ref, block_size=BLOCK, max_num_seqs=2)
    prompt, other = ref.prompt([41], seed=11), ref.prompt([40, 9], seed=11)
    expected = ref.answer(other, 20).token_ids
    engine.add_request("a", prompt, ResolvedSampling(max_tokens=40))
    engine.step()
    engine.add_request("0", other, ResolvedSampling(max_tokens=20))
    tokens = [t for o in engine.step() if o.request_id == "0" for t in o.token_ids]
    a, b = engine.scheduler.running
    assert a.block_table[:10] == b.block_table[:10]
    assert engine.pool.num_blocks - engine.pool.num_free == len(set(a.block_table) | set(b.block_table))
    engine.abort("a")
    while engine.has_work:
        tokens += [t for o in engine.step() for t in o.token_ids]
    assert tokens == expected
    assert engine.pool.num_free == engine.pool.num_blocks


def test_a_preempted_request_finds_its_own_blocks(ref: Reference) -> None:
    prompts = [ref.prompt([n], seed=20 + n) for n in (30, 31)]
    expected = [ref.answer(p, 40).token_ids for p in prompts]
    engine = make_engine(ref, block_size=BLOCK, num_blocks=30)  # 18 blocks each at their ends
    for i, prompt in enumerate(prompts):
        engine.add_request(str(i), prompt, ResolvedSampling(max_tokens=40))
    resumed = []
    schedule = engine.scheduler.schedule

    def watched() -> Any:
        step = schedule()
        resumed.extend((s.num_tokens, length) for s, length in step.prefills if s.num_output_tokens)
        return step

    engine.scheduler.schedule = watched  # type: ignore[method-assign]
    answers = [[t for t, _ in a] for a in drain(engine, 2)]
    assert answers == expected
    assert engine.scheduler.num_preemptions > 0
    assert resumed
    assert any(length < total for total, length in resumed), "nothing of its own blocks was found"


def test_many_prompts_through_a_pool_too_small_to_keep_them_stay_right(ref: Reference) -> None:
    prompts = [ref.prompt(parts, seed=30 + k) for k in range(4) for parts in ENDS["image"]]
    expected = [ref.answer(p, 10).token_ids for p in prompts]
    engine = make_engine(ref, block_size=BLOCK, num_blocks=40, max_num_batched_tokens=23)
    for _ in range(3):
        assert greedy(engine, prompts, 10) == expected
    assert engine.pool.num_evictions > 0
    assert engine.scheduler.prefix_hits > 0


def test_without_prefix_caching_nothing_is_kept(ref: Reference) -> None:
    engine = make_engine(ref, block_size=BLOCK, enable_prefix_caching=False)
    prompt = ref.prompt(ENDS["image"][0], seed=12)
    assert greedy(engine, [prompt], 6) == greedy(engine, [prompt], 6)
    assert engine.scheduler.prefix_hits == engine.pool.num_cached == 0


def test_blocks_of_a_request_with_broken_logits_are_forgotten(ref: Reference) -> None:
    engine = make_engine(ref, block_size=BLOCK)
    prompt = ref.prompt([20], seed=13)
    expected = ref.answer(prompt, 6).token_ids
    logits = engine.runner.model.logits
    engine.runner.model.logits = lambda x: logits(x).fill_(math.nan)  # type: ignore[method-assign]
    engine.add_request("0", prompt, ResolvedSampling(max_tokens=6))
    outputs = [o for _ in range(2) for o in engine.step()]
    assert [o.finish_reason for o in outputs] == ["error"]
    assert engine.pool.num_cached == 0
    engine.runner.model.logits = logits  # type: ignore[method-assign]
    assert greedy(engine, [prompt], 6) == [expected]
    assert engine.scheduler.prefix_hits == 0


def test_how_many_prompt_tokens_came_from_the_cache_is_told_with_the_first_token(ref: Reference) -> None:
    engine = make_engine(ref, block_size=BLOCK)
    prompt = ref.prompt([18], seed=14)
    told = []
    for name in "ab":
        engine.add_request(name, prompt, ResolvedSampling(max_tokens=2))
        told += [o.num_cached_tokens for _ in range(2) for o in engine.step()]
    assert told == [0, None, 16, None]
