"""Products of one row with an 8- or 4-bit weight (`quantization/weight.py` has the layout), in float32 registers.

A code becomes a float by being written into the mantissa of a power of two. That power is not taken off each weight but
off a sum of them, with the sum of their inputs (unless FINE: x is float32). What a thread reads at once is a run: four
words of 4-bit codes or two of 8-bit ones, of one row and one group, with their scale and their inputs (16 bytes a load)
beside them, so nothing but a row's last sum crosses threads.

With programmatic dependent launch a kernel reads its first weights before it waits for its input (`overlap.py`).
"""

import triton
import triton.language as tl

from visavis.engine.kernels.triton.linear import _finish
from visavis.engine.kernels.triton.overlap import wait_for_input

__all__ = ["gemv_kernel", "gemv_rows_kernel"]


@triton.jit
def _words(data, rows, words, ROW: tl.constexpr, N):
    """(words, runs, rows) of rows of ROW words; what is beyond is 0. Rows come last because Triton, where nothing else
    decides, gives neighbouring threads the first of a tile's dimensions: so words, scales and inputs meet in one."""
    at = data + rows[None, None, :].to(tl.int64) * ROW + words[:, :, None]
    return tl.load(at, mask=(rows < N)[None, None, :] & (words < ROW)[:, :, None], other=0)


@triton.jit
def _words_of(runs, BITS: tl.constexpr):
    each: tl.constexpr = 4 if BITS == 4 else 2
    return tl.arange(0, each)[:, None] + (runs * each)[None, :]


@triton.jit
def _pair(words, PAIRED: tl.constexpr):
    """The two bfloat16 (1) or float16 (2) of each word as float32."""
    if PAIRED == 1:
        low, high = (words << 16).to(tl.float32, bitcast=True), (words & -65536).to(tl.float32, bitcast=True)
    else:
        low = (words & 0xFFFF).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
        high = (words >> 16).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
    return low, high


@triton.jit
def _two(x, pair, K: tl.constexpr, PAIRED: tl.constexpr):
    """x[2 · pair] and the next one as float32, 0 beyond K. PAIRED: one word holds both."""
    if PAIRED:
        words = tl.load(x.to(tl.pointer_type(tl.int32)) + pair, mask=pair * 2 < K, other=0)
        low, high = _pair(words, PAIRED)
    else:
        low = tl.load(x + pair * 2, mask=pair * 2 < K, other=0.0).to(tl.float32)
        high = tl.load(x + pair * 2 + 1, mask=pair * 2 + 1 < K, other=0.0).to(tl.float32)
    return low, high


@triton.jit
def _inputs(x, runs, K: tl.constexpr, BITS: tl.constexpr, PAIRED: tl.constexpr):
    """The inputs of each code of the runs' words, the lowest first: 8 or 4 tensors (words, runs)."""
    if BITS == 4:  # word i of a unit holds columns 2i and 2i + 1 of its four quarters
        pair = tl.arange(0, 4)[:, None] + (runs // 4 * 64 + runs % 4 * 4)[None, :]
        x0, x4 = _two(x, pair, K, PAIRED)
        x1, x5 = _two(x, pair + 16, K, PAIRED)
        x2, x6 = _two(x, pair + 32, K, PAIRED)
        x3, x7 = _two(x, pair + 48, K, PAIRED)
        return x0, x1, x2, x3, x4, x5, x6, x7
    else:
        word = tl.arange(0, 2)[:, None] + (runs * 2)[None, :]
        if PAIRED:
            both = tl.load(x.to(tl.pointer_type(tl.int64)) + word, mask=word * 4 < K, other=0)
            x0, x1 = _pair(both.to(tl.int32), PAIRED)
            x2, x3 = _pair((both >> 32).to(tl.int32), PAIRED)
        else:
            x0, x1 = _two(x, word * 2, K, 0)
            x2, x3 = _two(x, word * 2 + 1, K, 0)
        return x0, x1, x2, x3


@triton.jit
def _times(x, g):
    if len(x) == 8:
        return (
            x[0] * g[0], x[1] * g[1], x[2] * g[2], x[3] * g[3], x[4] * g[4], x[5] * g[5], x[6] * g[6], x[7] * g[7],
        )  # fmt: skip
    else:
        return x[0] * g[0], x[1] * g[1], x[2] * g[2], x[3] * g[3]


@triton.jit
def _squares(x):
    total = x[0] * x[0] + x[1] * x[1] + x[2] * x[2] + x[3] * x[3]
    if len(x) == 8:
        total += x[4] * x[4] + x[5] * x[5] + x[6] * x[6] + x[7] * x[7]
    return tl.sum(tl.sum(total, 0), 0)


# One instruction where Triton makes two or three.
_EVEN = tl.constexpr("lop3.b32 $0, $1, 0x000F0000, 0x43000000, 0xEA;")
_ODD = tl.constexpr("lop3.b32 $0, $1, 0x0000F000, 0x45000000, 0xEA;")
_BYTE_0, _BYTE_1, _BYTE_2, _BYTE_3 = (
    tl.constexpr(f"prmt.b32 $0, $1, 0x47000000, {0x7504 + 0x10 * i};") for i in range(4)
)


@triton.jit
def _one(words, CODE: tl.constexpr):
    return tl.inline_asm_elementwise(CODE, "=r,r", [words], dtype=tl.int32, is_pure=True, pack=1)


@triton.jit
def _masked(words, ODD: tl.constexpr, ASM: tl.constexpr):
    """The nibble from bit 16 on, with 128, or from bit 12 on, with 2048, as float32."""
    if ASM:
        bits = _one(words, _ODD if ODD else _EVEN)
    elif ODD:
        bits = (words & 0x0000F000) | 0x45000000
    else:
        bits = (words & 0x000F0000) | 0x43000000
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def _nibble(words, P: tl.constexpr, FINE: tl.constexpr, ASM: tl.constexpr):
    """Nibble P of each word and 128, or, not FINE and P odd, 2048: two places in the mantissa save half the shifts."""
    if FINE:
        moved = words << (16 - 4 * P) if P < 4 else words >> (4 * P - 16)
        value = _masked(moved, False, ASM)
    else:
        if P == 0:
            moved = words << 16
        elif P <= 2:
            moved = words << 8
        elif P <= 4:
            moved = words
        elif P <= 6:
            moved = words >> 8
        else:
            moved = words >> 16
        value = _masked(moved, P % 2 == 1, ASM)
    return value


@triton.jit
def _byte(words, P: tl.constexpr, FINE: tl.constexpr, ASM: tl.constexpr):
    """Byte P of each word, signed; not FINE, that and 32896."""
    biased = words ^ -2139062144  # each byte and 128
    if FINE:
        return (((biased >> (8 * P)) & 0xFF) | 0x4B000000).to(tl.float32, bitcast=True) - 8388736.0
    else:
        if ASM:
            code: tl.constexpr = _BYTE_0 if P == 0 else _BYTE_1 if P == 1 else _BYTE_2 if P == 2 else _BYTE_3
            bits = _one(biased, code)
        else:
            moved = biased << 8 if P == 0 else biased >> (8 * P - 8)
            bits = (moved & 0xFF00) | 0x47000000
        return bits.to(tl.float32, bitcast=True)


@triton.jit
def _chain4(y, w, x, S: tl.constexpr, FINE: tl.constexpr, ASM: tl.constexpr):
    """y + the products of a quarter of each unit, as one chain of multiply-adds."""
    y = _nibble(w, S, FINE, ASM) * x[S][:, :, None] + y
    return _nibble(w, S + 4, FINE, ASM) * x[S + 4][:, :, None] + y


@triton.jit
def _chain8(w, x, FINE: tl.constexpr, ASM: tl.constexpr):
    y = _byte(w, 0, FINE, ASM) * x[0][:, :, None]
    y = _byte(w, 1, FINE, ASM) * x[1][:, :, None] + y
    y = _byte(w, 2, FINE, ASM) * x[2][:, :, None] + y
    return _byte(w, 3, FINE, ASM) * x[3][:, :, None] + y


@triton.jit
def _totals(x):
    """Sums of a run's inputs, (runs,) each: 4 bits: of its four quarters; 8 bits: one."""
    if len(x) == 8:
        return tl.sum(x[0] + x[4], 0), tl.sum(x[1] + x[5], 0), tl.sum(x[2] + x[6], 0), tl.sum(x[3] + x[7], 0)
    else:
        return (tl.sum(x[0] + x[1] + x[2] + x[3], 0),)


@triton.jit
def _scales(scales, rows, runs, N, Q: tl.constexpr, K: tl.constexpr, GROUP: tl.constexpr, BITS: tl.constexpr):
    """(runs, rows) of `scales` or zeros, as they are stored, or (rows,) where a row has one; Q: of which of the groups
    of a run."""
    if GROUP == 0:
        return tl.load(scales + rows, mask=rows < N, other=0.0)
    else:
        count: tl.constexpr = (K + 127) // 128 * (128 // GROUP)
        group = runs * 8 // GROUP if BITS == 8 else runs // 4 * (128 // GROUP) + Q
        at = scales + rows[None, :].to(tl.int64) * count + group[:, None]
        return tl.load(at, mask=(rows < N)[None, :] & (group < count)[:, None], other=0.0)


@triton.jit
def _part(
    w, x, totals, scale, zero, scales, zeros, rows, runs, N, K: tl.constexpr, GROUP: tl.constexpr,
    BITS: tl.constexpr, FINE: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """(runs, rows): each run's products, scaled, but by a row's one scale. `scale` and `zero`: of its first group."""
    if BITS == 8:
        y = tl.sum(_chain8(w, x, FINE, ASM), 0)
        if not FINE:
            y -= 32896.0 * totals[0][:, None]
        return y * scale.to(tl.float32) if GROUP > 0 else y
    else:
        even: tl.constexpr = 128.0
        odd: tl.constexpr = 128.0 if FINE else 2048.0
        t0, t1, t2, t3 = totals
        if GROUP == 128:
            y = _chain4(_chain4(0.0, w, x, 0, FINE, ASM), w, x, 1, FINE, ASM)
            y = _chain4(_chain4(y, w, x, 2, FINE, ASM), w, x, 3, FINE, ASM)
            y = tl.sum(y, 0) - (even * (t0 + t2) + odd * (t1 + t3))[:, None]
            return (y - zero.to(tl.float32) * (t0 + t1 + t2 + t3)[:, None]) * scale.to(tl.float32)
        elif GROUP == 64:
            y = tl.sum(_chain4(_chain4(0.0, w, x, 0, FINE, ASM), w, x, 1, FINE, ASM), 0)
            y -= (even * t0 + odd * t1)[:, None] + zero.to(tl.float32) * (t0 + t1)[:, None]
            y *= scale.to(tl.float32)
            z = tl.sum(_chain4(_chain4(0.0, w, x, 2, FINE, ASM), w, x, 3, FINE, ASM), 0)
            zero = _scales(zeros, rows, runs, N, 1, K, GROUP, BITS).to(tl.float32)
            z -= (even * t2 + odd * t3)[:, None] + zero * (t2 + t3)[:, None]
            return y + z * _scales(scales, rows, runs, N, 1, K, GROUP, BITS).to(tl.float32)
        else:
            y = tl.sum(_chain4(0.0, w, x, 0, FINE, ASM), 0) - (even + zero.to(tl.float32)) * t0[:, None]
            y *= scale.to(tl.float32)
            for s in tl.static_range(1, 4):
                zero = _scales(zeros, rows, runs, N, s, K, GROUP, BITS).to(tl.float32)
                z = (
                    tl.sum(_chain4(0.0, w, x, s, FINE, ASM), 0)
                    - ((even if s == 2 else odd) + zero) * totals[s][:, None]
                )
                y += z * _scales(scales, rows, runs, N, s, K, GROUP, BITS).to(tl.float32)
            return y


@triton.jit
def gemv_rows_kernel(
    x,  # (K,)
    data,  # (N, row) int32 words, with SILU (2N, row), gates first
    scales,
    zeros,
    bias,  # (N,) or (2N,)
    norm,  # (K,)
    out,  # (N,); with RESIDUAL it holds what is added to
    N,
    eps,
    K: tl.constexpr,
    ROW: tl.constexpr,  # words of a row
    GROUP: tl.constexpr,  # columns of a scale, 0: a row
    BITS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    RUNS: tl.constexpr,  # at least a row
    PAIRED: tl.constexpr,
    FINE: tl.constexpr,
    ASM: tl.constexpr,
    NORM: tl.constexpr,
    BIAS: tl.constexpr,
    RESIDUAL: tl.constexpr,
    SILU: tl.constexpr,
    PDL: tl.constexpr,
):
    """Whole rows at a time; each program takes every so-many-th block of rows, the next one always on its way."""
    programs = tl.num_programs(0)
    runs = tl.arange(0, RUNS)
    words = _words_of(runs, BITS)
    blocks = (N + BLOCK_N - 1) // BLOCK_N
    rows = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    w = _words(data, rows, words, ROW, N)
    s = _scales(scales, rows, runs, N, 0, K, GROUP, BITS)
    z = s
    if BITS == 4:
        z = _scales(zeros, rows, runs, N, 0, K, GROUP, BITS)
    if SILU:
        count: tl.constexpr = (K + 127) // 128 * (128 // GROUP) if GROUP > 0 else 1
        up, up_scales = data + N.to(tl.int64) * ROW, scales + N.to(tl.int64) * count
        up_zeros = zeros + N.to(tl.int64) * count
        u = _words(up, rows, words, ROW, N)
        us = _scales(up_scales, rows, runs, N, 0, K, GROUP, BITS)
        uz = us
        if BITS == 4:
            uz = _scales(up_zeros, rows, runs, N, 0, K, GROUP, BITS)
    wait_for_input(PDL)
    value = _inputs(x, runs, K, BITS, PAIRED)
    scale = 1.0
    if NORM:
        scale = tl.rsqrt(_squares(value) / K + eps)
        value = _times(value, _inputs(norm, runs, K, BITS, PAIRED))
    totals = _totals(value)
    for block in range(tl.program_id(0), blocks, programs):
        behind = tl.where(block + programs < blocks, N, 0)  # behind the end all is masked and costs nothing
        following = rows + programs * BLOCK_N
        w_next = _words(data, following, words, ROW, behind)
        s_next = _scales(scales, following, runs, behind, 0, K, GROUP, BITS)
        z_next = s_next
        if BITS == 4:
            z_next = _scales(zeros, following, runs, behind, 0, K, GROUP, BITS)
        y = _part(w, value, totals, s, z, scales, zeros, rows, runs, N, K, GROUP, BITS, FINE, ASM)
        y = tl.sum(y, 0) * scale
        if GROUP == 0:
            y *= s.to(tl.float32)
        y_up = y
        if SILU:
            u_next = _words(up, following, words, ROW, behind)
            us_next = _scales(up_scales, following, runs, behind, 0, K, GROUP, BITS)
            uz_next = us_next
            if BITS == 4:
                uz_next = _scales(up_zeros, following, runs, behind, 0, K, GROUP, BITS)
            y_up = _part(u, value, totals, us, uz, up_scales, up_zeros, rows, runs, N, K, GROUP, BITS, FINE, ASM)
            y_up = tl.sum(y_up, 0) * scale
            if GROUP == 0:
                y_up *= us.to(tl.float32)
            u, us, uz = u_next, us_next, uz_next
        _finish(y, y_up, bias, out, rows, N, BIAS, RESIDUAL, SILU)
        w, s, z, rows = w_next, s_next, z_next, following


@triton.jit
def gemv_kernel(
    x, data, scales, zeros, bias, out, N, K: tl.constexpr, ROW: tl.constexpr, GROUP: tl.constexpr, BITS: tl.constexpr,
    BLOCK_N: tl.constexpr, RUNS: tl.constexpr, PAIRED: tl.constexpr, FINE: tl.constexpr, ASM: tl.constexpr,
    BIAS: tl.constexpr, RESIDUAL: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """The same for long rows: one block of rows a program, tile by tile along K, the next one always on its way."""
    rows = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    runs = tl.arange(0, RUNS)
    words = _words_of(runs, BITS)
    w = _words(data, rows, words, ROW, N)
    s = _scales(scales, rows, runs, N, 0, K, GROUP, BITS)  # where a row has one, it is not applied before the end
    z = s
    if BITS == 4:
        z = _scales(zeros, rows, runs, N, 0, K, GROUP, BITS)
    wait_for_input(PDL)
    value = _inputs(x, runs, K, BITS, PAIRED)
    acc = tl.zeros((RUNS, BLOCK_N), tl.float32)
    step: tl.constexpr = RUNS * (4 if BITS == 4 else 2)
    for start in range(0, ROW, step):
        behind = tl.where(start + step < ROW, N, 0)
        runs_next = runs + RUNS
        words_next = words + step
        w_next = _words(data, rows, words_next, ROW, behind)
        s_next = _scales(scales, rows, runs_next, behind, 0, K, GROUP, BITS)
        z_next = s_next
        if BITS == 4:
            z_next = _scales(zeros, rows, runs_next, behind, 0, K, GROUP, BITS)
        value_next = _inputs(x, runs_next, K, BITS, PAIRED)
        acc += _part(w, value, _totals(value), s, z, scales, zeros, rows, runs, N, K, GROUP, BITS, FINE, ASM)
        w, s, z, value, runs, words = w_next, s_next, z_next, value_next, runs_next, words_next
    y = tl.sum(acc, 0)
    if GROUP == 0:
        y *= tl.load(scales + rows, mask=rows < N, other=0.0).to(tl.float32)
    _finish(y, y, bias, out, rows, N, BIAS, RESIDUAL, False)
