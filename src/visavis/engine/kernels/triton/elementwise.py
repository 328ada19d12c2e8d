"""The small operations between products, one pass over memory each."""

import triton
import triton.language as tl

from visavis.engine.kernels.triton.overlap import wait_for_input

__all__ = ["begin_step_kernel", "rms_norm_kernel", "rotate_kernel", "silu_mul_kernel"]


@triton.jit
def rms_norm_kernel(x, weight, out, eps, N: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr):
    """One row of (rows, N) a program; rounded before the weight, as the reference does."""
    wait_for_input(PDL)
    row = tl.program_id(0).to(tl.int64) * N
    columns = tl.arange(0, BLOCK)
    live = columns < N
    value = tl.load(x + row + columns, mask=live, other=0.0)
    wide = value.to(tl.float32)
    wide *= tl.rsqrt(tl.sum(wide * wide, 0) / N + eps)
    gain = tl.load(weight + columns, mask=live, other=0.0).to(tl.float32)
    tl.store(out + row + columns, (wide.to(value.dtype).to(tl.float32) * gain).to(value.dtype), mask=live)


@triton.jit
def silu_mul_kernel(gate_up, out, M, BLOCK: tl.constexpr, PDL: tl.constexpr):
    """(rows, 2M), gates first → (rows, M)."""
    wait_for_input(PDL)
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    live = columns < M
    gate = tl.load(gate_up + row * 2 * M + columns, mask=live, other=0.0)
    up = tl.load(gate_up + row * 2 * M + M + columns, mask=live, other=0.0).to(tl.float32)
    wide = gate.to(tl.float32)
    silu = (wide / (1.0 + tl.exp(-wide))).to(gate.dtype).to(tl.float32)
    tl.store(out + row * M + columns, (silu * up).to(gate.dtype), mask=live)


@triton.jit
def rotate_kernel(
    heads,  # (tokens, …), a token's rotated heads side by side, tokens `stride` apart; in place
    cos,  # (tokens, D)
    signed_sin,
    stride,
    COUNT: tl.constexpr,  # heads
    COUNT_PAD: tl.constexpr,
    D: tl.constexpr,
    HALF_PAD: tl.constexpr,
):
    """x · cos + roll(x, D / 2) · signed_sin in float32, one token a program."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.arange(0, COUNT_PAD)
    half = tl.arange(0, HALF_PAD)
    live = (half < D // 2)[None, :]
    both = live & (head < COUNT)[:, None]
    at = heads + token * stride + head[:, None] * D + half[None, :]
    low = tl.load(at, mask=both, other=0.0).to(tl.float32)
    high = tl.load(at + D // 2, mask=both, other=0.0).to(tl.float32)
    turn = token * D + half[None, :]
    c_low = tl.load(cos + turn, mask=live, other=0.0).to(tl.float32)
    c_high = tl.load(cos + turn + D // 2, mask=live, other=0.0).to(tl.float32)
    s_low = tl.load(signed_sin + turn, mask=live, other=0.0).to(tl.float32)
    s_high = tl.load(signed_sin + turn + D // 2, mask=live, other=0.0).to(tl.float32)
    tl.store(at, (low * c_low + high * s_low).to(heads.dtype.element_ty), mask=both)
    tl.store(at + D // 2, (high * c_high + low * s_high).to(heads.dtype.element_ty), mask=both)


@triton.jit
def begin_step_kernel(
    embedding,  # (vocab, N)
    sampled,  # (rows,) int32: the tokens the last step drew
    sources,  # (rows,) int32: the row of the last step a request was in, below 0: its token is in `tokens`
    tokens,  # (rows,) int32
    table_rows,  # (rows,) int32
    new_places,  # (rows,) int32: where in its block table a request's new block goes, below 0: it has none
    new_blocks,  # (rows,) int32
    tables,  # (table rows, table_stride) int32
    out,  # (rows, N)
    table_stride,
    N: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    """The newest token of each request, looked up; block tables brought up to date."""
    wait_for_input(PDL)
    row = tl.program_id(0).to(tl.int64)
    source = tl.load(sources + row)
    token = tl.load(tokens + row)
    if source >= 0:
        token = tl.load(sampled + source)
    token = tl.maximum(token, 0)  # -1 marks logits that were not finite: the request ends when the host reads it
    place = tl.load(new_places + row)
    if place >= 0:
        table = tables + tl.load(table_rows + row).to(tl.int64) * table_stride
        tl.store(table + place, tl.load(new_blocks + row))
    columns = tl.arange(0, BLOCK)
    live = columns < N
    value = tl.load(embedding + token.to(tl.int64) * N + columns, mask=live, other=0.0)
    tl.store(out + row * N + columns, value, mask=live)
