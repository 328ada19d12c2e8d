"""The sampler against exact probabilities and hand-computed adjustments."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from tests.unit.engine.helpers import sequence
from visavis.engine.random_numbers import uniform
from visavis.engine.sampler import Sampler

FLAT = [0.3, 0.1, -0.2, 0.0, 0.2, -0.1, 0.05, 0.15]
PEAKED = [6.0, 4.5, 4.4, 3.0, 1.0, 0.0, -2.0, -5.0]
DRAWS = 8000
CHI_SQUARE_999 = {1: 10.83, 2: 13.82, 3: 16.27, 4: 18.47, 5: 20.52, 6: 22.46, 7: 24.32}
"""99.9 % quantiles of the chi-square distribution by degrees of freedom (standard table)."""


def sample(logits: list[float], seqs: list[Any]) -> list[int]:
    sampler = Sampler(len(logits), torch.device("cpu"))
    return sampler(torch.tensor([logits] * len(seqs)), seqs).token_ids


def softmax(logits: list[float], temperature: float = 1.0) -> np.ndarray[Any, Any]:
    weights = np.exp(np.array(logits) / temperature)
    return weights / weights.sum()


def assert_distribution(drawn: list[int], expected: np.ndarray[Any, Any]) -> None:
    counts = np.bincount(drawn, minlength=len(expected))
    assert counts[expected == 0].sum() == 0, "a token with probability 0 was drawn"
    kept = expected > 0
    chi = (((counts - len(drawn) * expected) ** 2)[kept] / (len(drawn) * expected[kept])).sum()
    assert chi < CHI_SQUARE_999[int(kept.sum()) - 1], (counts, expected * len(drawn), chi)


def draws(logits: list[float], **sampling: Any) -> list[int]:
    return sample(logits, [sequence(seed=seed, **sampling) for seed in range(DRAWS)])


@pytest.mark.parametrize("logits", [FLAT, PEAKED], ids=["flat", "peaked"])
@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
def test_draws_follow_the_softmax_at_a_temperature(logits: list[float], temperature: float) -> None:
    assert_distribution(draws(logits, temperature=temperature), softmax(logits, temperature))


@pytest.mark.parametrize("logits", [FLAT, PEAKED], ids=["flat", "peaked"])
def test_top_k_renormalises_over_the_k_best(logits: list[float]) -> None:
    expected = softmax(logits)
    expected[np.argsort(-expected)[3:]] = 0
    assert_distribution(draws(logits, temperature=1.0, top_k=3), expected / expected.sum())


def test_top_k_keeps_tokens_as_likely_as_the_last_one() -> None:
    drawn = draws([1.0, 0.0, 0.0, -1.0], temperature=1.0, top_k=2)
    expected = softmax([1.0, 0.0, 0.0, -1.0])
    expected[3] = 0
    assert_distribution(drawn, expected / expected.sum())


@pytest.mark.parametrize("top_p", [0.3, 0.6, 0.95])
def test_top_p_keeps_the_smallest_set_that_reaches_p(top_p: float) -> None:
    probs = softmax(PEAKED)
    kept = int(np.searchsorted(np.cumsum(probs), top_p)) + 1  # PEAKED is sorted, best first
    expected = np.where(np.arange(len(probs)) < kept, probs, 0)
    drawn = draws(PEAKED, temperature=1.0, top_p=top_p)
    if kept == 1:
        assert set(drawn) == {0}
    else:
        assert_distribution(drawn, expected / expected.sum())


def test_min_p_drops_what_is_less_likely_than_a_share_of_the_best() -> None:
    probs = softmax(PEAKED)
    expected = np.where(probs >= 0.1 * probs.max(), probs, 0)
    assert 1 < (expected > 0).sum() < len(PEAKED)
    assert_distribution(draws(PEAKED, temperature=1.0, min_p=0.1), expected / expected.sum())


def test_filters_apply_in_the_written_order() -> None:
    """temperature 2, then min_p 0.2, then top_k 3, then top_p 0.7 over what is left, renormalised."""
    probs = softmax(PEAKED, 2.0)
    probs[probs < 0.2 * probs.max()] = 0
    probs[3:] = 0
    probs /= probs.sum()
    kept = int(np.searchsorted(np.cumsum(probs), 0.7)) + 1
    probs[kept:] = 0
    assert kept == 2
    assert_distribution(draws(PEAKED, temperature=2.0, min_p=0.2, top_k=3, top_p=0.7), probs / probs.sum())


def test_a_request_draws_the_same_alone_and_in_any_batch() -> None:
    kinds: list[dict[str, Any]] = [
        {"temperature": 1.3, "seed": 5},
        {"temperature": 0.7, "top_k": 3, "seed": 6},
        {"temperature": 1.0, "top_p": 0.8, "seed": 7},
        {"temperature": 2.0, "min_p": 0.05, "repetition_penalty": 1.4, "seed": 8},
        {},
    ]
    for answer in ([], [1], [1, 2, 2]):
        seqs = [sequence(answer=answer, **kind) for kind in kinds]
        together = sample(FLAT, seqs)
        assert sample(FLAT, seqs[::-1]) == together[::-1]
        assert [sample(FLAT, [seq])[0] for seq in seqs] == together


def test_greedy_rows_stay_greedy_beside_sampled_ones() -> None:
    seqs = [sequence(), sequence(temperature=50.0, seed=3), sequence()]
    tokens = sample(PEAKED, seqs)
    assert tokens[0] == tokens[2] == 0


def test_uniform_numbers_are_uniform_and_differ_by_seed_and_index() -> None:
    numbers = np.array([uniform(seed, index) for seed in range(300) for index in range(30)])
    assert len(set(numbers.tolist())) == 9000
    counts = np.histogram(numbers, bins=8, range=(0, 1))[0]
    assert ((counts - 1125) ** 2 / 1125).sum() < CHI_SQUARE_999[7]
    consecutive = np.corrcoef(numbers[:-1], numbers[1:])[0, 1]
    assert abs(consecutive) < 4 / math.sqrt(len(numbers))


def test_repetition_penalty_counts_prompt_and_answer() -> None:
    """Token 0 (positive, in the prompt) is divided: 4/2 = 2; token 1 (negative, in the answer) multiplied: -1·2 = -2;
    token 2 (2.5) was not seen and wins."""
    assert sample([4.0, -1.0, 2.5], [sequence([0], answer=[1], repetition_penalty=2.0)]) == [2]
    assert sample([5.2, -1.0, 2.5], [sequence([0], answer=[1], repetition_penalty=2.0)]) == [0]
    assert sample([-3.0, -1.0, -2.5], [sequence([0], answer=[1], repetition_penalty=2.6)]) == [2]
    assert sample([-3.0, -1.0, -2.5], [sequence([0], answer=[1], repetition_penalty=2.4)]) == [1]


def test_presence_and_frequency_penalties_count_the_answer_only() -> None:
    """Prompt tokens are free; three answers of token 1 cost 3·0.5 by frequency, and 0.9 once by presence."""
    assert sample([2.0, 1.9, 0.0], [sequence([0, 0], presence_penalty=2.0)]) == [0]
    three = {"prompt": [0], "answer": [1, 1, 1]}
    assert sample([0.0, 1.6, 0.2], [sequence(**three, frequency_penalty=0.5)]) == [2]  # 1.6 - 1.5 = 0.1
    assert sample([0.0, 1.8, 0.2], [sequence(**three, frequency_penalty=0.5)]) == [1]  # 0.3
    assert sample([0.0, 1.0, 0.2], [sequence(**three, presence_penalty=0.9)]) == [2]  # 0.1
    assert sample([0.0, 1.2, 0.2], [sequence(**three, presence_penalty=0.9)]) == [1]  # 0.3


def test_penalties_follow_an_answer_as_it_grows_and_rows_are_used_again() -> None:
    sampler = Sampler(4, torch.device("cpu"))
    logits = torch.tensor([[1.0, 0.9, 0.8, 0.7]])
    seen = []
    for _ in range(9):
        seq = sequence([3], presence_penalty=1.0)
        for _ in range(4):
            token = sampler(logits.clone(), [seq]).token_ids[0]
            seq.token_ids.append(token)
        seen.append(seq.token_ids[1:])
        sampler.forget(seq)
    assert seen == [[0, 1, 2, 3]] * 9
    assert len(sampler.penalties.counts) < 9, "rows of finished requests are not used again"


def test_logit_bias_moves_single_tokens_and_adds_up_with_repeats() -> None:
    assert sample([1.0, 0.0, 0.0], [sequence(logit_bias=((2, 1.5),))]) == [2]
    assert sample([1.0, 0.0, 0.0], [sequence(logit_bias=((0, -100.0),)), sequence()]) == [1, 0]


def test_min_tokens_bans_ends_until_reached() -> None:
    ends = {"eos_token_ids": (0,), "stop_token_ids": (1,), "min_tokens": 2}
    logits = [3.0, 2.0, 1.0]
    assert sample(logits, [sequence(answer=[2], **ends)]) == [2]
    assert sample(logits, [sequence(answer=[2, 2], **ends)]) == [0]
    assert sample(logits, [sequence(ignore_eos=True, **ends)]) == [0]  # then EOS is a token like any other


def test_logprobs_are_of_the_raw_distribution() -> None:
    sampler = Sampler(3, torch.device("cpu"))
    logits = torch.tensor([[2.0, 1.0, 0.0]] * 2)
    seqs = [
        sequence([0], logprobs=2, repetition_penalty=9.0, logit_bias=((2, 50.0),), temperature=3.0, seed=1),
        sequence(),
    ]
    out = sampler(logits, seqs)
    total = math.log(math.exp(2) + math.exp(1) + 1)
    first = out.logprobs[0]
    assert first is not None
    assert first.token_id == 2
    assert first.logprob == pytest.approx(0 - total, abs=1e-6)
    assert [token for token, _ in first.top] == [0, 1]
    assert [value for _, value in first.top] == pytest.approx([2 - total, 1 - total], abs=1e-6)
    assert out.logprobs[1] is None


def test_logprobs_zero_gives_the_chosen_token_alone() -> None:
    out = Sampler(2, torch.device("cpu"))(torch.tensor([[0.0, 1.0]]), [sequence(logprobs=0)])
    assert out.logprobs[0] is not None
    assert out.logprobs[0].top == ()
    assert out.logprobs[0].logprob == pytest.approx(1 - math.log(1 + math.e), abs=1e-6)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_rows_that_are_not_finite_are_flagged_alone(bad: float) -> None:
    logits = torch.tensor([[0.0, 1.0, 0.5], [0.0, bad, 0.5], [2.0, 1.0, 0.5]])
    out = Sampler(3, torch.device("cpu"))(logits, [sequence(), sequence(temperature=1.0), sequence(logprobs=1)])
    assert out.finite == [True, False, True]
    assert (out.token_ids[0], out.token_ids[2]) == (1, 0)
