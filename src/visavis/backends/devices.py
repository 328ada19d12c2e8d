"""Which GPUs there are, without importing torch: the driver is asked, nothing is initialised."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

__all__ = ["cuda_gpus", "devices", "gpu_bytes_of"]


def cuda_gpus() -> list[str]:
    """Names of the NVIDIA GPUs a process started now would see; [] without a driver."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and visible.strip() in ("", "-1"):
        return []
    names = _listed_by_the_driver() or _listed_by_nvidia_smi()
    return names if visible is None else names[: len(visible.split(","))]


def _listed_by_the_driver() -> list[str]:
    names = []
    for info in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        try:
            lines = info.read_text("utf-8").splitlines()
        except OSError:
            continue
        names += [line.partition(":")[2].strip() for line in lines if line.startswith("Model:")]
    return names


def _listed_by_nvidia_smi() -> list[str]:
    """Windows' Linux has no driver of its own to ask."""
    try:
        done = subprocess.run(
            ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], capture_output=True, text=True, timeout=20
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [line.strip() for line in done.stdout.splitlines() if line.strip()] if done.returncode == 0 else []


def gpu_bytes_of(pids: Collection[int]) -> int | None:
    """GPU memory that these processes hold now, as the driver counts it; None where it does not say (no driver, or a
    container in which processes have other numbers)."""
    command = ["nvidia-smi", "--query-compute-apps=pid,used_gpu_memory", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    held = []
    for line in done.stdout.splitlines() if done.returncode == 0 else ():
        pid, _, mebibytes = (part.strip() for part in line.partition(","))
        if pid.isdigit() and mebibytes.isdigit() and int(pid) in pids:
            held.append(int(mebibytes) * 2**20)
    return sum(held) if held else None


def devices() -> list[str]:
    """What engines can run on here, e.g. ["cpu", "cuda (NVIDIA H200)"]."""
    found = ["cpu", *(f"cuda ({name})" for name in cuda_gpus())]
    if sys.platform == "darwin" and platform.machine() == "arm64":
        found.append("mps")
    return found
