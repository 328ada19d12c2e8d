"""What this process may use of the machine, its control groups (v1 and v2) counted: the one place that reads them."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

__all__ = ["allowed_cores", "available_memory", "total_memory", "usable_cores"]


def available_memory(root: Path = Path("/")) -> int:
    """Bytes that can still be had: of the machine, or of the tightest control group this process is in. What the kernel
    would give back from its file caches counts as free in both."""
    free = _machine("MemAvailable", root)  # counts what caches would give back, unlike sysconf
    if free is None:
        free = _physical() // 2
    for group in _groups("memory", root):
        limit = _number(group / "memory.max", group / "memory.limit_in_bytes")
        used = _number(group / "memory.current", group / "memory.usage_in_bytes")
        if limit is not None and used is not None:
            free = min(free, max(limit - used + _file_cache(group / "memory.stat"), 0))
    return free


def total_memory(root: Path = Path("/")) -> int:
    """Bytes there are: of the machine, or the limit of the tightest control group this process is in. Raises OSError or
    ValueError on a system that does not say."""
    total = _machine("MemTotal", root) or _physical()
    for group in _groups("memory", root):
        limit = _number(group / "memory.max", group / "memory.limit_in_bytes")
        total = total if limit is None else min(total, limit)
    return total


def allowed_cores() -> int:
    """Cores this process may run on, by affinity."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # macOS
        return os.cpu_count() or 1


def usable_cores(root: Path = Path("/")) -> int:
    """Cores that may be busy at once: by affinity, and by the processor time its control groups are given."""
    cores = allowed_cores()
    for group in _groups("cpu", root):
        share = _cpu_share(group)
        if share is not None:
            cores = min(cores, max(math.ceil(share), 1))
    return cores


def _machine(field: str, root: Path) -> int | None:
    """Bytes, of Linux's own table; None elsewhere."""
    try:
        for line in (root / "proc/meminfo").read_text("ascii").splitlines():
            if line.startswith(f"{field}:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    return None


def _physical() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _groups(controller: str, root: Path) -> Iterator[Path]:
    """Folders of this process's control groups, the innermost first, up to the top of what is mounted here."""
    try:
        lines = (root / "proc/self/cgroup").read_text("utf-8").splitlines()
    except OSError:
        return
    mounts = root / "sys/fs/cgroup"
    for line in lines:
        _, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if names == "":
            tops = [mounts, mounts / "unified"]
        elif controller in names.split(","):
            tops = [mounts / names, mounts / controller]
        else:
            continue
        inner = Path(path.lstrip("/"))
        for top in tops:
            # In a container the path may be the one outside of it, where only the top is to be seen here.
            yield from dict.fromkeys(top / part for part in (inner, *inner.parents) if (top / part).is_dir())


def _number(*files: Path) -> int | None:
    """Of the first file that there is; None where there is none, or no limit ("max")."""
    for file in files:
        try:
            return int(file.read_text("ascii"))
        except OSError:
            continue
        except ValueError:
            return None
    return None


def _file_cache(file: Path) -> int:
    try:
        fields = dict(line.split(maxsplit=1) for line in file.read_text("ascii").splitlines())
        return int(fields.get("total_inactive_file", fields.get("inactive_file", 0)))  # the first in v1 only
    except (OSError, ValueError):
        return 0


def _cpu_share(group: Path) -> float | None:
    """Cores' worth of time; None where there is no limit."""
    try:
        quota, period = (group / "cpu.max").read_text("ascii").split()  # v2
    except (OSError, ValueError):
        quota, period = str(_number(group / "cpu.cfs_quota_us")), str(_number(group / "cpu.cfs_period_us"))
    try:
        return int(quota) / int(period) if int(quota) > 0 else None
    except (ValueError, ZeroDivisionError):  # "max", "None"
        return None
