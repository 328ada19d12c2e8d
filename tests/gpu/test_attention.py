"""Paged attention against its twin: head sizes, groups, block borders, lengths from 0, holes in the batch."""

from __future__ import annotations

import pytest
import torch

from tests.gpu.conftest import ON_GPU
from visavis.engine.kernels.triton import twins
from visavis.engine.kernels.triton.launch import Launcher

HEADS = [(4, 2, 64), (6, 1, 80), (3, 3, 96), (12, 2, 128), (2, 1, 16)] if ON_GPU else [(6, 1, 80), (4, 2, 16)]
DTYPES = [torch.float32, torch.bfloat16]
BFLOAT16_ERROR = 1e-2 if ON_GPU else 3e-2  # the interpreter cuts off where a GPU rounds


def paged(lengths: list[int], block_size: int, device: torch.device) -> tuple[torch.Tensor, int]:
    """Block tables of requests of these lengths, blocks handed out at random, and how many blocks there are."""
    counts = [-(-n // block_size) for n in lengths]
    blocks = torch.randperm(sum(counts) + 3).tolist()
    tables = torch.zeros(len(lengths), max(counts) + 1, dtype=torch.int32)
    for row, count in enumerate(counts):
        tables[row, :count] = torch.tensor([blocks.pop() for _ in range(count)], dtype=torch.int32)
    return tables.to(device), sum(counts) + 3


def slots_of(table: torch.Tensor, length: int, block_size: int) -> torch.Tensor:
    token = torch.arange(length, device=table.device)
    return table[token // block_size].long() * block_size + token % block_size


@pytest.mark.parametrize("dtype", DTYPES, ids=["float32", "bfloat16"])
@pytest.mark.parametrize("qk_norm", [False, True], ids=["plain", "qk_norm"])
@pytest.mark.parametrize("heads", HEADS, ids=str)
@pytest.mark.parametrize("splits", [1, 4])
def test_fused_decode_equals_twin_and_stores_the_new_token(
    splits: int, heads: tuple[int, int, int], qk_norm: bool, dtype: torch.dtype, device: torch.device
) -> None:
    h, k, d = heads
    block_size = 16
    contexts = [0, 1, 15, 63, 64, 700, 16, 17, 65, 130, 2049, 16000] if ON_GPU else [0, 1, 16, 130]
    tables, num_blocks = paged([n + 1 for n in contexts], block_size, device)
    cache = torch.randn(num_blocks * block_size, 2 * k, d, device=device).to(dtype)
    before = cache.clone()
    rows = len(contexts) + 1  # the last one is a hole
    qkv = torch.randn(rows, h + 2 * k, d, device=device).to(dtype)
    out = torch.full((rows, h * d), 7.0, device=device, dtype=dtype)
    positions = torch.tensor([3 * n + 1 for n in contexts] + [0], dtype=torch.int32, device=device)
    angles = torch.rand(int(positions.max()) + 1, d // 2, device=device) * 6
    cos, sin = angles.cos(), angles.sin()
    weights = tuple((torch.rand(d, device=device) + 0.5).to(dtype) for _ in range(2))
    launcher = Launcher(device)
    scratch = launcher.decode_scratch(4 * rows, k, h // k, d, 16)
    order = torch.randperm(len(contexts))
    table_rows = torch.zeros(rows, dtype=torch.int32, device=device)
    table_rows[: len(contexts)] = order.int().to(device)
    shuffled = torch.empty_like(tables)
    shuffled[order.to(device)] = tables
    launcher.decode_attention(
        qkv, cache, out, shuffled, table_rows, torch.tensor([*contexts, -1], dtype=torch.int32, device=device),
        block_size=block_size, scratch=scratch, turn=(positions, cos, sin),
        qk_norm=(weights[0], weights[1]) if qk_norm else None, eps=1e-6, splits=splits,
    )  # fmt: skip
    turned = qkv.clone()
    if qk_norm:
        turned[:, :h] = twins.rms_norm(qkv[:, :h], weights[0], 1e-6)
        turned[:, h : h + k] = twins.rms_norm(qkv[:, h : h + k], weights[1], 1e-6)
    turned[:, : h + k] = twins.rotate(turned[:, : h + k], cos[positions.long()], sin[positions.long()])
    exact = dtype == torch.float32
    for row, context in enumerate(contexts):
        slots = slots_of(tables[row], context + 1, block_size)
        before[slots[-1]] = turned[row, h:]
        torch.testing.assert_close(
            cache[slots[-1]], turned[row, h:], rtol=1e-5 if exact else 2e-2, atol=1e-5 if exact else 2e-2
        )
        expected = twins.attention(turned[row : row + 1, :h], before[slots], context)[0]
        error = (out[row].float() - expected).norm() / expected.norm()
        assert error < (1e-5 if exact else BFLOAT16_ERROR), (context, error)
    untouched = torch.ones(cache.shape[0], dtype=torch.bool, device=device)
    for row, context in enumerate(contexts):
        untouched[slots_of(tables[row], context + 1, block_size)[-1]] = False
    assert torch.equal(cache[untouched], before[untouched]), "only the new tokens' slots are written"
    assert (out[-1] == 7.0).all(), "a hole in the batch is left alone"
    assert not scratch.arrived.any()


@pytest.mark.parametrize("dtype", DTYPES, ids=["float32", "bfloat16"])
@pytest.mark.parametrize("heads", HEADS, ids=str)
@pytest.mark.parametrize("block_size", [16, 5])
def test_prefill_of_uneven_chunks_equals_twin(
    block_size: int, heads: tuple[int, int, int], dtype: torch.dtype, device: torch.device
) -> None:
    h, k, d = heads
    chunks = [(0, 1), (5, 20), (33, 34)]
    if ON_GPU:
        chunks += [(0, 33), (70, 2), (5, 64), (64, 65), (0, 700), (1000, 300), (0, 129)]
    tables, num_blocks = paged([a + b for a, b in chunks], block_size, device)
    cache = torch.randn(num_blocks * block_size, 2 * k, d, device=device).to(dtype)
    tokens = sum(b for _, b in chunks)
    qkv = torch.randn(tokens, h + 2 * k, d, device=device).to(dtype)
    starts = [sum(b for _, b in chunks[:i]) for i in range(len(chunks))]
    for row, (start, (context, count)) in enumerate(zip(starts, chunks, strict=True)):
        cache[slots_of(tables[row], context + count, block_size)[context:]] = qkv[start : start + count, h:]
    out = torch.full((tokens, h * d), float("nan"), device=device, dtype=dtype)
    as_int = [torch.tensor(x, dtype=torch.int32, device=device) for x in (starts, *zip(*chunks, strict=True))]
    Launcher(device).prefill_attention(
        qkv, cache, out, tables, *as_int, max(b for _, b in chunks), block_size=block_size
    )
    for row, (start, (context, count)) in enumerate(zip(starts, chunks, strict=True)):
        stored = cache[slots_of(tables[row], context + count, block_size)]
        expected = twins.attention(qkv[start : start + count, :h], stored, context)
        error = (out[start : start + count].float() - expected).norm() / expected.norm()
        assert error < (1e-5 if dtype == torch.float32 else BFLOAT16_ERROR), (context, count, error)
