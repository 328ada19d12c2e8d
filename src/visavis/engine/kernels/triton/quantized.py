"""Products of several rows with an 8- or 4-bit weight (`quantization/weight.py` has the layout).

`tile_kernel` uses the matrix units, with the weight as the tall operand, as `linear.skinny_kernel` does; the weight is
never made dense in memory. `dequantize_kernel` makes some rows of it dense, for products of so many rows that this no
longer counts. One row of x: `quantized_gemv`.
"""

import triton
import triton.language as tl

from visavis.engine.kernels.triton.linear import _silu

__all__ = ["dequantize_kernel", "tile_kernel"]


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
