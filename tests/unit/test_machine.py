"""Memory and cores of a process inside control groups, from files laid out as Linux does."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from visavis import machine
from visavis.machine import available_memory, total_memory, usable_cores
from visavis.plan import devices

GIB = 1 << 30
UNLIMITED = 9223372036854771712  # what v1 says for none


def lay_out(root: Path, files: dict[str, str]) -> Path:
    for name, text in {
        "proc/meminfo": f"MemTotal: {32 * GIB // 1024} kB\nMemAvailable: {20 * GIB // 1024} kB\n",
        **files,
    }.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def v2(root: Path, path: str, **limits: str) -> Path:
    files = {"proc/self/cgroup": f"0::/{path}\n"}
    for name, text in limits.items():
        files[f"sys/fs/cgroup/{name.replace('__', '/').replace('_', '.', 1)}"] = text
    return lay_out(root, files)


def test_without_limits_the_machine_counts(tmp_path: Path) -> None:
    assert available_memory(lay_out(tmp_path, {})) == 20 * GIB
    assert total_memory(tmp_path) == 32 * GIB
    assert available_memory(v2(tmp_path, "", memory_max="max\n", memory_current="5\n")) == 20 * GIB


def test_a_version_2_limit_counts_less_what_is_used_and_more_by_what_caches_give_back(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "0::/\n",
        "sys/fs/cgroup/memory.max": str(8 * GIB),
        "sys/fs/cgroup/memory.current": str(5 * GIB),
        "sys/fs/cgroup/memory.stat": f"anon 1\nfile 2\ninactive_file {2 * GIB}\n",
    }
    assert available_memory(lay_out(tmp_path, files)) == 5 * GIB


def test_the_tightest_of_nested_groups_counts(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "0::/a/b\n",
        "sys/fs/cgroup/a/b/memory.max": "max\n",
        "sys/fs/cgroup/a/b/memory.current": str(GIB),
        "sys/fs/cgroup/a/memory.max": str(4 * GIB),
        "sys/fs/cgroup/a/memory.current": str(3 * GIB),
        "sys/fs/cgroup/memory.max": str(9 * GIB),
        "sys/fs/cgroup/memory.current": str(3 * GIB),
    }
    assert available_memory(lay_out(tmp_path, files)) == 1 * GIB
    assert total_memory(tmp_path) == 4 * GIB


def test_a_plan_reads_the_same_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the engine will: 20 GiB are free on the machine, and a nested group has 6 of its 9 GiB left."""
    v2(tmp_path, "a/b", a__memory_max=str(9 * GIB), a__memory_current=str(3 * GIB), a__b__memory_max="max")
    for name in ("total_memory", "available_memory"):
        monkeypatch.setattr(devices, name, partial(getattr(machine, name), tmp_path))
    found = devices.cpu()
    assert (found.total_bytes, found.free_bytes, found.used_bytes) == (9 * GIB, 6 * GIB, 3 * GIB)


@pytest.mark.parametrize("visible", ["docker/abc/", ""], ids=["path as said", "path of the outside"])
def test_a_version_1_limit_counts(tmp_path: Path, visible: str) -> None:
    folder = f"sys/fs/cgroup/memory/{visible}"
    files = {
        "proc/self/cgroup": "9:memory:/docker/abc\n1:cpu,cpuacct:/docker/abc\n0::/\n",
        f"{folder}memory.limit_in_bytes": str(6 * GIB),
        f"{folder}memory.usage_in_bytes": str(4 * GIB),
        f"{folder}memory.stat": f"inactive_file 7\ntotal_inactive_file {GIB}\n",
        "sys/fs/cgroup/memory/cgroup.procs": "",
    }
    assert available_memory(lay_out(tmp_path, files)) == 3 * GIB


def test_version_1_without_a_limit_says_a_huge_number(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "4:memory:/\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": str(UNLIMITED),
        "sys/fs/cgroup/memory/memory.usage_in_bytes": str(GIB),
    }
    assert available_memory(lay_out(tmp_path, files)) == 20 * GIB


def test_a_group_that_is_over_its_limit_has_nothing_left(tmp_path: Path) -> None:
    assert available_memory(v2(tmp_path, "", memory_max="10", memory_current="20")) == 0


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, 8),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}, 8),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "150000 100000\n"}, 2),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "10000 100000\n"}, 1),
        (
            {
                "proc/self/cgroup": "3:cpu,cpuacct:/box\n",
                "sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_quota_us": "300000\n",
                "sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_period_us": "100000\n",
            },
            3,
        ),
        (
            {
                "proc/self/cgroup": "3:cpu:/\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            8,
        ),
    ],
    ids=["none", "v2 max", "v2 1.5 cores", "v2 a tenth", "v1 3 cores", "v1 none"],
)
def test_cores_are_bounded_by_the_time_a_group_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], cores: int
) -> None:
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    assert usable_cores(lay_out(tmp_path, files)) == cores
