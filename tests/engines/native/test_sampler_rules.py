"""The sampler against transformers' own logits processors, value by value, and against arithmetic where there are none.

Both engines that choose tokens by our rules (`native` and `hf`) use this sampler.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import (
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    NoBadWordsLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from tests.unit.engine.helpers import sequence
from visavis.engine.sampler import Sampler
from visavis.engine.sampling_batch import SamplingBatch
from visavis.engine.sequence import Sequence

pytestmark = pytest.mark.engines

VOCAB = 400
CPU = torch.device("cpu")


def logits(seed: int = 0, rows: int = 1, spread: float = 3.0) -> torch.Tensor:
    return torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(seed)) * spread


def batch_of(sampler: Sampler, seqs: list[Sequence]) -> SamplingBatch:
    return SamplingBatch(seqs, VOCAB, CPU, sampler.penalties)


def adjusted(seqs: list[Sequence], raw: torch.Tensor) -> torch.Tensor:
    """The logits after biases, bans and penalties."""
    sampler, ours = Sampler(VOCAB, CPU), raw.clone()
    sampler._adjust(ours, batch_of(sampler, seqs))
    return ours


def probabilities(seqs: list[Sequence], raw: torch.Tensor) -> torch.Tensor:
    """What tokens are drawn with, float64."""
    sampler = Sampler(VOCAB, CPU)
    rules = batch_of(sampler, seqs).rules
    assert rules is not None
    weights = sampler._drawer.weights(raw, rules)[:, :VOCAB].double()
    return weights / weights.sum(-1, keepdim=True)


# ---- before the draw -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("penalty", [0.6, 1.05, 1.7])
def test_repetition_penalty_counts_prompt_and_answer_as_transformers_does(penalty: float) -> None:
    prompt, answer = [1, 2, 2, 3], [4, 4, 1]
    got = adjusted([sequence(prompt, answer, repetition_penalty=penalty)], logits())
    reference = RepetitionPenaltyLogitsProcessor(penalty)(torch.tensor([[*prompt, *answer]]), logits())
    assert torch.equal(got, reference)
    assert not torch.equal(got, logits())


def test_bad_words_are_banned_as_in_transformers_prompt_included() -> None:
    words = ((7,), (8, 9), (8, 10, 11), (2, 12))
    processor = NoBadWordsLogitsProcessor([list(w) for w in words])
    for prompt, answer in (([1], []), ([1, 2], []), ([8], [10]), ([1], [8]), ([3], [8, 10]), ([3], [10, 8])):
        got = adjusted([sequence(prompt, answer, bad_words_ids=words)], logits())
        reference = processor(torch.tensor([[*prompt, *answer]]), logits())
        assert torch.equal(got, reference), (prompt, answer)


def test_min_tokens_bans_the_end_as_in_transformers_and_stop_ids_too() -> None:
    processor = MinNewTokensLengthLogitsProcessor(2, 2, [3, 4], device="cpu")
    values: dict[str, Any] = {"min_tokens": 2, "eos_token_ids": (3,), "stop_token_ids": (4,)}
    for answer in ([], [9], [9, 9]):
        got = adjusted([sequence([5, 6], answer, **values)], logits())
        assert torch.equal(got, processor(torch.tensor([[5, 6, *answer]]), logits())), answer
    ignoring = adjusted([sequence([5, 6], [], **values, ignore_eos=True)], logits())
    assert torch.isfinite(ignoring[0, 3])
    assert torch.isinf(ignoring[0, 4])


def test_logit_bias_is_transformers_sequence_bias_of_single_tokens() -> None:
    biases = ((5, 2.5), (7, -100.0), (9, 0.25))
    got = adjusted([sequence([1], logit_bias=biases)], logits())
    processor = SequenceBiasLogitsProcessor([[[token], bias] for token, bias in biases])
    assert torch.equal(got, processor(torch.tensor([[1]]), logits()))


def test_presence_and_frequency_penalties_count_the_answer_only() -> None:
    """OpenAI's formula: logit − frequency · count − presence · (count > 0)."""
    got = adjusted([sequence([1, 2, 3], [4, 4, 5], presence_penalty=0.5, frequency_penalty=0.25)], logits())
    expected = logits()
    expected[0, 4] -= 0.5 + 2 * 0.25
    expected[0, 5] -= 0.5 + 0.25
    assert torch.allclose(got, expected, atol=1e-6)


def test_the_order_is_bias_then_repetition_then_presence() -> None:
    """(−1 + 3) / 2 − 0.5 = 0.5; any other order gives another number."""
    raw = torch.zeros(1, VOCAB)
    raw[0, 7] = -1.0
    got = adjusted([sequence([1], [7], logit_bias=((7, 3.0),), repetition_penalty=2.0, presence_penalty=0.5)], raw)
    assert float(got[0, 7]) == pytest.approx(0.5)


def test_every_row_is_adjusted_by_its_own_rules() -> None:
    seqs = [
        sequence([1, 2], [3], repetition_penalty=1.3),
        sequence([1, 2], [3]),
        sequence([1, 2], [3], bad_words_ids=((3, 4),), presence_penalty=0.5),
        sequence([5], logit_bias=((6, 1.0),), min_tokens=1, eos_token_ids=(7,)),
    ]
    raw = logits(rows=4)
    together = adjusted(seqs, raw)
    for row, seq in enumerate(seqs):
        assert torch.equal(together[row], adjusted([seq], raw[row : row + 1])[0])
    assert torch.equal(together[1], raw[1])


# ---- the draw --------------------------------------------------------------------------------------------------------

WARPED: list[tuple[dict[str, Any], list[Any]]] = [
    ({"temperature": 0.7}, [TemperatureLogitsWarper(0.7)]),
    ({"temperature": 1.0, "top_k": 5}, [TopKLogitsWarper(5)]),
    ({"temperature": 1.0, "top_k": 300}, [TopKLogitsWarper(300)]),
    ({"temperature": 1.0, "top_p": 0.8}, [TopPLogitsWarper(0.8)]),
    ({"temperature": 1.0, "top_p": 0.999}, [TopPLogitsWarper(0.999)]),
    ({"temperature": 1.0, "top_p": 1e-6}, [TopPLogitsWarper(1e-6)]),
    ({"temperature": 1.5, "min_p": 0.1}, [TemperatureLogitsWarper(1.5), MinPLogitsWarper(0.1)]),
    (
        {"temperature": 1.3, "top_k": 12, "top_p": 0.9},
        [TemperatureLogitsWarper(1.3), TopKLogitsWarper(12), TopPLogitsWarper(0.9)],
    ),
    (
        {"temperature": 0.9, "min_p": 0.02, "top_k": 30, "top_p": 0.6},
        [TemperatureLogitsWarper(0.9), MinPLogitsWarper(0.02), TopKLogitsWarper(30), TopPLogitsWarper(0.6)],
    ),
    ({"temperature": 1.0, "top_k": 10_000}, []),
]


@pytest.mark.parametrize("spread", [0.3, 3.0], ids=["flat", "peaked"])
@pytest.mark.parametrize(("values", "warpers"), WARPED)
def test_filters_leave_the_tokens_and_the_probabilities_of_transformers(
    values: dict[str, Any], warpers: list[Any], spread: float
) -> None:
    raw = logits(rows=8, spread=spread)
    expected = raw
    for warper in warpers:
        expected = warper(torch.zeros(8, 1, dtype=torch.long), expected)
    reference = expected.double().softmax(-1)
    got = probabilities([sequence([1], **values) for _ in range(8)], raw)
    assert torch.equal(got > 0, reference > 0)
    assert torch.allclose(got, reference, rtol=2e-5, atol=1e-12)


def test_a_batch_of_all_filters_gives_each_row_its_own_probabilities() -> None:
    raw = logits(rows=len(WARPED))
    got = probabilities([sequence([1], **values) for values, _ in WARPED], raw)
    for row, (_, warpers) in enumerate(WARPED):
        expected = raw[row : row + 1]
        for warper in warpers:
            expected = warper(torch.zeros(1, 1, dtype=torch.long), expected)
        reference = expected.double().softmax(-1)[0]
        assert torch.equal(got[row] > 0, reference > 0), row
        assert torch.allclose(got[row], reference, rtol=2e-5, atol=1e-12), row


CHI_SQUARE_999 = (
    *(10.83, 13.82, 16.27, 18.47, 20.52, 22.46, 24.32, 26.12, 27.88, 29.59),
    *(31.26, 32.91, 34.53, 36.12, 37.70, 39.25, 40.79, 42.31, 43.82, 45.31),
)
"""99.9 % quantiles of the chi-square distribution with 1 to 20 degrees of freedom (standard table)."""


@pytest.mark.parametrize("spread", [0.3, 3.0], ids=["flat", "peaked"])
@pytest.mark.parametrize(("values", "warpers"), WARPED)
def test_tokens_are_drawn_as_often_as_transformers_would_draw_them(
    values: dict[str, Any], warpers: list[Any], spread: float
) -> None:
    """20,000 fixed seeds. Tokens are pooled into classes of 5 % or more, up to 21, then chi-square at 0.1 %."""
    raw = logits(seed=5, spread=spread)
    expected = raw
    for warper in warpers:
        expected = warper(torch.zeros(1, 1, dtype=torch.long), expected)
    reference = expected.double().softmax(-1)[0]
    tries = 20_000
    sampler = Sampler(VOCAB, CPU)
    drawn: list[int] = []
    for start in range(0, tries, 2000):
        seqs = [sequence([1], seed=start + i, **values) for i in range(2000)]
        drawn += sampler(raw.expand(2000, -1).clone(), seqs).token_ids
    counts = torch.bincount(torch.tensor(drawn), minlength=VOCAB).double()
    assert counts[reference == 0].sum() == 0, "a token without probability was drawn"
    bins: list[list[float]] = []
    for p, count in sorted(zip(reference.tolist(), counts.tolist(), strict=True), reverse=True):
        if p == 0:
            continue
        if not bins or bins[-1][0] >= 0.05:
            bins.append([0.0, 0.0])
        bins[-1][0] += p
        bins[-1][1] += count
    chi = sum((count - tries * p) ** 2 / (tries * p) for p, count in bins)
    if len(bins) > 1:
        assert chi < CHI_SQUARE_999[len(bins) - 2], (len(bins), chi)
