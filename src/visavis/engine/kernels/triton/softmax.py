"""The running softmax that both attention kernels keep (online softmax, arXiv:1805.02867), in powers of two."""

import triton
import triton.language as tl

__all__ = ["LOG2E", "accumulate"]

LOG2E = tl.constexpr(1.4426950408889634)
"""Scores are multiplied by this as well as by their scale, so that `exp2` makes the weights."""


@triton.jit
def accumulate(score, v, acc, top, total, PRECISION: tl.constexpr):
    """One tile of scores (queries, tokens) and values (tokens, D) into the sum, the maximum and the denominator."""
    higher = tl.maximum(top, tl.max(score, 1))
    weight = tl.exp2(score - higher[:, None])
    shrink = tl.exp2(top - higher)
    total = total * shrink + tl.sum(weight, 1)
    acc = tl.dot(weight.to(v.dtype), v, acc * shrink[:, None], input_precision=PRECISION)
    return acc, higher, total
