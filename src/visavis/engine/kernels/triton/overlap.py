"""Programmatic dependent launch (compute capability 9.0): a kernel starts while the one before it still runs.

`PDL` is 0 (not on this device), 1 or 3. With 1 a kernel lets its successor start once its own input is there, with 3
when it has only its results left to write: whatever runs before `wait_for_input` may read all but what the direct
predecessor writes.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

__all__ = ["end_overlap", "wait_for_input"]


@triton.jit
def wait_for_input(PDL: tl.constexpr):
    if PDL > 0:
        gdc_wait()
    if PDL == 1:
        gdc_launch_dependents()


@triton.jit
def end_overlap(PDL: tl.constexpr):
    if PDL == 3:
        gdc_launch_dependents()
