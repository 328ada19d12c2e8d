"""`RowSampler` against transformers' own processors, and against arithmetic where transformers has none."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from transformers import (
    MinPLogitsWarper,
    NoBadWordsLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from visavis.backends.hf_sampling import RowSampler, ranked_logprobs
from visavis.sampling import ResolvedSampling

pytestmark = pytest.mark.engines

VOCAB = 50
CPU = torch.device("cpu")


def logits(seed: int = 0) -> torch.Tensor:
    return torch.randn(VOCAB, generator=torch.Generator().manual_seed(seed)) * 3


def sampler(prompt: Any = (), answer: Any = (), bad_words: Any = (), **values: Any) -> RowSampler:
    row = RowSampler(ResolvedSampling(max_tokens=100, **values), prompt, bad_words, VOCAB, CPU)
    for token_id in answer:
        row.take(token_id)
    return row


def test_repetition_penalty_counts_prompt_and_answer_as_transformers_does() -> None:
    prompt, answer = [1, 2, 2, 3], [4, 4, 1]
    got = sampler(prompt, answer, repetition_penalty=1.7).choose(logits())
    reference = RepetitionPenaltyLogitsProcessor(1.7)(torch.tensor([[*prompt, *answer]]), logits()[None])[0]
    assert torch.equal(got, reference)
    assert not torch.equal(got, logits())


def test_presence_and_frequency_penalties_count_the_answer_only() -> None:
    """OpenAI's formula: logit − frequency · count − presence · (count > 0)."""
    got = sampler([1, 2, 3], [4, 4, 5], presence_penalty=0.5, frequency_penalty=0.25).choose(logits())
    expected = logits()
    expected[4] -= 0.5 + 2 * 0.25
    expected[5] -= 0.5 + 0.25
    assert torch.allclose(got, expected, atol=1e-6)


def test_the_order_is_bias_then_repetition_then_presence() -> None:
    """(−1 + 3) / 2 − 0.5 = 0.5; any other order gives another number."""
    raw = torch.zeros(VOCAB)
    raw[7] = -1.0
    got = sampler([], [7], logit_bias=((7, 3.0),), repetition_penalty=2.0, presence_penalty=0.5).choose(raw)
    assert float(got[7]) == pytest.approx(0.5)


def test_min_tokens_bans_eos_and_stop_ids_until_it_is_reached() -> None:
    values: dict[str, Any] = {"min_tokens": 2, "eos_token_ids": (3,), "stop_token_ids": (4,)}
    for answer, banned in (([], True), ([9], True), ([9, 9], False)):
        got = sampler([], answer, **values).choose(logits())
        assert bool(torch.isinf(got[[3, 4]]).all()) is banned
        assert torch.isfinite(got).sum() == (VOCAB - 2 if banned else VOCAB)
    ignoring = sampler([], [], **values, ignore_eos=True).choose(logits())
    assert torch.isfinite(ignoring[3])
    assert torch.isinf(ignoring[4])


def test_bad_words_are_banned_as_in_transformers() -> None:
    words = [(7,), (8, 9), (8, 10, 11)]
    processor = NoBadWordsLogitsProcessor([list(w) for w in words])
    for answer in ([1], [8], [8, 10], [10, 8], [8, 9]):
        got = sampler([], answer, words).choose(logits())
        reference = processor(torch.tensor([answer]), logits()[None])[0]
        assert torch.equal(torch.isinf(got), torch.isinf(reference)), answer


@pytest.mark.parametrize(
    ("values", "warpers"),
    [
        ({"temperature": 0.7}, [TemperatureLogitsWarper(0.7)]),
        ({"temperature": 1.0, "top_k": 5}, [TopKLogitsWarper(5)]),
        ({"temperature": 1.0, "top_p": 0.8}, [TopPLogitsWarper(0.8)]),
        ({"temperature": 1.0, "top_p": 1e-6}, [TopPLogitsWarper(1e-6)]),
        ({"temperature": 1.5, "min_p": 0.1}, [TemperatureLogitsWarper(1.5), MinPLogitsWarper(0.1)]),
        (
            {"temperature": 1.3, "top_k": 12, "top_p": 0.9},
            [TemperatureLogitsWarper(1.3), TopKLogitsWarper(12), TopPLogitsWarper(0.9)],
        ),
        ({"temperature": 1.0, "top_k": 10_000}, []),
    ],
)
def test_drawn_tokens_follow_transformers_distribution(values: dict[str, Any], warpers: list[Any]) -> None:
    """2000 seeds: only tokens transformers would allow, each about as often as it would be drawn (5 σ)."""
    expected = logits()[None]
    for warper in warpers:
        expected = warper(torch.tensor([[0]]), expected)
    probabilities = expected[0].softmax(-1)
    tries = 2000
    drawn = Counter(int(sampler(**values, seed=seed).choose(logits()).argmax()) for seed in range(tries))
    assert all(probabilities[token_id] > 0 for token_id in drawn)
    for token_id, p in enumerate(probabilities.tolist()):
        spread = (tries * p * (1 - p)) ** 0.5
        assert abs(drawn[token_id] - tries * p) <= 5 * spread + 1


def test_equal_seeds_draw_equal_tokens_and_positions_differ() -> None:
    flat = torch.zeros(VOCAB)

    def draws(seed: int) -> list[int]:
        row = sampler(temperature=1.0, seed=seed)
        got = []
        for _ in range(20):
            got.append(int(row.choose(flat).argmax()))
            row.take(got[-1])
        return got

    assert draws(5) == draws(5)
    assert draws(5) != draws(6)
    assert len(set(draws(5))) > 5


def test_a_plain_greedy_row_is_left_alone() -> None:
    assert sampler().idle
    assert not sampler(temperature=1.0).idle
    assert not sampler(min_tokens=3, eos_token_ids=(1,)).idle
    assert sampler(answer=[5, 5, 5], min_tokens=3, eos_token_ids=(1,)).idle
    raw = logits()
    sampler(logit_bias=((1, 5.0),)).choose(raw)
    assert torch.equal(raw, logits()), "the raw logits are not changed"


def test_ranked_logprobs() -> None:
    row = torch.tensor([0.1, 0.4, 0.2, 0.3]).log()
    got = ranked_logprobs(row, 2, 2)
    assert (got.token_id, [i for i, _ in got.top]) == (2, [1, 3])
    assert got.logprob == pytest.approx(float(torch.tensor(0.2).log()))
    assert ranked_logprobs(row, 0, 0).top == ()
