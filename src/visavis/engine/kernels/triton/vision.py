"""What a vision tower does between its products, one pass over memory each."""

import triton
import triton.language as tl

__all__ = ["join_norm_kernel", "patch_kernel", "quick_gelu_kernel"]


@triton.jit(do_not_specialize=["frames", "height", "width"])  # one kernel for pictures of all sizes
def patch_kernel(
    pixels,  # (frames, height, width, 3) uint8
    table,  # (3, 256), as `out`: what each byte becomes in each channel
    out,  # (patches, 3 · T · P · P)
    frames,
    height,
    width,
    P: tl.constexpr,  # pixels a side of a patch
    M: tl.constexpr,  # patches a side of a cell
    T: tl.constexpr,  # frames of a patch
    STILL: tl.constexpr,  # one frame fills all of them
    BLOCK: tl.constexpr,
):
    """One patch a program, in the order of `visavis.patches.patchify`."""
    patch = tl.program_id(0)
    across = width // (P * M)
    down = height // (P * M)
    cell = patch // (M * M)
    inside = patch % (M * M)
    row = (cell // across % down * M + inside // M) * P
    column = (cell % across * M + inside % M) * P
    step = cell // (across * down)
    i = tl.arange(0, BLOCK)
    live = i < 3 * T * P * P
    channel = i // (T * P * P)
    y = row + i // P % P
    x = column + i % P
    frame = tl.zeros((BLOCK,), tl.int64)
    if not STILL:  # a video of too few frames repeats its last one
        frame = tl.minimum(step * T + i // (P * P) % T, frames - 1).to(tl.int64)
    byte = tl.load(pixels + ((frame * height + y) * width + x) * 3 + channel, mask=live, other=0).to(tl.int32)
    value = tl.load(table + channel * 256 + byte, mask=live, other=0.0)
    at = out + patch.to(tl.int64) * (3 * T * P * P) + i
    tl.store(at, value, mask=live)


@triton.jit
def join_norm_kernel(
    x,  # (rows, N); with JOIN `late` is added to it in place
    late,  # (rows, N)
    weight,
    bias,  # (N,), read where RMS is False
    out,
    eps,
    N: tl.constexpr,
    BLOCK: tl.constexpr,
    JOIN: tl.constexpr,
    RMS: tl.constexpr,
):
    """The residual's sum, then LayerNorm or RMSNorm (rounded before its weight, as the reference does)
    of one row a program."""
    row = tl.program_id(0).to(tl.int64) * N
    columns = tl.arange(0, BLOCK)
    live = columns < N
    value = tl.load(x + row + columns, mask=live, other=0.0)
    if JOIN:
        more = tl.load(late + row + columns, mask=live, other=0.0).to(tl.float32)
        value = (value.to(tl.float32) + more).to(value.dtype)
        tl.store(x + row + columns, value, mask=live)
    wide = value.to(tl.float32)
    gain = tl.load(weight + columns, mask=live, other=0.0).to(tl.float32)
    if RMS:
        wide *= tl.rsqrt(tl.sum(wide * wide, 0) / N + eps)
        normed = wide.to(value.dtype).to(tl.float32) * gain
    else:
        wide = tl.where(live, wide - tl.sum(wide, 0) / N, 0.0)
        wide *= tl.rsqrt(tl.sum(wide * wide, 0) / N + eps)
        normed = wide * gain + tl.load(bias + columns, mask=live, other=0.0).to(tl.float32)
    tl.store(out + row + columns, normed.to(value.dtype), mask=live)


@triton.jit
def quick_gelu_kernel(x, count, BLOCK: tl.constexpr):
    """x · sigmoid(1.702 x), in place."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    live = at < count
    value = tl.load(x + at, mask=live, other=0.0)
    wide = value.to(tl.float32)
    tl.store(x + at, (wide / (1.0 + tl.exp(-1.702 * wide))).to(value.dtype), mask=live)
