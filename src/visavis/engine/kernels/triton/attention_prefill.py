"""Chunks of prompts, causal, over the paged cache that holds their context and already their own keys and values.

One launch for all chunks of a step, whatever their lengths: FlashAttention-2 (arXiv:2307.08691) with block tables.
"""

import triton
import triton.language as tl

from visavis.engine.kernels.triton.softmax import LOG2E, accumulate

__all__ = ["prefill_attention_kernel"]


@triton.jit
def _tile(
    q, cache, table, head, start, end, first, acc, top, total, scale,
    K: tl.constexpr, D: tl.constexpr, D_PAD: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    BLOCK_N: tl.constexpr, MASKED: tl.constexpr, PRECISION: tl.constexpr, rows,
):  # fmt: skip
    """Keys start … start + BLOCK_N before `end` for the queries at `first + rows`; with MASKED those not after them."""
    stride: tl.constexpr = 2 * K * D
    d = tl.arange(0, D_PAD)
    token = start + tl.arange(0, BLOCK_N)
    inside = token < end
    block = tl.load(table + token // BLOCK_SIZE, mask=inside, other=0).to(tl.int64)
    keys = cache + (block * BLOCK_SIZE + token % BLOCK_SIZE) * stride + head * D
    live_k = inside[None, :] & (d < D)[:, None]
    live_v = inside[:, None] & (d < D)[None, :]
    k = tl.load(keys[None, :] + d[:, None], mask=live_k, other=0.0)
    v = tl.load(keys[:, None] + K * D + d[None, :], mask=live_v, other=0.0)
    score = tl.dot(q, k, input_precision=PRECISION) * (scale * LOG2E)
    if MASKED:
        score = tl.where(token[None, :] <= (first + rows)[:, None], score, float("-inf"))
    return accumulate(score, v, acc, top, total, PRECISION)


@triton.jit(
    do_not_specialize=["table_stride"],  # which changes from step to step, as what follows does
    do_not_specialize_on_alignment=["tables", "starts", "contexts", "counts"],
)
def prefill_attention_kernel(
    qkv,  # (tokens, H + 2K, D), rotated; keys and values are read from the cache
    cache,  # (slots, 2K, D) of this layer
    out,  # (tokens, H · D)
    tables,  # (chunks, table_stride) int32
    starts,  # (chunks,) int32: a chunk's first row of qkv
    contexts,  # (chunks,) int32: its tokens computed earlier
    counts,  # (chunks,) int32: its tokens
    table_stride,
    scale,
    H: tl.constexpr,
    K: tl.constexpr,
    D: tl.constexpr,
    D_PAD: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PRECISION: tl.constexpr,
):
    chunk = tl.program_id(2)
    query_head = tl.program_id(1)
    count = tl.load(counts + chunk)
    # The last tiles have most keys: started first, they do not end last.
    tile = tl.num_programs(0) - 1 - tl.program_id(0)
    if tile * BLOCK_M < count:
        head = query_head // (H // K)
        context = tl.load(contexts + chunk)
        rows = tile * BLOCK_M + tl.arange(0, BLOCK_M)
        d = tl.arange(0, D_PAD)
        live = (rows < count)[:, None] & (d < D)[None, :]
        token = (tl.load(starts + chunk) + rows).to(tl.int64)
        q = tl.load(qkv + token[:, None] * (H + 2 * K) * D + query_head * D + d[None, :], mask=live, other=0.0)
        table = tables + chunk * table_stride
        acc = tl.zeros((BLOCK_M, D_PAD), tl.float32)
        top = tl.full((BLOCK_M,), float("-inf"), tl.float32)
        total = tl.zeros((BLOCK_M,), tl.float32)
        end = tl.minimum(context + (tile + 1) * BLOCK_M, context + count)
        whole = (context + tile * BLOCK_M) // BLOCK_N * BLOCK_N  # up to here every query sees every key
        for start in range(0, whole, BLOCK_N):
            acc, top, total = _tile(
                q, cache, table, head, start, end, context, acc, top, total, scale,
                K, D, D_PAD, BLOCK_SIZE, BLOCK_N, False, PRECISION, rows,
            )  # fmt: skip
        for start in range(whole, end, BLOCK_N):
            acc, top, total = _tile(
                q, cache, table, head, start, end, context, acc, top, total, scale,
                K, D, D_PAD, BLOCK_SIZE, BLOCK_N, True, PRECISION, rows,
            )  # fmt: skip
        at = out + token[:, None] * H * D + query_head * D + d[None, :]
        tl.store(at, (acc / total[:, None]).to(out.dtype.element_ty), mask=live)
