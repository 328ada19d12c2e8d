"""Sampling through the whole engine: prompt log-probabilities, bad words, broken logits."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.engines.native.drive import make_engine
from tests.engines.native.reference import Part, Reference
from visavis.engine import prompt_logprobs as module
from visavis.sampling import ResolvedSampling

pytestmark = pytest.mark.engines

MIXED: list[list[Part]] = [[9], [3, ("image", (1, 8, 6)), 4], [40], [1], [2]]


@pytest.fixture(scope="module")
def ref(reference: Callable[..., Reference]) -> Reference:
    return reference("qwen2_5_vl", seed=3)


def prompts_of(ref: Reference, parts: list[list[Part]] = MIXED) -> list[Any]:
    return [ref.prompt(p, seed=50 + i) for i, p in enumerate(parts)]


def run(engine: Any, prompts: list[Any], sampling: list[ResolvedSampling]) -> list[dict[str, Any]]:
    """What each request brought, with its tokens under "ids" and its errors under "error"."""
    brought: list[dict[str, Any]] = [{"ids": [], "error": None, "prompt": None} for _ in prompts]
    for i, (prompt, asked) in enumerate(zip(prompts, sampling, strict=True)):
        engine.add_request(str(i), prompt, asked)
    while engine.has_work:
        for output in engine.step():
            mine = brought[int(output.request_id)]
            mine["ids"] += output.token_ids
            mine["error"] = output.error
            if output.prompt_logprobs is not None:
                assert mine["prompt"] is None, "told twice"
                mine["prompt"] = output.prompt_logprobs
    assert engine.pool.num_free == engine.pool.num_blocks
    return brought


def expected_prompt_logprobs(ref: Reference, prompt: Any) -> torch.Tensor:
    ref.model.model.rope_deltas = None
    with torch.inference_mode():
        return torch.log_softmax(ref.model(**ref.inputs(prompt)).logits[0].float(), -1)


@pytest.mark.parametrize(
    "settings",
    [{}, {"max_num_batched_tokens": 7}, {"block_size": 4, "num_blocks": 24, "max_num_batched_tokens": 10}],
    ids=["whole", "chunked", "preempted"],
)
def test_prompt_logprobs_equal_the_log_softmax_of_transformers_logits(
    ref: Reference, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In parts of 3 tokens as well, as a large vocabulary needs; with an answer long enough to be preempted."""
    monkeypatch.setattr(module, "MAX_BYTES", 3 * 4 * ref.model.config.get_text_config().vocab_size)
    prompts = prompts_of(ref)
    engine = make_engine(ref, **settings)
    got = run(engine, prompts, [ResolvedSampling(max_tokens=24, prompt_logprobs=i) for i in range(len(prompts))])
    if "num_blocks" in settings:
        assert engine.scheduler.num_preemptions > 0
    for top, (prompt, mine) in enumerate(zip(prompts, got, strict=True)):
        assert len(mine["ids"]) == 24
        first, *rest = mine["prompt"]
        assert first is None
        assert [entry.token_id for entry in rest] == list(prompt.token_ids[1:])
        for entry, row in zip(rest, expected_prompt_logprobs(ref, prompt), strict=False):
            assert entry.logprob == pytest.approx(row[entry.token_id].item(), abs=1e-4)
            assert [value for _, value in entry.top] == pytest.approx(row.topk(top).values.tolist(), abs=1e-4)
            assert [row[token].item() for token, _ in entry.top] == pytest.approx([v for _, v in entry.top], abs=1e-4)


def test_prompt_logprobs_are_whole_although_the_prompt_is_cached(ref: Reference) -> None:
    prompt = ref.prompt([40], seed=9)
    engine = make_engine(ref, block_size=4)
    plain, asked = ResolvedSampling(max_tokens=3), ResolvedSampling(max_tokens=3, prompt_logprobs=1)
    for _ in range(2):  # the second time the first one's blocks are there
        (got,) = run(engine, [prompt], [asked])
        assert len(got["prompt"]) == 40
    assert run(engine, [prompt], [plain])[0]["ids"] == got["ids"]
    assert run(engine, [prompt], [plain])[0]["prompt"] is None


def test_bad_words_are_those_of_transformers_prompt_included(ref: Reference) -> None:
    """The words are taken from the free answer, so that each of them bites; the last one begins in the prompt."""
    for seed, parts in enumerate(([9], [3, ("image", (1, 8, 6)), 4], [12])):
        prompt = ref.prompt(parts, seed=60 + seed)
        free = run(make_engine(ref), [prompt], [ResolvedSampling(max_tokens=24)])[0]["ids"]
        words = ((free[3],), (free[5], free[6]), (free[9], free[10], free[11]), (prompt.token_ids[-1], free[0]))
        (got,) = run(make_engine(ref), [prompt], [ResolvedSampling(max_tokens=24, bad_words_ids=words)])
        ref.model.model.rope_deltas = None
        with torch.inference_mode():
            out = ref.model.generate(
                **ref.inputs(prompt),
                max_new_tokens=24,
                do_sample=False,
                eos_token_id=None,
                pad_token_id=0,
                bad_words_ids=[list(word) for word in words],
            )
        assert got["ids"] == out[0, len(prompt) :].tolist()
        assert got["ids"][0] != free[0]


def test_a_ban_on_every_token_fails_that_request_alone_and_says_why(ref: Reference) -> None:
    prompts = prompts_of(ref)[:2]
    vocab = ref.model.config.get_text_config().vocab_size
    everything = tuple((token,) for token in range(vocab))
    asked = [ResolvedSampling(max_tokens=4, bad_words_ids=everything), ResolvedSampling(max_tokens=4)]
    banned, free = run(make_engine(ref), prompts, asked)
    assert banned["ids"] == []
    assert "bans leave no token" in banned["error"]
    assert (len(free["ids"]), free["error"]) == (4, None)


@pytest.mark.parametrize("planted", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("kind", [{}, {"temperature": 1.0, "top_p": 0.9, "seed": 3}, {"repetition_penalty": 1.2}])
def test_a_broken_logit_ends_its_own_request_and_no_other(ref: Reference, planted: float, kind: dict[str, Any]) -> None:
    """Planted in the third step of the second of three requests that run together."""
    prompts = prompts_of(ref)[:3]
    asked = [ResolvedSampling(max_tokens=8, **kind)] * 3
    whole = run(make_engine(ref), prompts, asked)
    engine = make_engine(ref)
    sample = engine.sampler.sample

    def plant(logits: torch.Tensor, seqs: Any) -> Any:
        for row, seq in enumerate(seqs):
            if seq.request_id == "1" and seq.num_output_tokens == 3:
                logits[row, 17] = planted
        return sample(logits, seqs)

    engine.sampler.sample = plant  # type: ignore[method-assign]
    first, broken, last = run(engine, prompts, asked)
    assert "not finite" in broken["error"]
    assert broken["ids"] == whole[1]["ids"][:3]
    assert [first["ids"], last["ids"]] == [whole[0]["ids"], whole[2]["ids"]]
    assert (first["error"], last["error"]) == (None, None)
