"""The batched sampler: what is kept from step to step, what is not computed, and what never waits for the device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.unit.engine.helpers import sequence
from visavis.engine import sampler as sampler_module
from visavis.engine.draw import BLOCK, MANY_TOKENS, Drawer, DrawRules, greedy
from visavis.engine.random_numbers import uniform, uniforms
from visavis.engine.sampler import Sampler

CPU = torch.device("cpu")
KINDS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.8, "seed": 1},
    {"temperature": 0.7, "top_k": 5, "top_p": 0.8, "repetition_penalty": 1.3, "seed": 2},
    {"temperature": 1.2, "top_p": 0.9, "presence_penalty": 0.7, "seed": 3},
    {"temperature": 1.0, "min_p": 0.1, "frequency_penalty": 0.4, "seed": 4},
    {"repetition_penalty": 1.5},
    {"min_tokens": 5, "eos_token_ids": (3, 4)},
    {"logit_bias": ((2, 1.0), (7, -1.0)), "logprobs": 2},
    {"bad_words_ids": ((5,), (1, 6))},
]


def random_logits(rows: int, vocab: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * 2


def test_random_numbers_of_many_are_those_of_each() -> None:
    seeds = [0, 1, 17, 2**31 - 1, 2**63 - 1]
    index = [0, 1, 63, 64, 10**6]
    pairs = [(s, i) for s in seeds for i in index]
    got = uniforms(torch.tensor([s for s, _ in pairs]), torch.tensor([i for _, i in pairs]))
    assert got.tolist() == [uniform(s, i) for s, i in pairs]


@pytest.mark.parametrize("vocab", [7, 2048, MANY_TOKENS, MANY_TOKENS + 1, 49152, MANY_TOKENS + BLOCK - 1])
def test_greedy_is_argmax_the_first_of_equals_and_nan_first_of_all(vocab: int) -> None:
    logits = random_logits(6, vocab)
    logits[1, [3, vocab - 1]] = 50.0  # equals, far apart
    logits[2, -1] = 50.0
    logits[3, 0] = 50.0
    logits[4, vocab // 2] = torch.nan
    logits[5] = -torch.inf
    assert torch.equal(greedy(logits), logits.argmax(-1))


def steps(seqs: list[Any], count: int, logits: list[torch.Tensor], sampler: Sampler | None = None) -> list[list[int]]:
    """`count` tokens of each request; without a sampler each step has a new one, which knows nothing from before."""
    for step in range(count):
        one = sampler or Sampler(logits[0].shape[1], CPU)
        for seq, token in zip(seqs, one(logits[step].clone(), seqs).token_ids, strict=True):
            seq.token_ids.append(token)
    return [seq.token_ids[seq.num_prompt_tokens :] for seq in seqs]


def test_what_is_kept_between_steps_changes_no_token() -> None:
    """80 steps: longer than the random numbers, the cells of the penalties and min_tokens are made for at once."""
    logits = [random_logits(len(KINDS), 12, seed) for seed in range(80)]
    fresh = steps([sequence(4, **kind) for kind in KINDS], 80, logits)
    kept = steps([sequence(4, **kind) for kind in KINDS], 80, logits, Sampler(12, CPU))
    assert kept == fresh
    assert len({tuple(answer) for answer in kept}) == len(KINDS)


def test_requests_that_leave_and_return_keep_their_penalties() -> None:
    logits = [random_logits(len(KINDS), 12, seed) for seed in range(30)]
    expected = steps([sequence(4, **kind) for kind in KINDS], 30, logits)
    sampler, seqs = Sampler(12, CPU), [sequence(4, **kind) for kind in KINDS]
    done = [0] * len(KINDS)
    turn = 0
    while min(done) < 30:
        present = [i for i in range(len(KINDS)) if done[i] < 30 and (i + turn // 3) % 4]  # a changing part of them
        present = present[:: -1 if turn % 2 else 1]
        rows = torch.stack([logits[done[i]][i] for i in present]) if present else torch.zeros(0, 12)
        for i, token in zip(present, sampler(rows, [seqs[i] for i in present]).token_ids, strict=True):
            seqs[i].token_ids.append(token)
            done[i] += 1
        turn += 1
    assert [seq.token_ids[4:] for seq in seqs] == expected


def test_a_greedy_batch_takes_the_largest_logit_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise AssertionError("a greedy batch did more than it must")

    monkeypatch.setattr(Sampler, "_adjust", refuse)
    monkeypatch.setattr(Sampler, "_choose", refuse)
    seqs = [sequence(), sequence(min_tokens=2, answer=[1, 1], eos_token_ids=(0,))]  # min_tokens is behind it
    sampler = Sampler(9, CPU)
    logits = random_logits(2, 9)
    before = logits.clone()
    batch = None
    for _ in range(3):
        out = sampler(logits, seqs)
        assert out.token_ids == before.argmax(-1).tolist()
        assert batch in (None, sampler._batch), "the batch is the same and was made anew"
        batch = sampler._batch
        for seq in seqs:
            seq.token_ids.append(1)
    assert torch.equal(logits, before)


def test_asking_whether_the_largest_is_enough_changes_nothing() -> None:
    logits = random_logits(len(KINDS), 12)
    asked, seqs = Sampler(12, CPU), [sequence(4, **kind) for kind in KINDS]
    silent, same = Sampler(12, CPU), [sequence(4, **kind) for kind in KINDS]
    for _ in range(10):
        assert not asked.takes_largest(seqs)
        tokens = asked(logits.clone(), seqs).token_ids
        assert tokens == silent(logits.clone(), same).token_ids
        for token, pair in zip(tokens, zip(seqs, same, strict=True), strict=True):
            for seq in pair:
                seq.token_ids.append(token)
    assert Sampler(12, CPU).takes_largest([sequence(), sequence()])
    assert not Sampler(12, CPU).takes_largest([sequence(), sequence(temperature=1.0)])


def test_a_batch_becomes_plain_when_its_min_tokens_are_reached() -> None:
    sampler, seq = Sampler(5, CPU), sequence(min_tokens=2, eos_token_ids=(0,))
    logits = torch.tensor([[9.0, 1.0, 0.0, 0.0, 0.0]])
    tokens = []
    for _ in range(4):
        tokens += sampler(logits.clone(), [seq]).token_ids
        seq.token_ids.append(tokens[-1])
    assert tokens == [1, 1, 0, 0]
    assert sampler._batch is not None
    assert sampler._batch.plain


def test_nothing_waits_for_the_device_before_fetch() -> None:
    """On the meta device, which has shapes and no values, every read of a value raises."""
    meta = torch.device("meta")
    kinds = [kind for kind in KINDS if "bad_words_ids" not in kind] + [{"bad_words_ids": ((5,),)}]
    sampler, seqs = Sampler(2000, meta), [sequence(4, **kind) for kind in kinds]
    for _ in range(70):
        pending = sampler.sample(torch.empty(len(seqs), 2000, device=meta), seqs)
        assert pending.token_ids.shape == (len(seqs),)
        for seq in seqs:
            seq.token_ids.append(0)
    with pytest.raises((NotImplementedError, RuntimeError)):
        pending.fetch()
    assert sampler._batch is not None
    assert not sampler._batch.needs_host_tokens
    phrases = Sampler(20, CPU)
    phrases(random_logits(1, 20), [sequence(bad_words_ids=((5, 6),))])
    assert phrases._batch is not None
    assert phrases._batch.needs_host_tokens, "a bad word of several tokens needs the newest one on the host"


def test_one_transfer_brings_what_is_read_on_a_cpu() -> None:
    columns = [torch.tensor([151_935, 0, 7]), torch.tensor([0.1, torch.nan, -torch.inf]), torch.tensor([1.0, 2.0, 3.0])]
    packed = torch.tensor([[-0.1, -2.5, 151_000.0], [0.0, -1.0, 3.0]], dtype=torch.float64)
    for ranked in (packed, None):
        heads, rest = sampler_module._transfer(columns, ranked)
        read, as_read = sampler_module.to_host(columns, ranked)
        assert repr(heads) == repr([[float(x) for x in column] for column in read])  # repr: NaN is not NaN
        assert rest == as_read


def test_a_device_without_float64_hands_its_logits_to_the_cpu() -> None:
    sampler = Sampler(5, torch.device("mps"))  # nothing is made there, so none is needed
    assert sampler.device == CPU
    assert sampler(random_logits(2, 5), [sequence(), sequence(temperature=1.0, top_p=0.5)]).finite == [True, True]


# ---- the draw ------------------------------------------------------------------------------------------------------


def rules(rows: int, vocab: int, **kinds: Any) -> DrawRules:
    top_k, top_p = kinds.get("top_k", 0), kinds.get("top_p", 1.0)
    return DrawRules(
        temperature=torch.full((rows, 1), kinds.get("temperature", 1.0)),
        min_p=torch.full((rows, 1), kinds["min_p"]) if "min_p" in kinds else None,
        top_k=torch.full((rows, 1), top_k) if top_k else None,
        top_p=torch.full((rows, 1), top_p, dtype=torch.float64) if top_p < 1 else None,
        max_top_k=top_k,
        only_within_top_k=bool(top_k) or top_p >= 1,
    )


@pytest.mark.parametrize("spread", [0.1, 4.0], ids=["flat", "peaked"])
@pytest.mark.parametrize("vocab", [300, 5000])
def test_a_draw_is_the_inverse_of_the_cumulated_probabilities(vocab: int, spread: float) -> None:
    """Against float64 over the whole vocabulary: the token whose part of [0, 1) the number falls in."""
    logits = random_logits(40, vocab) * spread
    numbers = torch.rand(40, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    cumulated = logits.double().softmax(-1).cumsum(-1)
    got = Drawer(vocab, CPU)(logits, rules(40, vocab), numbers)
    low = torch.cat([torch.zeros(40, 1, dtype=torch.float64), cumulated], 1).gather(1, got[:, None])
    high = cumulated.gather(1, got[:, None])
    assert bool((low[:, 0] <= numbers + 1e-6).all())
    assert bool((numbers <= high[:, 0] + 1e-6).all())


@pytest.mark.parametrize("number", [0.0, 1.0 - 2.0**-53])
def test_the_ends_of_the_unit_interval_draw_tokens_that_are_allowed(number: float) -> None:
    vocab = 1000
    logits = torch.full((1, vocab), -torch.inf)
    logits[0, [400, 401, 700]] = torch.tensor([0.0, 1.0, 0.5])
    got = Drawer(vocab, CPU)(logits, rules(1, vocab), torch.tensor([number], dtype=torch.float64))
    assert got.item() == (400 if number == 0.0 else 700)


def test_few_and_all_weights_give_the_same_share() -> None:
    """top_p that needs 1, some hundreds and nearly all tokens: looking at a few first must change nothing."""
    vocab = 3000
    logits = torch.cat([random_logits(4, vocab) * 0.2, random_logits(4, vocab) * 5])
    for top_p in (0.01, 0.2, 0.5, 0.9, 0.999):
        kept = Drawer(vocab, CPU).weights(logits, rules(8, vocab, top_p=top_p))[:, :vocab] > 0
        ordered, order = logits.double().softmax(-1).sort(-1, descending=True)
        expected = torch.zeros_like(kept).scatter_(1, order, ordered.cumsum(-1) - ordered < top_p)
        assert torch.equal(kept, expected), top_p


def test_other_rows_filters_change_no_row() -> None:
    logits = random_logits(6, 700)
    kinds: list[dict[str, Any]] = [
        {"temperature": 0.9, "seed": 1},
        {"temperature": 0.9, "seed": 1, "top_p": 0.3},
        {"temperature": 0.9, "seed": 1, "top_k": 400},
        {"temperature": 0.9, "seed": 1, "min_p": 0.2},
        {"temperature": 0.9, "seed": 1, "top_k": 3, "top_p": 0.9},
        {"temperature": 0.9, "seed": 1, "top_k": 10, "min_p": 0.01, "top_p": 0.7},
    ]
    together, alone = [], []
    for index in range(40):
        seqs = [sequence(answer=[1] * index, **kind) for kind in kinds]
        together.append(Sampler(700, CPU)(logits.clone(), seqs).token_ids)
        alone.append([Sampler(700, CPU)(logits[i : i + 1].clone(), [seq]).token_ids[0] for i, seq in enumerate(seqs)])
    assert together == alone
    assert len(set(np.array(together)[:, 0].tolist())) > 10


def test_a_row_in_which_everything_is_banned_says_so_alone() -> None:
    seqs = [sequence(bad_words_ids=((0,), (1,), (2,))), sequence(bad_words_ids=((0,),)), sequence()]
    out = Sampler(3, CPU)(torch.tensor([[3.0, 2.0, 1.0]] * 3), seqs)
    assert out.token_ids == [sampler_module.NOTHING_ALLOWED, 1, 0]
    assert out.finite == [True] * 3
