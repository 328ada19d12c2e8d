"""From logits to tokens on the device, exactly: no candidate list is cut short, whatever the distribution.

The vocabulary is cut into chunks, one program each. `adjust` applies penalties and temperature. top_k and top_p need a
threshold: the largest value with enough tokens, or enough probability, at or above it. It is found digit by digit
on the values' bits: each `select` pass sums, for 16 candidate digits, what lies at or above each, and decides the
digit of the pass before. Eight passes are the 32 bits of a float. `draw` then inverts the cumulative distribution in
the vocabulary's order, as `engine/sampler.py` does, with the same random numbers. Nothing is added up atomically, so a
step gives the same tokens every time.
"""

import triton
import triton.language as tl

from visavis.engine.kernels.triton.overlap import wait_for_input

__all__ = ["DIGITS", "IN_PROMPT", "PASSES", "adjust_kernel", "draw_kernel", "greedy_kernel", "select_kernel"]

DIGIT_BITS = tl.constexpr(4)
DIGITS = 16
PASSES = 8
IN_PROMPT = 1 << 30
"""Set in a count of the penalties' table when the token is in the prompt."""
PROMPT_BIT = tl.constexpr(IN_PROMPT)
MAX_DOUBLE_STEP = tl.constexpr(2.0**-53)


@triton.jit
def _ordered(x):
    """float32 → uint32 in the same order."""
    bits = x.to(tl.uint32, bitcast=True)
    return tl.where(bits >> 31 == 0, bits | 0x80000000, bits ^ 0xFFFFFFFF)


@triton.jit
def _mix64(z):
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB
    return z ^ (z >> 31)


@triton.jit
def _uniform(state, index):
    """As `engine.random_numbers.uniform`, from the mixed seed on: float64 in [0, 1)."""
    z = _mix64(state.to(tl.uint64, bitcast=True) + (index + 1).to(tl.uint64) * 0x9E3779B97F4A7C15)
    return (z >> 11).to(tl.float64) * MAX_DOUBLE_STEP


@triton.jit
def _row_top(tops, row, chunks, CHUNKS_PAD: tl.constexpr):
    chunk = tl.arange(0, CHUNKS_PAD)
    return tl.max(tl.load(tops + row * chunks + chunk, mask=chunk < chunks, other=float("-inf")), 0)


@triton.jit
def adjust_kernel(
    logits,  # (rows, V) float32, changed in place when SAMPLED
    tops,  # (rows, chunks) float32: the largest value of each chunk
    places,  # (rows, chunks) int32: where it is
    broken,  # (rows, chunks) int32: 1 when a raw logit is not finite
    seats,  # (rows,) int32: which row of the tables below is this request's; SAMPLED only
    inverse_temperature,  # (seats,) float32; 0: greedy
    repetition,  # (seats,)
    presence,
    frequency,
    counts,  # (seats, V) int32; PENALTIES only
    V,
    CHUNK: tl.constexpr,
    SAMPLED: tl.constexpr,
    PENALTIES: tl.constexpr,
    PDL: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    token = chunk * CHUNK + tl.arange(0, CHUNK)
    live = token < V
    wait_for_input(PDL)
    x = tl.load(logits + row * V + token, mask=live, other=0.0)
    odd = tl.max(((x != x) | (tl.abs(x) == float("inf"))).to(tl.int32), 0)
    if SAMPLED:
        seat = tl.load(seats + row).to(tl.int64)
        if PENALTIES:
            seen = tl.load(counts + seat * V + token, mask=live, other=0)
            count = seen & (PROMPT_BIT - 1)
            factor = tl.load(repetition + seat)
            x = tl.where(seen > 0, tl.where(x > 0, x / factor, x * factor), x)
            answered = (count > 0).to(tl.float32)
            x -= tl.load(presence + seat) * answered + tl.load(frequency + seat) * count.to(tl.float32)
        warmth = tl.load(inverse_temperature + seat)
        x = x * tl.where(warmth == 0.0, 1.0, warmth)
        tl.store(logits + row * V + token, x, mask=live)
    x = tl.where(live, x, float("-inf"))
    best = tl.max(x, 0)
    first = tl.min(tl.where(x == best, token, V), 0)  # of equal ones the first
    chunks = tl.num_programs(1)
    tl.store(tops + row * chunks + chunk, best)
    tl.store(places + row * chunks + chunk, first)
    tl.store(broken + row * chunks + chunk, odd)


@triton.jit
def _greedy(tops, places, row, chunks, V, CHUNKS_PAD: tl.constexpr):
    chunk = tl.arange(0, CHUNKS_PAD)
    live = chunk < chunks
    top = tl.load(tops + row * chunks + chunk, mask=live, other=float("-inf"))
    place = tl.load(places + row * chunks + chunk, mask=live, other=V)
    return tl.min(tl.where(top == tl.max(top, 0), place, V), 0)


@triton.jit
def greedy_kernel(
    tops,
    places,
    broken,
    sampled,  # (rows,) int32; -1: the row's logits were not finite
    chunks,
    V,
    CHUNKS_PAD: tl.constexpr,
    PDL: tl.constexpr,
):
    wait_for_input(PDL)
    row = tl.program_id(0)
    chunk = tl.arange(0, CHUNKS_PAD)
    odd = tl.max(tl.load(broken + row * chunks + chunk, mask=chunk < chunks, other=0), 0)
    tl.store(sampled + row, tl.where(odd > 0, -1, _greedy(tops, places, row, chunks, V, CHUNKS_PAD)))


@triton.jit
def _decide(sums, state, row, chunks, shift, CHUNKS_PAD: tl.constexpr):
    """What a finished pass says, from its sums and its state: threshold bits so far, the amount asked for, the floor,
    and each chunk's share of what lies at or above both."""
    chunk = tl.arange(0, CHUNKS_PAD)
    digit = tl.arange(0, 16)
    at = sums + (row * chunks + chunk[:, None]) * 16 + digit[None, :]
    parts = tl.load(at, mask=(chunk < chunks)[:, None], other=0.0)
    above = tl.sum(parts, 0)  # falls with the digit; digit 0 always has enough
    prefix = tl.load(state + row * 3).to(tl.uint32, bitcast=True)
    amount = tl.load(state + row * 3 + 1).to(tl.float32, bitcast=True)
    floor = tl.load(state + row * 3 + 2).to(tl.uint32, bitcast=True)
    # After the first pass shares are of all that is at or above the floor, which is the sum of digit 0.
    amount = tl.where((amount < 0) & (shift == 28), -amount * tl.max(above, 0), amount)
    chosen = tl.max(tl.where(above >= amount, digit, 0), 0)
    masses = tl.sum(tl.where(digit[None, :] == chosen, parts, 0.0), 1)
    return prefix | (chosen << shift).to(tl.uint32, bitcast=True), amount, floor, masses


@triton.jit
def select_kernel(
    logits,  # (rows, V) float32, adjusted
    tops,
    sums_before,  # (rows, chunks, 16) float32: of the last pass
    sums,
    state_before,  # (rows, 3) int32: threshold bits, amount (float32 bits; below 0: a share of the whole), floor bits
    state,
    seats,
    share,  # (seats,) float32: top_p; or top_k as float32. Out of (0, 1), or 0: no limit
    log_min_p,  # (seats,) float32
    V,
    chunks,
    shift,  # of this pass's digit: 28, 24 … 0
    CHUNK: tl.constexpr,
    CHUNKS_PAD: tl.constexpr,
    FIRST: tl.constexpr,  # shift is 28
    COUNT: tl.constexpr,  # sums tokens (top_k) instead of probability (top_p)
    CHAINED: tl.constexpr,  # the first pass of top_p after the last one of top_k
    PDL: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    wait_for_input(PDL)
    top = _row_top(tops, row, chunks, CHUNKS_PAD)
    if FIRST:
        seat = tl.load(seats + row)
        wish = tl.load(share + seat)
        prefix = tl.zeros((), tl.int32).to(tl.uint32)
        if COUNT:
            amount = tl.where(wish > 0, wish, 1.0e9)  # more than there are: digit 0 is chosen all along
        else:
            amount = tl.where(wish < 1, -wish, 1.0e9)
        if CHAINED:
            threshold, _, floor, _ = _decide(sums_before, state_before, row, chunks, 0, CHUNKS_PAD)
            floor = tl.maximum(floor, threshold)
        else:
            floor = _ordered(top + tl.load(log_min_p + seat))
    else:
        prefix, amount, floor, _ = _decide(sums_before, state_before, row, chunks, shift + 4, CHUNKS_PAD)
    if chunk == 0:
        tl.store(state + row * 3, prefix.to(tl.int32, bitcast=True))
        tl.store(state + row * 3 + 1, amount.to(tl.int32, bitcast=True))
        tl.store(state + row * 3 + 2, floor.to(tl.int32, bitcast=True))
    token = chunk * CHUNK + tl.arange(0, CHUNK)
    x = tl.load(logits + row * V + token, mask=token < V, other=float("-inf"))
    key = _ordered(x)
    weight = tl.exp(x - top)
    if COUNT:
        weight = tl.full((CHUNK,), 1.0, tl.float32)
    weight = tl.where((token < V) & (key >= floor), weight, 0.0)
    digit = tl.arange(0, 16)
    candidate = prefix | (digit << shift).to(tl.uint32, bitcast=True)
    above = tl.sum(tl.where(key[None, :] >= candidate[:, None], weight[None, :], 0.0), 1)
    tl.store(sums + (row * chunks + chunk) * 16 + digit, above)


@triton.jit
def draw_kernel(
    logits,
    tops,
    places,
    broken,
    sums,  # of the last select pass
    state,
    seats,
    inverse_temperature,
    seeds,  # (seats,) int64, mixed once
    indices,  # (rows,) int32: how many tokens the answer has
    counts,  # (seats, V) int32; PENALTIES only
    sampled,  # (rows,) int32
    V,
    chunks,
    shift,  # of that pass
    CHUNK: tl.constexpr,
    CHUNKS_PAD: tl.constexpr,
    PENALTIES: tl.constexpr,
    PDL: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    wait_for_input(PDL)
    seat = tl.load(seats + row).to(tl.int64)
    chunk = tl.arange(0, CHUNKS_PAD)
    odd = tl.max(tl.load(broken + row * chunks + chunk, mask=chunk < chunks, other=0), 0)
    token = _greedy(tops, places, row, chunks, V, CHUNKS_PAD)
    if tl.load(inverse_temperature + seat) != 0.0:
        top = _row_top(tops, row, chunks, CHUNKS_PAD)
        threshold, _, floor, masses = _decide(sums, state, row, chunks, shift, CHUNKS_PAD)
        least = tl.minimum(tl.maximum(threshold, floor), _ordered(top))  # a share of 0 keeps the likeliest
        masses = masses.to(tl.float64)
        inside = tl.arange(0, CHUNK)
        reached = tl.cumsum(masses, 0)
        goal = _uniform(tl.load(seeds + seat), tl.load(indices + row)) * tl.sum(masses, 0)
        # The first chunk that passes the goal; rounding can leave none, then the last one with any mass.
        last = tl.max(tl.where(masses > 0, chunk, 0), 0)
        part = tl.minimum(tl.sum((reached <= goal).to(tl.int32), 0), last)
        before = tl.sum(tl.where(chunk < part, masses, 0.0), 0)
        at = part * CHUNK + inside
        x = tl.load(logits + row * V + at, mask=at < V, other=float("-inf"))
        mass = tl.where(_ordered(x) >= least, tl.exp(x - top), 0.0).to(tl.float64)
        passed = (before + tl.cumsum(mass, 0) > goal) & (mass > 0)
        pick = tl.min(tl.where(passed, inside, CHUNK), 0)
        final = tl.max(tl.where(mass > 0, inside, 0), 0)
        token = part * CHUNK + tl.minimum(pick, final)
    if PENALTIES:
        place = counts + seat * V + token
        tl.store(place, tl.load(place) + 1)
    tl.store(sampled + row, tl.where(odd > 0, -1, token))
