"""Decode attention against the formula, over block tables in any order, as a batch grows, shrinks and is uneven."""

from __future__ import annotations

import math
import random

import pytest
import torch

from visavis.engine.block_pool import BlockPool
from visavis.engine.kernels import torch_kernels
from visavis.engine.kernels.base import AttentionRow, StepLayout
from visavis.engine.kernels.torch_decode import DecodeAttention, DenseCopy, InPlace, OneByOne
from visavis.engine.kernels.torch_kernels import TorchKernels
from visavis.engine.kv_cache import KVCache

LAYERS, BLOCK, KV_HEADS, GROUP, DIM = 2, 4, 2, 3, 8


def make_cache(num_blocks: int = 64) -> KVCache:
    cache = KVCache(LAYERS, num_blocks, BLOCK, KV_HEADS, DIM, device=torch.device("cpu"), dtype=torch.float32)
    cache.data.normal_(generator=torch.Generator().manual_seed(1))
    return cache


def with_room(cache: KVCache) -> DecodeAttention:
    """A copy of any size: these caches are so small that it would never be made."""
    attention = DecodeAttention(cache)
    attention.dense.max_bytes = 1 << 30
    return attention


def by_the_formula(cache: KVCache, layer: int, query: torch.Tensor, row: AttentionRow) -> torch.Tensor:
    slots = [row.block_table[i // BLOCK] * BLOCK + i % BLOCK for i in range(row.num_keys)]
    stored = cache.data[layer, slots]
    heads = []
    for head in range(KV_HEADS * GROUP):
        keys, values = stored[:, head // GROUP], stored[:, KV_HEADS + head // GROUP]
        heads.append(torch.softmax(keys @ query[head] / math.sqrt(DIM), 0) @ values)
    return torch.cat(heads)


def run(attention: DecodeAttention, cache: KVCache, rows: list[AttentionRow]) -> type:
    """One step: new keys and values into the cache, then every layer's attention, checked."""
    batch = attention.plan(rows)
    slots = torch.tensor([r.block_table[r.num_context // BLOCK] * BLOCK + r.num_context % BLOCK for r in rows])
    for layer in range(LAYERS):
        new = torch.randn(len(rows), 2 * KV_HEADS, DIM)
        cache.data[layer].index_copy_(0, slots, new)
        queries = torch.randn(len(rows), KV_HEADS * GROUP, DIM)
        ours = batch.attend(layer, queries, new)
        expected = torch.stack([by_the_formula(cache, layer, q, r) for q, r in zip(queries, rows, strict=True)])
        torch.testing.assert_close(ours, expected, atol=1e-5, rtol=1e-5)
    return type(batch)


def test_one_run_of_blocks_is_read_in_place_and_scattered_ones_are_gathered() -> None:
    cache = make_cache()
    attention = with_room(cache)
    assert run(attention, cache, [AttentionRow(0, 9, 1, [3, 4, 5])]) is InPlace
    assert run(attention, cache, [AttentionRow(1, 9, 1, [9, 4, 30])]) is OneByOne


def test_an_uneven_batch_is_attended_one_by_one() -> None:
    cache = make_cache()
    rows = [AttentionRow(i, 0, 1, [i]) for i in range(5)] + [AttentionRow(9, 79, 1, list(range(20, 40)))]
    assert run(DecodeAttention(cache), cache, rows) is OneByOne


@pytest.mark.parametrize("seed", range(4))
def test_batches_that_grow_shrink_and_change_places_stay_right(seed: int) -> None:
    chance = random.Random(seed)
    cache = make_cache()
    pool = BlockPool(64, BLOCK)
    pool._blank.sort(key=lambda _: chance.random())  # block tables in any order
    attention = with_room(cache)
    rows: list[AttentionRow] = []
    kinds = set()
    for step in range(60):
        if len(rows) < 5 and chance.random() < 0.4:
            table: list[int] = []
            context = chance.randrange(1, 12)
            pool.grow(table, context)
            rows.append(AttentionRow(step, context - 1, 1, table))
        if rows and chance.random() < 0.2:
            pool.release(rows.pop(chance.randrange(len(rows))).block_table)
        if chance.random() < 0.1:
            chance.shuffle(rows)
        for row in rows:
            row.num_context += 1
            pool.grow(row.block_table, row.num_keys)
        if rows:
            kinds.add(run(attention, cache, [AttentionRow(r.uid, r.num_context, 1, list(r.block_table)) for r in rows]))
    assert DenseCopy in kinds


def test_a_row_taken_over_from_a_broken_request_is_clean() -> None:
    cache = make_cache()
    attention = with_room(cache)
    broken, healthy = AttentionRow(0, 7, 1, [0, 1]), AttentionRow(1, 7, 1, [2, 3])
    cache.data[:, :8] = math.nan
    attention.plan([broken, healthy])
    successor = AttentionRow(2, 3, 1, [4])
    healthy.num_context += 1
    healthy.block_table.append(5)
    assert run(attention, cache, [successor, healthy]) is DenseCopy


def test_many_short_requests_and_then_few_long_ones_do_not_multiply_the_copy() -> None:
    cache = make_cache(2048)
    attention = with_room(cache)
    many = [AttentionRow(i, 3, 1, [i]) for i in range(64)]
    few = [AttentionRow(100 + i, 4000, 1, list(range(1020 * i, 1020 * i + 1001))) for i in range(2)]
    for rows in (many, few, many):
        assert run(attention, cache, rows) is DenseCopy
        # A batch that is padded at all is padded to twice its size at most; lengths are rounded up to 256.
        assert attention.dense.data.shape[1] * attention.dense.data.shape[2] <= max(64 * 256, 2 * 4096)


def test_a_batch_whose_copy_would_be_too_large_is_attended_one_by_one() -> None:
    """Rounded up to 256 tokens two rows need 512 of the cache's 2,048: exactly the quarter that is allowed."""
    cache = make_cache(512)
    attention = DecodeAttention(cache)
    rows = [AttentionRow(i, 3, 1, [i]) for i in range(3)]
    assert run(attention, cache, rows[:2]) is DenseCopy
    assert attention.dense.data.nbytes == cache.data.nbytes // 4
    assert run(attention, cache, [AttentionRow(i + 10, 3, 1, [i]) for i in range(3)]) is OneByOne


@pytest.mark.parametrize(("num_context", "num_new"), [(5, 11), (40, 3), (1, 16)])
def test_long_chunks_attend_slice_by_slice_as_they_do_at_once(
    monkeypatch: pytest.MonkeyPatch, num_context: int, num_new: int
) -> None:
    def attend() -> torch.Tensor:
        cache = make_cache()
        kernels = TorchKernels(torch.device("cpu"), torch.float32)
        kernels.bind_cache(cache)
        table = list(range(20, 20 + -(-(num_context + num_new) // BLOCK)))
        slots = torch.arange(20 * BLOCK + num_context, 20 * BLOCK + num_context + num_new)
        plan = kernels.plan(StepLayout(slots, prefills=[AttentionRow(0, num_context, num_new, table)]))
        qkv = torch.randn(num_new, KV_HEADS * (GROUP + 2), DIM, generator=torch.Generator().manual_seed(2))
        return kernels.attention(1, qkv, KV_HEADS * GROUP, plan)

    whole = attend()
    monkeypatch.setattr(torch_kernels, "MAX_MASK", 2 * (num_context + num_new))  # two queries a slice
    torch.testing.assert_close(attend(), whole, atol=1e-6, rtol=1e-5)
