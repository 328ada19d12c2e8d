"""One new token of each request over its paged cache: split along the keys, all query heads of a key head together.

What stands before attention in a decode step is folded in: q/k norm, rotation, and storing the new key and value. The
programs of one (request, key head) share its keys; the one that finishes last joins their parts (FlashDecoding), or,
where they are few, the product behind does.
"""

import triton
import triton.language as tl

from visavis.engine.kernels.triton.overlap import end_overlap, wait_for_input
from visavis.engine.kernels.triton.softmax import LOG2E, accumulate

__all__ = ["JOINED_LATER", "MAX_SPLITS", "decode_attention_kernel", "split_keys"]

MAX_SPLITS = tl.constexpr(64)
JOINED_LATER = tl.constexpr(8)
"""As many parts at most are left for the product behind attention to join."""


@triton.jit
def split_keys(context, splits, BLOCK: tl.constexpr, MIN_SPLIT: tl.constexpr, LATER: tl.constexpr):
    """How many tokens each program of a request takes, and how many programs that makes. With LATER contexts that
    `JOINED_LATER` programs of two tiles can take are never split finer."""
    length = tl.maximum((context + splits * BLOCK - 1) // (splits * BLOCK) * BLOCK, MIN_SPLIT)
    if LATER:
        longer = (context + JOINED_LATER * BLOCK - 1) // (JOINED_LATER * BLOCK) * BLOCK
        length = tl.where(longer <= 2 * BLOCK, tl.maximum(length, longer), length)
    return length, tl.maximum((context + length - 1) // length, 1)


@triton.jit
def _head_norm(low, high, weight, half, live, eps, D: tl.constexpr):
    """RMS norm over heads held as two halves (…, D / 2), rounded where the reference rounds."""
    a, b = low.to(tl.float32), high.to(tl.float32)
    scale = tl.rsqrt((tl.sum(a * a, 1) + tl.sum(b * b, 1)) / D + eps)[:, None]
    w_low = tl.load(weight + half, mask=live, other=0.0)[None, :].to(tl.float32)
    w_high = tl.load(weight + D // 2 + half, mask=live, other=0.0)[None, :].to(tl.float32)
    low = ((a * scale).to(low.dtype).to(tl.float32) * w_low).to(low.dtype)
    high = ((b * scale).to(high.dtype).to(tl.float32) * w_high).to(high.dtype)
    return low, high


@triton.jit
def _load_tile(
    cache, table, head, start, end,
    K: tl.constexpr, D: tl.constexpr, HALF_PAD: tl.constexpr, D_PAD: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Keys (as two halves, transposed) and values of the tokens start … before `end`; zeros elsewhere."""
    half = tl.arange(0, HALF_PAD)
    d = tl.arange(0, D_PAD)
    token = start + tl.arange(0, BLOCK)
    live = token < end
    block = tl.load(table + token // BLOCK_SIZE, mask=live, other=0).to(tl.int64)
    keys = cache + (block * BLOCK_SIZE + token % BLOCK_SIZE) * (2 * K * D) + head * D
    live_k = live[None, :] & (half < D // 2)[:, None]
    k_low = tl.load(keys[None, :] + half[:, None], mask=live_k, other=0.0)
    k_high = tl.load(keys[None, :] + D // 2 + half[:, None], mask=live_k, other=0.0)
    v = tl.load(keys[:, None] + K * D + d[None, :], mask=live[:, None] & (d < D)[None, :], other=0.0)
    return k_low, k_high, v


@triton.jit
def _attend(q_low, q_high, k_low, k_high, v, live, acc, top, total, scale, PRECISION: tl.constexpr):
    """One tile into the running sum, maximum and denominator. `top` must be finite or the tile hold a live token."""
    score = tl.dot(q_low, k_low, input_precision=PRECISION)
    score = tl.dot(q_high, k_high, score, input_precision=PRECISION)
    score = tl.where(live[None, :], score * (scale * LOG2E), float("-inf"))
    return accumulate(score, v, acc, top, total, PRECISION)


@triton.jit(
    # What changes from step to step, or with the size of the batch.
    do_not_specialize=["table_stride", "splits"],
    do_not_specialize_on_alignment=["tables", "table_rows", "contexts", "positions"],
)
def decode_attention_kernel(
    qkv,  # (rows, H + 2K, D)
    cache,  # (slots, 2K, D) of this layer
    out,  # (rows, H · D)
    tables,  # (table rows, table_stride) int32
    table_rows,  # (rows,) int32: which row of `tables` is this request's
    contexts,  # (rows,) int32: tokens in the cache; with FUSED without the new one, below 0: no request
    positions,  # (rows,) int32, FUSED only
    cos,  # (positions, D / 2) float32, FUSED only
    sin,
    q_norm,  # (D,), QK_NORM only
    k_norm,
    partial,  # (rows, K, splits, GROUP_PAD, D_PAD + 2) float32: unnormalised sum, then its maximum and denominator
    arrived,  # (rows, K) int32, zeros before and after
    table_stride,
    splits,  # at most MAX_SPLITS
    scale,
    eps,
    H: tl.constexpr,
    K: tl.constexpr,
    D: tl.constexpr,
    GROUP_PAD: tl.constexpr,
    HALF_PAD: tl.constexpr,
    D_PAD: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,  # tokens a KV block
    BLOCK: tl.constexpr,  # tokens a tile
    MIN_SPLIT: tl.constexpr,  # tokens, a multiple of BLOCK
    FUSED: tl.constexpr,
    QK_NORM: tl.constexpr,
    LATER: tl.constexpr,  # a few parts are left for `gemv_joined_kernel` to join
    PRECISION: tl.constexpr,
    PDL: tl.constexpr,
):
    row = tl.program_id(0)
    head = tl.program_id(1)
    split = tl.program_id(2)
    group: tl.constexpr = H // K
    early: tl.constexpr = FUSED and (PDL == 1 or PDL == 3)
    if not early:
        wait_for_input(PDL)
    context = tl.load(contexts + row)
    length, active = split_keys(context, splits, BLOCK, MIN_SPLIT, LATER)
    half = tl.arange(0, HALF_PAD)
    live_half = half < D // 2
    table = tables + tl.load(table_rows + row).to(tl.int64) * table_stride
    if FUSED:
        position = tl.load(positions + row).to(tl.int64)
        c = tl.load(cos + position * (D // 2) + half, mask=live_half, other=0.0)[None, :]
        s = tl.load(sin + position * (D // 2) + half, mask=live_half, other=0.0)[None, :]
    # The first tile of keys and values, which earlier steps stored, is on its way before the queries are there.
    begin = split * length
    end = tl.minimum(begin + length, context)
    k_first, k_first_high, v_first = _load_tile(
        cache, table, head, begin, end, K, D, HALF_PAD, D_PAD, BLOCK_SIZE, BLOCK
    )
    if early:
        wait_for_input(PDL)
    if (context >= 0) & (split < active):
        g = tl.arange(0, GROUP_PAD)
        d = tl.arange(0, D_PAD)
        live_d = d < D
        live_g = (g < group)[:, None]
        base = qkv + row * (H + 2 * K) * D
        q_at = base + (head * group + g)[:, None] * D + half[None, :]
        q_low = tl.load(q_at, mask=live_g & live_half[None, :], other=0.0)
        q_high = tl.load(q_at + D // 2, mask=live_g & live_half[None, :], other=0.0)
        stride: tl.constexpr = 2 * K * D

        acc = tl.zeros((GROUP_PAD, D_PAD), tl.float32)
        top = tl.full((GROUP_PAD,), float("-inf"), tl.float32)
        total = tl.zeros((GROUP_PAD,), tl.float32)
        if FUSED:
            if QK_NORM:
                q_low, q_high = _head_norm(q_low, q_high, q_norm, half, live_half, eps, D)
            a, b = q_low.to(tl.float32), q_high.to(tl.float32)
            q_low, q_high = (a * c - b * s).to(q_low.dtype), (b * c + a * s).to(q_low.dtype)
            if split == 0:  # this program also stores the new key and value, and counts them
                k_at = base + (H + head) * D + half[None, :]
                k_low = tl.load(k_at, mask=live_half[None, :], other=0.0)
                k_high = tl.load(k_at + D // 2, mask=live_half[None, :], other=0.0)
                if QK_NORM:
                    k_low, k_high = _head_norm(k_low, k_high, k_norm, half, live_half, eps, D)
                e, f = k_low.to(tl.float32), k_high.to(tl.float32)
                k_low, k_high = (e * c - f * s).to(k_low.dtype), (f * c + e * s).to(k_low.dtype)
                v = tl.load(base + (H + K + head) * D + d, mask=live_d, other=0.0)
                slot = tl.load(table + context // BLOCK_SIZE).to(tl.int64) * BLOCK_SIZE + context % BLOCK_SIZE
                new = cache + slot * stride + head * D
                tl.store(new + half[None, :], k_low, mask=live_half[None, :])
                tl.store(new + D // 2 + half[None, :], k_high, mask=live_half[None, :])
                tl.store(new + K * D + d, v, mask=live_d)
                score = tl.sum(q_low.to(tl.float32) * k_low.to(tl.float32), 1)
                score += tl.sum(q_high.to(tl.float32) * k_high.to(tl.float32), 1)
                top = score * (scale * LOG2E)
                total = tl.full((GROUP_PAD,), 1.0, tl.float32)
                acc += v.to(tl.float32)[None, :]

        if begin < end:
            live = begin + tl.arange(0, BLOCK) < end
            acc, top, total = _attend(
                q_low, q_high, k_first, k_first_high, v_first, live, acc, top, total, scale, PRECISION
            )
        for start in range(begin + BLOCK, end, BLOCK):
            live = start + tl.arange(0, BLOCK) < end
            k_low, k_high, v = _load_tile(cache, table, head, start, end, K, D, HALF_PAD, D_PAD, BLOCK_SIZE, BLOCK)
            acc, top, total = _attend(q_low, q_high, k_low, k_high, v, live, acc, top, total, scale, PRECISION)

        end_overlap(PDL)
        last = active == 1
        if active > 1:
            width: tl.constexpr = D_PAD + 2
            parts = partial + (row * K + head) * splits * GROUP_PAD * width + g * width
            mine = parts + split * GROUP_PAD * width
            tl.store(mine[:, None] + d[None, :], acc)
            tl.store(mine + D_PAD, top)
            tl.store(mine + D_PAD + 1, total)
            joins = True
            if LATER:
                joins = active > JOINED_LATER
            if joins:
                tl.debug_barrier()
                last = tl.atomic_add(arrived + row * K + head, 1, sem="acq_rel") == active - 1
            if last:
                every = tl.arange(0, MAX_SPLITS)[:, None] * (GROUP_PAD * width)
                there = (tl.arange(0, MAX_SPLITS) < active)[:, None]
                peaks = tl.load(parts[None, :] + every + D_PAD, mask=there, other=float("-inf"), cache_modifier=".cg")
                totals = tl.load(parts[None, :] + every + D_PAD + 1, mask=there, other=0.0, cache_modifier=".cg")
                top = tl.max(peaks, 0)
                total = tl.sum(totals * tl.exp2(peaks - top[None, :]), 0)
                acc = tl.zeros((GROUP_PAD, D_PAD), tl.float32)
                for first in range(0, active, 4):  # four at a time: their loads are in flight together
                    part = first + tl.arange(0, 4)
                    some = part[:, None] * (GROUP_PAD * width) + g[None, :] * 0
                    here = (part < active)[:, None] & (g < group)[None, :]
                    theirs = parts[None, :] + some
                    peak = tl.load(theirs + D_PAD, mask=here, other=float("-inf"), cache_modifier=".cg")
                    sums = tl.load(
                        theirs[:, :, None] + d[None, None, :], mask=here[:, :, None], other=0.0, cache_modifier=".cg"
                    )
                    acc += tl.sum(sums * tl.exp2(peak - top[None, :])[:, :, None], 0)
                tl.store(arrived + row * K + head, 0)
        if last:
            at = out + row * H * D + (head * group + g)[:, None] * D + d[None, :]
            tl.store(at, (acc / total[:, None]).to(out.dtype.element_ty), mask=live_g & live_d[None, :])
