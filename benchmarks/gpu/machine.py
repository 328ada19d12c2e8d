"""What a record says of its machine, the ceilings measured on it, and the end where there is no such machine."""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

__all__ = ["ceilings", "describe", "need_cuda", "time_ms"]


def need_cuda() -> None:
    """Ends the program that was started, with 2 and one line, where there is no CUDA device."""
    if not torch.cuda.is_available():
        print(f"benchmarks.gpu.{Path(sys.argv[0]).stem} needs a CUDA device", file=sys.stderr)
        raise SystemExit(2)


def describe() -> dict[str, Any]:
    import triton

    p = torch.cuda.get_device_properties(0)
    driver = subprocess.run(
        ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
        capture_output=True,
        text=True,
        check=False,
    ).stdout.split()
    return {
        "gpu": p.name, "memory_gib": round(p.total_memory / 2**30, 1), "processors": p.multi_processor_count,
        "driver": driver[0] if driver else None, "torch": str(torch.__version__), "triton": triton.__version__,
    }  # fmt: skip


def time_ms(call: Callable[[], Any], repeats: int = 20) -> float:
    """Median time on the device."""
    for _ in range(3):
        call()
    times = []
    for _ in range(repeats):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        call()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times)


def ceilings() -> dict[str, float]:
    """Copy and read bandwidth in GB/s (1e9), bf16 products in TFLOP/s, on random data."""
    x = torch.empty(2 << 30, dtype=torch.uint8, device="cuda").random_()
    y = torch.empty_like(x)
    copy = 2 * x.numel() / time_ms(lambda: y.copy_(x)) / 1e6
    words = x.view(torch.int64)
    read = x.numel() / time_ms(lambda: words.sum()) / 1e6
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    flops = 2 * 8192**3 / time_ms(lambda: a @ b) / 1e9
    return {"copy_gb_s": round(copy), "read_gb_s": round(read), "bf16_tflop_s": round(flops)}
