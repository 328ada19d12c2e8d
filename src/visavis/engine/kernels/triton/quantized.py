"""Products of a few rows with an 8- or 4-bit weight (`quantization/weight.py` has the layout), which is never made
dense in memory.

`gemv_*` take one row of x and multiply in float32 registers: a code becomes a float by being written into the mantissa
of a power of two, which is taken off again with the sum of the inputs. `tile_kernel` takes more rows and uses the
matrix units, with the weight as the tall operand, as `linear.skinny_kernel` does. `dequantize_kernel` makes some rows
dense, for products of so many rows that this no longer counts.
"""

import triton
import triton.language as tl

from visavis.engine.kernels.triton.linear import _finish, _silu
from visavis.engine.kernels.triton.overlap import begin_overlap, wait_for_input

__all__ = ["dequantize_kernel", "gemv_kernel", "gemv_rows_kernel", "tile_kernel"]


@triton.jit
def _words(data, rows, words, ROW: tl.constexpr, N):
    """A tile of int32 words of rows of ROW; what is beyond is 0."""
    at = data + rows[:, None].to(tl.int64) * ROW + words[None, :]
    return tl.load(at, mask=(rows < N)[:, None] & (words < ROW)[None, :], other=0)


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
def _two(x, at, K: tl.constexpr, PAIRED: tl.constexpr):
    """x[at] and x[at + 1] as float32, 0 beyond K. PAIRED: `at` is even and one word holds both."""
    if PAIRED:
        words = tl.load(x.to(tl.pointer_type(tl.int32)) + at // 2, mask=at < K, other=0)
        low, high = _pair(words, PAIRED)
    else:
        low = tl.load(x + at, mask=at < K, other=0.0).to(tl.float32)
        high = tl.load(x + at + 1, mask=at + 1 < K, other=0.0).to(tl.float32)
    return low, high


@triton.jit
def _inputs4(x, words, K: tl.constexpr, PAIRED: tl.constexpr):
    """The inputs of nibbles 0 … 7 of each word: word i of a unit holds columns 2i and 2i + 1 of its four quarters."""
    at = words // 16 * 128 + words % 16 * 2
    x0, x4 = _two(x, at, K, PAIRED)
    x1, x5 = _two(x, at + 32, K, PAIRED)
    x2, x6 = _two(x, at + 64, K, PAIRED)
    x3, x7 = _two(x, at + 96, K, PAIRED)
    return x0, x1, x2, x3, x4, x5, x6, x7


@triton.jit
def _inputs8(x, words, K: tl.constexpr, PAIRED: tl.constexpr):
    """The inputs of bytes 0 … 3 of each word."""
    if PAIRED:
        quads = tl.load(x.to(tl.pointer_type(tl.int64)) + words, mask=words * 4 < K, other=0)
        x0, x1 = _pair(quads.to(tl.int32), PAIRED)
        x2, x3 = _pair((quads >> 32).to(tl.int32), PAIRED)
    else:
        x0, x1 = _two(x, words * 4, K, 0)
        x2, x3 = _two(x, words * 4 + 2, K, 0)
    return x0, x1, x2, x3


@triton.jit
def _nibble(words, P: tl.constexpr, ASM: tl.constexpr):
    """128 + nibble P of each word, as float32: the top of the mantissa of 128 counts ones."""
    if P < 4:
        words = words << (16 - 4 * P)
    elif P > 4:
        words = words >> (4 * P - 16)
    if ASM:  # one instruction instead of two
        bits = tl.inline_asm_elementwise(
            "lop3.b32 $0, $1, 0x000F0000, 0x43000000, 0xEA;", "=r,r", [words], dtype=tl.int32, is_pure=True, pack=1
        )
    else:
        bits = (words & 0x000F0000) | 0x43000000
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def _byte(words, P: tl.constexpr):
    """Byte P of each word, signed, as float32: 2²³ counts ones at the end of its mantissa."""
    biased = ((words ^ -2139062144) >> (8 * P)) & 0xFF  # each byte and 128
    return (biased | 0x4B000000).to(tl.float32, bitcast=True) - 8388736.0


@triton.jit
def _scaled(
    part, total, scales, zeros, rows, first, N, GROUPS: tl.constexpr, WORDS: tl.constexpr, STRIDE: tl.constexpr,
    OFFSET: tl.constexpr, Q: tl.constexpr,
):  # fmt: skip
    """Sums of products of runs of WORDS words (rows, words), each times its scale, without what OFFSET and the zeros
    added: `total` (words,) are the sums of the inputs. → (rows, runs)"""
    runs: tl.constexpr = part.shape[1] // WORDS
    products = tl.sum(tl.reshape(part, (part.shape[0], runs, WORDS)), 2)
    group = (first + tl.arange(0, runs)) * STRIDE + Q
    at = rows[:, None].to(tl.int64) * GROUPS + group[None, :]
    live = (rows < N)[:, None] & (group < GROUPS)[None, :]
    scale = tl.load(scales + at, mask=live, other=0.0).to(tl.float32)
    if OFFSET > 0:
        zero = tl.load(zeros + at, mask=live, other=0).to(tl.float32) + OFFSET
        products -= zero * tl.sum(tl.reshape(total, (runs, WORDS)), 1)[None, :]
    return products * scale


@triton.jit
def _quarter(y, w, low, high, S: tl.constexpr, ASM: tl.constexpr):
    """y + the products of a quarter of each unit, as one chain of multiply-adds."""
    y = _nibble(w, S, ASM) * low[None, :] + y
    return _nibble(w, S + 4, ASM) * high[None, :] + y


@triton.jit
def _part4(
    w, x0, x1, x2, x3, x4, x5, x6, x7, scales, zeros, rows, unit, N, K: tl.constexpr, GROUP: tl.constexpr,
    ASM: tl.constexpr,
):  # fmt: skip
    """(rows, units): the sums over each unit of 128 columns, scaled."""
    per: tl.constexpr = 128 // GROUP
    groups: tl.constexpr = (K + 127) // 128 * per
    t0, t1, t2, t3 = x0 + x4, x1 + x5, x2 + x6, x3 + x7
    if GROUP == 128:
        y = _quarter(
            _quarter(_quarter(_quarter(0.0, w, x0, x4, 0, ASM), w, x1, x5, 1, ASM), w, x2, x6, 2, ASM),
            w,
            x3,
            x7,
            3,
            ASM,
        )
        return _scaled(y, t0 + t1 + t2 + t3, scales, zeros, rows, unit, N, groups, 16, 1, 128, 0)
    if GROUP == 64:
        y = _quarter(_quarter(0.0, w, x0, x4, 0, ASM), w, x1, x5, 1, ASM)
        z = _quarter(_quarter(0.0, w, x2, x6, 2, ASM), w, x3, x7, 3, ASM)
        y = _scaled(y, t0 + t1, scales, zeros, rows, unit, N, groups, 16, 2, 128, 0)
        return y + _scaled(z, t2 + t3, scales, zeros, rows, unit, N, groups, 16, 2, 128, 1)
    y = _scaled(_quarter(0.0, w, x0, x4, 0, ASM), t0, scales, zeros, rows, unit, N, groups, 16, 4, 128, 0)
    y += _scaled(_quarter(0.0, w, x1, x5, 1, ASM), t1, scales, zeros, rows, unit, N, groups, 16, 4, 128, 1)
    y += _scaled(_quarter(0.0, w, x2, x6, 2, ASM), t2, scales, zeros, rows, unit, N, groups, 16, 4, 128, 2)
    y += _scaled(_quarter(0.0, w, x3, x7, 3, ASM), t3, scales, zeros, rows, unit, N, groups, 16, 4, 128, 3)
    return y


@triton.jit
def _part8(w, x0, x1, x2, x3, scales, rows, word, N, K: tl.constexpr, GROUP: tl.constexpr):
    """(rows, groups), or (rows, words) where a row has one scale, which is not applied."""
    y = _byte(w, 0) * x0[None, :]
    y = _byte(w, 1) * x1[None, :] + y
    y = _byte(w, 2) * x2[None, :] + y
    y = _byte(w, 3) * x3[None, :] + y
    if GROUP > 0:
        groups: tl.constexpr = (K + 127) // 128 * (128 // GROUP)
        y = _scaled(y, x0, scales, scales, rows, word // (GROUP // 4), N, groups, GROUP // 4, 1, 0, 0)
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
    BLOCK_W: tl.constexpr,  # words, at least a row
    PAIRED: tl.constexpr,
    ASM: tl.constexpr,
    NORM: tl.constexpr,
    BIAS: tl.constexpr,
    RESIDUAL: tl.constexpr,
    SILU: tl.constexpr,
    PDL: tl.constexpr,
):
    """Whole rows at a time; each program takes every so-many-th block of rows, the next one always on its way."""
    pid = tl.program_id(0)
    programs = tl.num_programs(0)
    words = tl.arange(0, BLOCK_W)
    local = tl.arange(0, BLOCK_N)
    blocks = (N + BLOCK_N - 1) // BLOCK_N
    begin_overlap(PDL)
    w = _words(data, pid * BLOCK_N + local, words, ROW, N)
    u = w
    if SILU:
        up = data + N.to(tl.int64) * ROW
        u = _words(up, pid * BLOCK_N + local, words, ROW, N)
        up_scales = scales + N.to(tl.int64) * (((K + 127) // 128 * 128) // GROUP if GROUP > 0 else 1)
        up_zeros = zeros + N.to(tl.int64) * (((K + 127) // 128 * 128) // GROUP if GROUP > 0 else 1)
    wait_for_input(PDL)
    scale = 1.0
    if BITS == 4:
        x0, x1, x2, x3, x4, x5, x6, x7 = _inputs4(x, words, K, PAIRED)
        if NORM:
            squares = x0 * x0 + x1 * x1 + x2 * x2 + x3 * x3 + x4 * x4 + x5 * x5 + x6 * x6 + x7 * x7
            scale = tl.rsqrt(tl.sum(squares, 0) / K + eps)
            g0, g1, g2, g3, g4, g5, g6, g7 = _inputs4(norm, words, K, PAIRED)
            x0, x1, x2, x3 = x0 * g0, x1 * g1, x2 * g2, x3 * g3
            x4, x5, x6, x7 = x4 * g4, x5 * g5, x6 * g6, x7 * g7
    else:
        x0, x1, x2, x3 = _inputs8(x, words, K, PAIRED)
        if NORM:
            scale = tl.rsqrt(tl.sum(x0 * x0 + x1 * x1 + x2 * x2 + x3 * x3, 0) / K + eps)
            g0, g1, g2, g3 = _inputs8(norm, words, K, PAIRED)
            x0, x1, x2, x3 = x0 * g0, x1 * g1, x2 * g2, x3 * g3
    for block in range(pid, blocks, programs):
        rows = block * BLOCK_N + local
        behind = tl.where(block + programs < blocks, N, 0)  # behind the end all is masked and costs nothing
        w_next = _words(data, rows + programs * BLOCK_N, words, ROW, behind)
        if BITS == 4:
            y = tl.sum(_part4(w, x0, x1, x2, x3, x4, x5, x6, x7, scales, zeros, rows, 0, N, K, GROUP, ASM), 1) * scale
        else:
            y = tl.sum(_part8(w, x0, x1, x2, x3, scales, rows, 0, N, K, GROUP), 1) * scale
            if GROUP == 0:
                y *= tl.load(scales + rows, mask=rows < N, other=0.0).to(tl.float32)
        y_up = y
        if SILU:
            u_next = _words(up, rows + programs * BLOCK_N, words, ROW, behind)
            if BITS == 4:
                y_up = _part4(u, x0, x1, x2, x3, x4, x5, x6, x7, up_scales, up_zeros, rows, 0, N, K, GROUP, ASM)
                y_up = tl.sum(y_up, 1) * scale
            else:
                y_up = tl.sum(_part8(u, x0, x1, x2, x3, up_scales, rows, 0, N, K, GROUP), 1) * scale
                if GROUP == 0:
                    y_up *= tl.load(up_scales + rows, mask=rows < N, other=0.0).to(tl.float32)
            u = u_next
        w = w_next
        _finish(y, y_up, bias, out, rows, N, BIAS, RESIDUAL, SILU)


@triton.jit
def gemv_kernel(
    x, data, scales, zeros, bias, out, N, K: tl.constexpr, ROW: tl.constexpr, GROUP: tl.constexpr, BITS: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_W: tl.constexpr, PAIRED: tl.constexpr, ASM: tl.constexpr, BIAS: tl.constexpr,
    RESIDUAL: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """The same for long rows: one block of rows a program, tile by tile along K, the next one always on its way."""
    rows = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    words = tl.arange(0, BLOCK_W)
    tile: tl.constexpr = BLOCK_W // 16 if BITS == 4 else (BLOCK_W if GROUP == 0 else BLOCK_W * 4 // GROUP)
    begin_overlap(PDL)
    w = _words(data, rows, words, ROW, N)
    wait_for_input(PDL)
    acc = tl.zeros((BLOCK_N, tile), tl.float32)
    for start in range(0, ROW, BLOCK_W):
        behind = tl.where(start + BLOCK_W < ROW, N, 0)
        w_next = _words(data, rows, words + start + BLOCK_W, ROW, behind)
        if BITS == 4:
            x0, x1, x2, x3, x4, x5, x6, x7 = _inputs4(x, start + words, K, PAIRED)
            acc += _part4(w, x0, x1, x2, x3, x4, x5, x6, x7, scales, zeros, rows, start // 16, N, K, GROUP, ASM)
        else:
            x0, x1, x2, x3 = _inputs8(x, start + words, K, PAIRED)
            acc += _part8(w, x0, x1, x2, x3, scales, rows, start, N, K, GROUP)
        w = w_next
    y = tl.sum(acc, 1)
    if GROUP == 0:
        y *= tl.load(scales + rows, mask=rows < N, other=0.0).to(tl.float32)
    _finish(y, y, bias, out, rows, N, BIAS, RESIDUAL, False)


def _two_codes(nibble: int, high: int, one: int, kind: str) -> tl.constexpr:
    """PTX: of two 16-bit numbers a nibble each, written into the mantissa of a power of two (the bits `high`), plus the
    addend $2, which takes that off again, and the zero."""
    return tl.constexpr(
        f"{{ .reg .b32 c, one; shr.b32 c, $1, {4 * nibble}; lop3.b32 c, c, 0x000F000F, {high * 0x10001}, 0xEA; "
        f"mov.b32 one, {one * 0x10001}; fma.rn.{kind}x2 $0, c, one, $2; }}"
    )


_BF16_0, _BF16_1, _BF16_2, _BF16_3 = (_two_codes(i, 0x4300, 0x3F80, "bf16") for i in range(4))  # 128 and the code
_FP16_0, _FP16_1, _FP16_2, _FP16_3 = (_two_codes(i, 0x6400, 0x3C00, "f16") for i in range(4))  # 1024 and the code


@triton.jit
def _codes4(numbers, zero, S: tl.constexpr, like, ASM: tl.constexpr):
    """Nibble S of each 16-bit number less the zero, in the type of `like`. Both are small whole numbers: exact."""
    if ASM:
        bfloat16: tl.constexpr = like.dtype.element_ty == tl.bfloat16
        wide: tl.constexpr = _BF16_0 if S == 0 else _BF16_1 if S == 1 else _BF16_2 if S == 2 else _BF16_3
        half: tl.constexpr = _FP16_0 if S == 0 else _FP16_1 if S == 1 else _FP16_2 if S == 2 else _FP16_3
        asm: tl.constexpr = wide if bfloat16 else half
        addend = ((-128.0 if bfloat16 else -1024.0) - zero).to(like.dtype.element_ty)
        return tl.inline_asm_elementwise(
            asm, "=r,r,r", [numbers, addend[:, None]], dtype=addend.dtype, is_pure=True, pack=2
        )
    return (((numbers >> (4 * S)) & 15).to(tl.float32) - zero[:, None]).to(like.dtype.element_ty)


@triton.jit
def _inputs(x, m, columns, M, K: tl.constexpr):
    """x (M, K) as (columns, m), 0 beyond."""
    inside = (columns < K)[:, None] & (m < M)[None, :]
    return tl.load(x + m[None, :] * K + columns[:, None], mask=inside, other=0.0)


@triton.jit
def tile_kernel(
    x,  # (M, K)
    data,  # (N, row) int16 with 4 bits, (N, K) int8; with SILU (2N, …), gates first
    scales,
    zeros,
    bias,
    out,  # (M, N)
    partial,  # (programs over N, SPLIT, BLOCK_N, M_PAD) float32
    arrived,  # (programs over N,) int32, zeros before and after
    M,
    N,
    K: tl.constexpr,
    GROUP: tl.constexpr,
    BITS: tl.constexpr,
    M_PAD: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SPLIT: tl.constexpr,  # programs that share a sum over K; 1 with SILU
    BIAS: tl.constexpr,
    RESIDUAL: tl.constexpr,
    SILU: tl.constexpr,
    ASM: tl.constexpr,
    PRECISION: tl.constexpr,
    STAGES: tl.constexpr,
    PDL: tl.constexpr,
):
    """Unit by unit of 128 columns."""
    pid = tl.program_id(0)
    split = tl.program_id(1)
    rows = pid * BLOCK_N + tl.arange(0, BLOCK_N)
    m = tl.program_id(2) * M_PAD + tl.arange(0, M_PAD)
    units: tl.constexpr = (K + 127) // 128
    steps: tl.constexpr = (units + SPLIT - 1) // SPLIT
    size: tl.constexpr = 128 if GROUP == 0 else GROUP
    groups: tl.constexpr = units * (128 // size) if GROUP > 0 else 1
    row: tl.constexpr = units * 32 if BITS == 4 else K
    live = rows < N
    begin_overlap(PDL)
    wait_for_input(PDL)
    acc = tl.zeros((BLOCK_N, M_PAD), tl.float32)
    acc_up = acc
    behind = N.to(tl.int64) * row
    for step in tl.range(0, steps, num_stages=STAGES):
        unit = split * steps + step
        acc = _unit(acc, x, data, scales, zeros, rows, m, unit, M, N, K, row, groups, size, BITS, GROUP, ASM, PRECISION)
        if SILU:
            acc_up = _unit(
                acc_up, x, data + behind, scales + N.to(tl.int64) * groups, zeros + N.to(tl.int64) * groups, rows, m,
                unit, M, N, K, row, groups, size, BITS, GROUP, ASM, PRECISION,
            )  # fmt: skip
    last = True
    if SPLIT > 1:
        tile = BLOCK_N * M_PAD
        place = partial + pid * SPLIT * tile + tl.arange(0, BLOCK_N)[:, None] * M_PAD + tl.arange(0, M_PAD)[None, :]
        tl.store(place + split * tile, acc)
        tl.debug_barrier()
        last = tl.atomic_add(arrived + pid, 1, sem="acq_rel") == SPLIT - 1
        if last:
            acc = tl.zeros((BLOCK_N, M_PAD), tl.float32)
            for part in range(SPLIT):  # always in this order: the sum does not depend on who came last
                acc += tl.load(place + part * tile, cache_modifier=".cg")
            tl.store(arrived + pid, 0)
    if last:
        if GROUP == 0:
            acc *= tl.load(scales + rows, mask=live, other=0.0).to(tl.float32)[:, None]
        if BIAS:
            acc += tl.load(bias + rows, mask=live, other=0.0).to(tl.float32)[:, None]
        if SILU:
            if GROUP == 0:
                acc_up *= tl.load(scales + N + rows, mask=live, other=0.0).to(tl.float32)[:, None]
            if BIAS:
                acc_up += tl.load(bias + N + rows, mask=live, other=0.0).to(tl.float32)[:, None]
            acc = _silu(acc) * acc_up
        at = out + m[None, :].to(tl.int64) * N + rows[:, None]
        stored = live[:, None] & (m < M)[None, :]
        if RESIDUAL:
            acc += tl.load(at, mask=stored, other=0.0).to(tl.float32)
        tl.store(at, acc.to(out.dtype.element_ty), mask=stored)


@triton.jit
def _unit(
    acc, x, data, scales, zeros, rows, m, unit, M, N, K: tl.constexpr, row: tl.constexpr, groups: tl.constexpr,
    size: tl.constexpr, BITS: tl.constexpr, GROUP: tl.constexpr, ASM: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """acc + the products of a unit of 128 columns, scaled."""
    live = rows < N
    at = data + rows[:, None].to(tl.int64) * row
    group = rows.to(tl.int64) * groups + unit * (128 // size)
    beyond = unit * 128 < K
    if BITS == 4:
        numbers = tl.load(at + (unit * 32 + tl.arange(0, 32))[None, :], mask=live[:, None] & beyond, other=0)
        part = tl.zeros_like(acc)
        zero = tl.zeros_like(rows).to(tl.float32)
        for s in tl.static_range(4):
            columns = unit * 128 + 32 * s + tl.arange(0, 32)
            if (32 * s) % size == 0:
                zero = tl.load(zeros + group + 32 * s // size, mask=live & beyond, other=0).to(tl.float32)
            codes = _codes4(numbers, zero, s, x, ASM)
            part = tl.dot(codes, _inputs(x, m, columns, M, K), part, input_precision=PRECISION)
            if (32 * s + 32) % size == 0:
                scale = tl.load(scales + group + 32 * s // size, mask=live & beyond, other=0.0).to(tl.float32)
                acc += part * scale[:, None]
                part = tl.zeros_like(acc)
    else:
        for s in tl.static_range(128 // size):
            columns = unit * 128 + size * s + tl.arange(0, size)
            codes = tl.load(at + columns[None, :], mask=live[:, None] & (columns < K)[None, :], other=0)
            if not ASM:
                codes = codes.to(tl.float32)
            codes = codes.to(x.dtype.element_ty)
            if GROUP == 0:
                acc = tl.dot(codes, _inputs(x, m, columns, M, K), acc, input_precision=PRECISION)
            else:
                part = tl.dot(codes, _inputs(x, m, columns, M, K), input_precision=PRECISION)
                scale = tl.load(scales + group + s, mask=live & beyond, other=0.0).to(tl.float32)
                acc += part * scale[:, None]
    return acc


@triton.jit
def dequantize_kernel(
    data,  # as in `tile_kernel`
    scales,
    zeros,
    out,  # (N, K)
    N,
    K: tl.constexpr,
    GROUP: tl.constexpr,
    BITS: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    rows = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    unit = tl.program_id(1)
    units: tl.constexpr = (K + 127) // 128
    size: tl.constexpr = 128 if GROUP == 0 else GROUP
    groups: tl.constexpr = units * (128 // size) if GROUP > 0 else 1
    group = rows.to(tl.int64) * groups + (unit * (128 // size) if GROUP > 0 else 0)
    live = rows < N
    to = out + rows[:, None].to(tl.int64) * K
    if BITS == 4:
        numbers = tl.load(
            data + rows[:, None].to(tl.int64) * (units * 32) + (unit * 32 + tl.arange(0, 32))[None, :],
            mask=live[:, None], other=0,
        )  # fmt: skip
        for s in tl.static_range(4):
            columns = unit * 128 + 32 * s + tl.arange(0, 32)
            scale = tl.load(scales + group + 32 * s // size, mask=live, other=0.0).to(tl.float32)
            zero = tl.load(zeros + group + 32 * s // size, mask=live, other=0).to(tl.float32)
            value = (((numbers >> (4 * s)) & 15).to(tl.float32) - zero[:, None]) * scale[:, None]
            tl.store(to + columns[None, :], value.to(out.dtype.element_ty), mask=live[:, None] & (columns < K)[None, :])
    else:
        for s in tl.static_range(128 // size):
            columns = unit * 128 + size * s + tl.arange(0, size)
            inside = live[:, None] & (columns < K)[None, :]
            scale = tl.load(scales + group + s, mask=live, other=0.0).to(tl.float32)
            value = tl.load(data + rows[:, None].to(tl.int64) * K + columns[None, :], mask=inside, other=0)
            value = value.to(tl.float32) * scale[:, None]
            tl.store(to + columns[None, :], value.to(out.dtype.element_ty), mask=inside)
