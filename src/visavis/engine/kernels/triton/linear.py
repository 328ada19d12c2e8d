"""Products of a few rows with a weight, limited by reading that weight once.

`gemv` takes one row of x and multiplies in registers; `skinny` takes up to 64 and uses the matrix units, with the
weight as the tall operand. Both fold in what stands around a decoder's products: RMS norm before (a row's scale is a
scalar, so it is applied to the sum; for several rows the product before has multiplied its gain in), bias, SiLU·up and
residual after.

With programmatic dependent launch (compute capability 9.0) a kernel starts while its predecessor runs; `gemv` reads its
first weights before it waits for its input.
"""

import triton
import triton.language as tl

from visavis.engine.kernels.triton.attention_decode import JOINED_LATER, split_keys
from visavis.engine.kernels.triton.overlap import end_overlap, wait_for_input

__all__ = ["gemv_joined_kernel", "gemv_kernel", "gemv_rows_kernel", "skinny_kernel"]


@triton.jit
def _weights(weight, rows, columns, K: tl.constexpr, N, start, EVEN: tl.constexpr):
    """A tile of a row-major (N, K) weight; rows beyond N and columns beyond K are 0."""
    at = weight + rows[:, None].to(tl.int64) * K + (start + columns)[None, :]
    if EVEN:
        return tl.load(at, mask=(rows < N)[:, None], other=0.0)
    return tl.load(at, mask=(rows < N)[:, None] & (start + columns < K)[None, :], other=0.0)


@triton.jit
def _silu(x):
    return x / (1.0 + tl.exp(-x))


@triton.jit
def _finish(y, y_up, bias, out, rows, N, BIAS: tl.constexpr, RESIDUAL: tl.constexpr, SILU: tl.constexpr):
    live = rows < N
    if BIAS:
        y += tl.load(bias + rows, mask=live, other=0.0).to(tl.float32)
    if SILU:
        if BIAS:
            y_up += tl.load(bias + N + rows, mask=live, other=0.0).to(tl.float32)
        y = _silu(y) * y_up
    if RESIDUAL:
        y += tl.load(out + rows, mask=live, other=0.0).to(tl.float32)
    tl.store(out + rows, y.to(out.dtype.element_ty), mask=live)


@triton.jit
def gemv_rows_kernel(
    x,  # (K,)
    weight,  # (N, K), with SILU (2N, K), gates first
    bias,  # (N,) or (2N,)
    norm,  # (K,)
    out,  # (N,); with RESIDUAL it holds what is added to
    N,
    eps,
    K: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,  # at least K
    NORM: tl.constexpr,
    BIAS: tl.constexpr,
    RESIDUAL: tl.constexpr,
    SILU: tl.constexpr,
    PDL: tl.constexpr,
):
    """Whole rows at a time; each program takes every so-many-th block of rows, the next one always on its way."""
    pid = tl.program_id(0)
    programs = tl.num_programs(0)
    columns = tl.arange(0, BLOCK_K)
    local = tl.arange(0, BLOCK_N)
    even: tl.constexpr = K == BLOCK_K
    blocks = (N + BLOCK_N - 1) // BLOCK_N
    up = weight + N.to(tl.int64) * K
    w = _weights(weight, pid * BLOCK_N + local, columns, K, N, 0, even)
    u = w
    if SILU:
        u = _weights(up, pid * BLOCK_N + local, columns, K, N, 0, even)
    if NORM:
        gain = tl.load(norm + columns, mask=columns < K, other=0.0).to(tl.float32)
    wait_for_input(PDL)
    value = tl.load(x + columns, mask=columns < K, other=0.0).to(tl.float32)
    scale = 1.0
    if NORM:
        scale = tl.rsqrt(tl.sum(value * value, 0) / K + eps)
        value *= gain
    for block in range(pid, blocks, programs):
        rows = block * BLOCK_N + local
        behind = tl.where(block + programs < blocks, N, 0)  # behind the end all is masked and costs nothing
        w_next = _weights(weight, rows + programs * BLOCK_N, columns, K, behind, 0, even)
        y = tl.sum(w.to(tl.float32) * value[None, :], 1) * scale
        y_up = y
        if SILU:
            u_next = _weights(up, rows + programs * BLOCK_N, columns, K, behind, 0, even)
            y_up = tl.sum(u.to(tl.float32) * value[None, :], 1) * scale
            u = u_next
        w = w_next
        _finish(y, y_up, bias, out, rows, N, BIAS, RESIDUAL, SILU)


@triton.jit
def gemv_kernel(
    x, weight, bias, norm, out, N, eps, K: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    NORM: tl.constexpr, BIAS: tl.constexpr, RESIDUAL: tl.constexpr, SILU: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """The same for long rows: one block of rows a program, tile by tile along K, the next one always on its way."""
    rows = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    columns = tl.arange(0, BLOCK_K)
    even: tl.constexpr = K % BLOCK_K == 0
    up = weight + N.to(tl.int64) * K
    w = _weights(weight, rows, columns, K, N, 0, even)
    if SILU:
        u = _weights(up, rows, columns, K, N, 0, even)
    wait_for_input(PDL)
    acc = tl.zeros((BLOCK_N, BLOCK_K), tl.float32)
    acc_up = acc
    squares = tl.zeros((BLOCK_K,), tl.float32)
    for start in range(0, K, BLOCK_K):
        behind = tl.where(start + BLOCK_K < K, N, 0)
        w_next = _weights(weight, rows, columns, K, behind, start + BLOCK_K, even)
        inside = start + columns < K
        value = tl.load(x + start + columns, mask=inside, other=0.0).to(tl.float32)
        if NORM:
            squares += value * value
            value *= tl.load(norm + start + columns, mask=inside, other=0.0).to(tl.float32)
        acc += w.to(tl.float32) * value[None, :]
        if SILU:
            u_next = _weights(up, rows, columns, K, behind, start + BLOCK_K, even)
            acc_up += u.to(tl.float32) * value[None, :]
            u = u_next
        w = w_next
    end_overlap(PDL)
    scale = 1.0
    if NORM:
        scale = tl.rsqrt(tl.sum(squares, 0) / K + eps)
    _finish(tl.sum(acc, 1) * scale, tl.sum(acc_up, 1) * scale, bias, out, rows, N, BIAS, RESIDUAL, SILU)


@triton.jit(do_not_specialize=["splits"], do_not_specialize_on_alignment=["contexts"])
def gemv_joined_kernel(
    attended,  # (K,): the joined result, where attention made one
    partial,  # (KV, splits, GROUP_PAD, D + 2) float32, as `decode_attention_kernel` left it
    contexts,  # (1,) int32
    weight,  # (N, K)
    bias,
    out,  # (N,); with RESIDUAL it holds what is added to
    N,
    splits,
    K: tl.constexpr,
    BLOCK_N: tl.constexpr,
    KV: tl.constexpr,  # key heads
    GROUP_PAD: tl.constexpr,
    D: tl.constexpr,  # a power of two
    H_PAD: tl.constexpr,  # query heads, filled up
    BLOCK: tl.constexpr,
    MIN_SPLIT: tl.constexpr,
    BIAS: tl.constexpr,
    RESIDUAL: tl.constexpr,
    PDL: tl.constexpr,
):
    """The product behind attention, for one row: every program joins attention's parts itself, which takes less time
    than one program that waits for them, and all others for it."""
    columns = tl.arange(0, H_PAD * D)
    rows = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    w = _weights(weight, rows, columns, K, N, 0, K == H_PAD * D)
    _, active = split_keys(tl.load(contexts), splits, BLOCK, MIN_SPLIT, True)
    wait_for_input(PDL)
    if (active > 1) & (active <= JOINED_LATER):
        group: tl.constexpr = K // D // KV
        head = tl.arange(0, H_PAD)
        part = tl.arange(0, JOINED_LATER)
        place = (head // group * splits)[None, :] + part[:, None]
        place = partial + (place * GROUP_PAD + (head % group)[None, :]) * (D + 2)
        there = (part < active)[:, None] & (head < K // D)[None, :]
        peak = tl.load(place + D, mask=there, other=float("-inf"))
        total = tl.load(place + D + 1, mask=there, other=0.0)
        sums = tl.load(place[:, :, None] + tl.arange(0, D)[None, None, :], mask=there[:, :, None], other=0.0)
        share = tl.where(there, tl.exp2(peak - tl.max(peak, 0)[None, :]), 0.0)
        share /= tl.maximum(tl.sum(total * share, 0), 1e-37)[None, :]  # heads that only fill up have no total
        value = tl.reshape(tl.sum(sums * share[:, :, None], 0), (H_PAD * D,))
        value = value.to(attended.dtype.element_ty).to(tl.float32)
    else:
        value = tl.load(attended + columns, mask=columns < K, other=0.0).to(tl.float32)
    y = tl.sum(w.to(tl.float32) * value[None, :], 1)
    end_overlap(PDL)
    _finish(y, y, bias, out, rows, N, BIAS, RESIDUAL, False)


@triton.jit(do_not_specialize=["M"])  # one kernel for batches of up to 16
def skinny_kernel(
    x,  # (M, K)
    weight,  # (N, K), with SILU (2N, K), gates first
    bias,
    out,  # (M, N)
    partial,  # (programs over N, SPLIT, BLOCK_N, M_PAD) float32
    arrived,  # (programs over N,) int32, zeros before and after
    folded,  # (M, N), FOLD only: the result times the gain of the norm that follows
    next_norm,  # (N,), FOLD only
    squares,  # (programs, M_PAD) float32: sums of squares of each row, written with FOLD, read with FOLDED
    M,
    N,
    eps,
    K: tl.constexpr,
    M_PAD: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SPLIT: tl.constexpr,  # programs that share a sum over K; 1 with SILU
    BIAS: tl.constexpr,
    RESIDUAL: tl.constexpr,
    SILU: tl.constexpr,
    FOLD: tl.constexpr,  # the next norm's gain is multiplied in here, and its scale by whoever reads that
    FOLDED: tl.constexpr,  # x is such a result, of so many programs; 0: it is not
    FOLDED_PAD: tl.constexpr,
    PRECISION: tl.constexpr,
    STAGES: tl.constexpr,
    PDL: tl.constexpr,
):
    pid = tl.program_id(0)
    split = tl.program_id(1)
    rows = pid * BLOCK_N + tl.arange(0, BLOCK_N)
    m = tl.arange(0, M_PAD)
    columns = tl.arange(0, BLOCK_K)
    steps: tl.constexpr = (K + BLOCK_K * SPLIT - 1) // (BLOCK_K * SPLIT)
    even: tl.constexpr = steps * BLOCK_K * SPLIT == K
    begin = split * steps * BLOCK_K
    wait_for_input(PDL)
    acc = tl.zeros((BLOCK_N, M_PAD), tl.float32)
    if SILU:
        up = weight + N.to(tl.int64) * K
        acc_up = tl.zeros((BLOCK_N, M_PAD), tl.float32)
    if FOLDED > 0:
        program = tl.arange(0, FOLDED_PAD)[:, None]
        own = tl.sum(tl.load(squares + program * M_PAD + m[None, :], mask=program < FOLDED, other=0.0), 0)
    for step in tl.range(0, steps, num_stages=STAGES):
        start = begin + step * BLOCK_K
        w = _weights(weight, rows, columns, K, N, start, even)
        inside = (start + columns < K)[:, None] & (m < M)[None, :]
        value = tl.load(x + m[None, :] * K + (start + columns)[:, None], mask=inside, other=0.0)
        acc = tl.dot(w, value, acc, input_precision=PRECISION)
        if SILU:
            u = _weights(up, rows, columns, K, N, start, even)
            acc_up = tl.dot(u, value, acc_up, input_precision=PRECISION)
    end_overlap(PDL)
    last = True
    if SPLIT > 1:
        tile = BLOCK_N * M_PAD
        place = partial + pid * SPLIT * tile + tl.arange(0, BLOCK_N)[:, None] * M_PAD + m[None, :]
        tl.store(place + split * tile, acc)
        tl.debug_barrier()
        last = tl.atomic_add(arrived + pid, 1, sem="acq_rel") == SPLIT - 1
        if last:
            acc = tl.zeros((BLOCK_N, M_PAD), tl.float32)
            for part in range(SPLIT):  # always in this order: the sum does not depend on who came last
                acc += tl.load(place + part * tile, cache_modifier=".cg")
            tl.store(arrived + pid, 0)
    if last:
        live = rows < N
        if FOLDED > 0:
            scale = tl.rsqrt(own / K + eps)[None, :]
            acc *= scale
        if BIAS:
            acc += tl.load(bias + rows, mask=live, other=0.0).to(tl.float32)[:, None]
        if SILU:
            if FOLDED > 0:
                acc_up *= scale
            if BIAS:
                acc_up += tl.load(bias + N + rows, mask=live, other=0.0).to(tl.float32)[:, None]
            acc = _silu(acc) * acc_up
        at = out + m[None, :] * N + rows[:, None]
        stored = live[:, None] & (m < M)[None, :]
        if RESIDUAL:
            acc += tl.load(at, mask=stored, other=0.0).to(tl.float32)
        rounded = acc.to(out.dtype.element_ty)
        tl.store(at, rounded, mask=stored)
        if FOLD:
            wide = tl.where(stored, rounded.to(tl.float32), 0.0)
            gain = tl.load(next_norm + rows, mask=live, other=0.0).to(tl.float32)[:, None]
            tl.store(folded + m[None, :] * N + rows[:, None], (wide * gain).to(folded.dtype.element_ty), mask=stored)
            tl.store(squares + pid * M_PAD + m, tl.sum(wide * wide, 0))
