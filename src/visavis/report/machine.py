"""What machine this is: part of every result. Imports no torch."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from visavis.backends.devices import cuda_gpus
from visavis.machine import allowed_cores

__all__ = ["busy_words", "describe", "one_line"]

BUSY = 0.75
"""Load average per core above which the machine is called busy."""
PACKAGES = ("visavis", "torch", "transformers", "tokenizers", "numpy", "pillow", "vllm", "sglang")


def describe() -> dict[str, Any]:
    """Processor, cores this process may use, load, memory in bytes, GPUs, system and the versions that matter."""
    return {
        "cpu": _cpu_name(),
        "cores": allowed_cores(),
        "load_average": _load_average(),
        "memory_bytes": _memory_bytes(),
        "gpus": cuda_gpus(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "packages": {name: version for name in PACKAGES if (version := _version(name)) is not None},
        "environment": {k: v for k in ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES") if (v := os.environ.get(k))},
    }


def one_line(machine: dict[str, Any]) -> str:
    """For people, e.g. `Xeon 8481C, 2 cores, 8 GiB, Linux · Python 3.11.7 · torch 2.13.0`."""
    parts = [machine["cpu"], f"{machine['cores']} core{'s' if machine['cores'] != 1 else ''}"]
    if machine["memory_bytes"]:
        parts.append(f"{machine['memory_bytes'] / 2**30:.0f} GiB")
    parts += machine["gpus"]
    packages = machine["packages"]
    versions = [f"{name} {packages[name]}" for name in ("torch", "transformers") if name in packages]
    return " · ".join([", ".join([*parts, machine["system"].split()[0]]), f"Python {machine['python']}", *versions])


def busy_words(machine: Mapping[str, Any]) -> str | None:
    """What to say of a machine (`describe`) on which other work was running; None where it was at rest."""
    load, count = machine.get("load_average"), machine.get("cores")
    if not isinstance(load, int | float) or not isinstance(count, int) or load <= BUSY * count:
        return None
    return (
        f"other work was running (load average {load:.1f} on {count} cores before the start): the times are not to be "
        "trusted"
    )


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines():
            if line.startswith(("model name", "Model")):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    if platform.system() == "Darwin":
        try:
            done = subprocess.run(
                ["sysctl", "-n", "machdep.cpu.brand_string"], capture_output=True, text=True, timeout=5
            )
            if done.stdout.strip():
                return done.stdout.strip()
        except (OSError, subprocess.TimeoutExpired):
            pass
    return platform.processor() or platform.machine()


def _load_average() -> float | None:
    """Of the last minute."""
    try:
        return round(os.getloadavg()[0], 2)
    except (OSError, AttributeError):
        return None


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
