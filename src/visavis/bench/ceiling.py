"""What this machine can do at best, measured: bytes read a second, floating-point operations a second.

Run as a process of its own (`measure`), so that its memory is gone before an engine starts.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import Any

__all__ = ["measure", "measure_here"]

_READ_BYTES = {"cpu": 1 << 28, "cuda": 1 << 31}  # far beyond any cache
_SIDE = {"cpu": 1024, "cuda": 8192}  # of the square matrices multiplied
_REPEATS = {"cpu": 7, "cuda": 20}
_TIMEOUT_S = 180.0


def measure(device: str, threads: int | None) -> dict[str, Any]:
    """See `measure_here`. Where it fails: {"error": why}."""
    command = [sys.executable, "-m", "visavis.bench.ceiling", device, str(threads or 0)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"error": f"not measured: {type(error).__name__}"}
    lines = done.stdout.strip().splitlines()
    try:
        found: dict[str, Any] = json.loads(lines[-1])
        return found
    except (ValueError, IndexError):
        words = done.stderr.strip().splitlines()[-1:] or ["it said nothing"]
        return {"error": f"not measured: {words[0][:200]}"}


def measure_here(device: str, threads: int) -> dict[str, Any]:
    """`read_bytes_per_s`: the best of several sums over float32 values that no cache holds. `matmul_flops_per_s` by
    dtype: the best product of two square matrices, 2·n³ operations. By torch, on the threads an engine gets.

    `device`: "auto", "cpu" or a CUDA device; `threads` 0: torch's choice.
    """
    import torch

    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    kind = "cuda" if device.startswith("cuda") else "cpu"
    if threads:
        torch.set_num_threads(threads)
    values = torch.ones(_READ_BYTES[kind] // 4, dtype=torch.float32, device=device)
    read_s = _best(values.sum, kind)
    read = values.numel() * 4 / read_s
    del values
    side = _SIDE[kind]
    flops = {}
    for dtype in (torch.float32, torch.bfloat16):
        a = torch.randn(side, side, dtype=torch.float32, device=device).to(dtype)
        flops[str(dtype).removeprefix("torch.")] = 2 * side**3 / _best(lambda a=a: a @ a, kind)
    return {
        "device": device,
        "name": torch.cuda.get_device_name(device) if kind == "cuda" else "cpu",
        "threads": torch.get_num_threads(),
        "read_bytes_per_s": read,
        "matmul_flops_per_s": flops,
        "how": f"torch {torch.__version__}: sum over {_READ_BYTES[kind] >> 20} MiB of float32; "
        f"{side}×{side} matrix product; best of {_REPEATS[kind]}",
    }


def _best(work: Any, kind: str) -> float:
    import torch

    best = float("inf")
    for _ in range(_REPEATS[kind] + 1):
        start = time.perf_counter()
        work()
        if kind == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - start)
    return best


if __name__ == "__main__":
    print(json.dumps(measure_here(sys.argv[1], int(sys.argv[2]))))
