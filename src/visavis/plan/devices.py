"""What there is to run on: NVIDIA cards through nvidia-smi, others through torch, else this machine's memory."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from visavis.errors import OptionError, shorten
from visavis.machine import available_memory, total_memory, usable_cores
from visavis.plan.units import GIB, MIB, format_bytes

__all__ = ["Device", "choose", "cpu", "detect", "stated"]

_LARGE = 64 * GIB


def driver_reserve(amount: int) -> int:
    """What the driver keeps of a card of `amount` bytes: of an RTX 4090's 23.99 GiB programs see 23.64 (document 002's
    log), of an H200's 140.40 GiB 139.80. Nothing of amounts too small to be a card."""
    if amount < 2 * GIB:
        return 0
    return round((0.60 if amount > _LARGE else 0.35) * GIB)


@dataclass(frozen=True, slots=True)
class Device:
    """`count` equal devices. Bytes are of one."""

    kind: Literal["cuda", "mps", "cpu"]  # as torch calls them: ROCm cards are cuda there
    name: str
    total_bytes: int  # what programs see
    free_bytes: int
    count: int
    compute_capability: tuple[int, int] | None = None
    source: str = ""  # how it is known
    cores: int | None = None  # of a CPU, that programs may use; None: not known

    @property
    def used_bytes(self) -> int:
        """By other programs."""
        return max(0, self.total_bytes - self.free_bytes)


def stated(amount: int, count: int = 1) -> Device:
    """A card of the size somebody said. Its name and speed are not known."""
    visible = amount - driver_reserve(amount)
    return Device("cuda", f"{format_bytes(amount)} card", visible, visible, count, source="as stated")


def detect() -> Device:
    """The devices here: CUDA cards, else another accelerator, else the CPU. Cards that differ count as the smallest.

    `CUDA_VISIBLE_DEVICES` holds. Never starts CUDA in this process.
    """
    return _from_nvidia_smi(_ask_nvidia_smi()) or _from_torch() or cpu()


def choose(gpu_memory: int | None, ranks: int) -> Device:
    """The stated size (as many cards as asked for), or what is here.

    Raises OptionError when fewer devices are here than `ranks`.
    """
    if gpu_memory is not None:
        return stated(gpu_memory, ranks)
    device = detect()
    if ranks > device.count:
        what = "no GPU is here" if device.kind == "cpu" else f"{device.count} of {device.name} here"
        raise OptionError(
            f"--tensor-parallel-size {ranks}: {what}; to plan for other cards give --gpu-memory, e.g. 24GiB"
        )
    return device


def _ask_nvidia_smi() -> str:
    fields = "index,uuid,name,memory.free,memory.used,compute_cap"
    try:
        done = subprocess.run(
            ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def _from_nvidia_smi(listing: str) -> Device | None:
    cards = []
    for line in listing.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != 6 or not cells[3].isdigit() or not cells[4].isdigit():
            continue  # MIG parents and broken cards list "[N/A]"
        major, _, minor = cells[5].partition(".")
        capability = (int(major), int(minor)) if major.isdigit() and minor.isdigit() else None
        if not _visible(cells[0], cells[1]):
            continue
        # memory.total counts what the driver keeps; free and used together are what programs see.
        free, used = int(cells[3]) * MIB, int(cells[4]) * MIB
        cards.append(Device("cuda", cells[2], free + used, free, 1, capability, "nvidia-smi"))
    if not cards:
        return None
    smallest = min(cards, key=lambda card: card.total_bytes)
    free = min(smallest.total_bytes, *(card.free_bytes for card in cards))
    return replace(smallest, free_bytes=free, count=len(cards))


def _visible(index: str, uuid: str) -> bool:
    """Whether CUDA_VISIBLE_DEVICES (indices or UUID prefixes) leaves this card."""
    wanted = os.environ.get("CUDA_VISIBLE_DEVICES")
    if wanted is None:
        return True
    names = [name.strip() for name in wanted.split(",") if name.strip()]
    return any(name == index or (name.startswith("GPU-") and uuid.startswith(name)) for name in names)


def _from_torch() -> Device | None:
    """Accelerators nvidia-smi does not know. torch is asked only where one can be: it takes seconds to import."""
    if not (Path("/dev/kfd").exists() or sys.platform == "darwin"):
        return None
    try:
        import torch
    except ImportError:
        return None
    if torch.version.hip and torch.cuda.is_available():
        free, total = torch.cuda.mem_get_info()
        return Device("cuda", torch.cuda.get_device_name(), total, free, torch.cuda.device_count(), source="torch")
    if torch.backends.mps.is_available():
        total = int(torch.mps.recommended_max_memory())
        return Device("mps", "Apple GPU", total, total, 1, source="torch")
    return None


def cpu() -> Device:
    """This machine's memory, or as much of it as the control groups of this process leave. Raises OptionError."""
    try:
        total, free = total_memory(), available_memory()
    except (OSError, ValueError) as error:
        raise OptionError(f"this machine's memory cannot be read ({shorten(error)}); give --gpu-memory") from None
    cores = usable_cores()
    name = f"CPU, {cores} core{'s' if cores != 1 else ''}"
    return Device("cpu", name, total, min(free, total), 1, source="this machine's memory", cores=cores)
