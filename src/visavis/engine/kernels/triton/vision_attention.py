"""Attention within stretches of neighbouring patches, both ways: frames and windows of a vision tower, one launch.

FlashAttention-2 (arXiv:2307.08691) over any lengths. A head of 80 or 72 is no power of two: its columns are taken in
two parts, 64 and 16, instead of being filled up to 128.
"""

import triton
import triton.language as tl

from visavis.engine.kernels.triton.softmax import LOG2E

__all__ = ["stretch_attention_kernel"]


@triton.jit
def _columns(at, rows, live, first: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, MASKED: tl.constexpr):
    """(rows, WIDTH) from column `first` on; zeros beyond D, and with MASKED where a row is not `live`."""
    column = first + tl.arange(0, WIDTH)
    from_here = at + rows[:, None] + column[None, :]
    if first + WIDTH > D:
        if MASKED:
            return tl.load(from_here, mask=live[:, None] & (column < D)[None, :], other=0.0)
        return tl.load(from_here, mask=(column < D)[None, :], other=0.0)
    if MASKED:
        return tl.load(from_here, mask=live[:, None], other=0.0)
    return tl.load(from_here)


@triton.jit
def _tile(
    q0, q1, keys, values, start, count, acc0, acc1, top, total, scale,
    STRIDE: tl.constexpr, D: tl.constexpr, D0: tl.constexpr, D1: tl.constexpr, BLOCK_N: tl.constexpr,
    MASKED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Keys and values start … start + BLOCK_N of the stretch."""
    token = start + tl.arange(0, BLOCK_N)
    live = token < count
    rows = token * STRIDE
    k0 = _columns(keys, rows, live, 0, D, D0, MASKED)
    score = tl.dot(q0, tl.trans(k0), input_precision=PRECISION)
    if D1 > 0:
        k1 = _columns(keys, rows, live, D0, D, D1, MASKED)
        score = tl.dot(q1, tl.trans(k1), score, input_precision=PRECISION)
    score *= scale * LOG2E
    if MASKED:
        score = tl.where(live[None, :], score, float("-inf"))
    higher = tl.maximum(top, tl.max(score, 1))
    weight = tl.exp2(score - higher[:, None])
    shrink = tl.exp2(top - higher)
    total = total * shrink + tl.sum(weight, 1)
    v0 = _columns(values, rows, live, 0, D, D0, MASKED)
    weight = weight.to(v0.dtype)
    acc0 = tl.dot(weight, v0, acc0 * shrink[:, None], input_precision=PRECISION)
    if D1 > 0:
        v1 = _columns(values, rows, live, D0, D, D1, MASKED)
        acc1 = tl.dot(weight, v1, acc1 * shrink[:, None], input_precision=PRECISION)
    return acc0, acc1, higher, total


@triton.jit
def stretch_attention_kernel(
    qkv,  # (patches, 3, H, D), queries and keys rotated
    out,  # (patches, H · D)
    tiles,  # (tiles, 3) int32: a tile's first query, the first patch of its stretch, how many the stretch has
    scale,
    H: tl.constexpr,
    D: tl.constexpr,
    D0: tl.constexpr,  # columns of the first part, a power of two
    D1: tl.constexpr,  # of the second, 0: there is none
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PRECISION: tl.constexpr,
):
    stride: tl.constexpr = 3 * H * D
    head = tl.program_id(1)
    tile = tiles + tl.program_id(0) * 3
    first = tl.load(tile)
    begin = tl.load(tile + 1)
    count = tl.load(tile + 2)
    base = qkv + begin.to(tl.int64) * stride + head * D
    query = first - begin + tl.arange(0, BLOCK_M)
    live = query < count
    q0 = _columns(base, query * stride, live, 0, D, D0, True)
    q1 = q0
    if D1 > 0:
        q1 = _columns(base, query * stride, live, D0, D, D1, True)
    acc0 = tl.zeros((BLOCK_M, D0), tl.float32)
    acc1 = tl.zeros((BLOCK_M, D1 if D1 > 0 else 16), tl.float32)
    top = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    keys = base + H * D
    values = base + 2 * H * D
    whole = count // BLOCK_N * BLOCK_N
    for start in range(0, whole, BLOCK_N):
        acc0, acc1, top, total = _tile(
            q0, q1, keys, values, start, count, acc0, acc1, top, total, scale,
            stride, D, D0, D1, BLOCK_N, False, PRECISION,
        )  # fmt: skip
    if whole < count:
        acc0, acc1, top, total = _tile(
            q0, q1, keys, values, whole, count, acc0, acc1, top, total, scale,
            stride, D, D0, D1, BLOCK_N, True, PRECISION,
        )  # fmt: skip
    at = out + begin.to(tl.int64) * (H * D) + head * D
    rows = query[:, None] * (H * D)
    column = tl.arange(0, D0)
    tl.store(
        at + rows + column[None, :],
        (acc0 / total[:, None]).to(out.dtype.element_ty),
        mask=live[:, None] & (column < D)[None, :],
    )
    if D1 > 0:
        column = D0 + tl.arange(0, D1)
        tl.store(
            at + rows + column[None, :],
            (acc1 / total[:, None]).to(out.dtype.element_ty),
            mask=live[:, None] & (column < D)[None, :],
        )
