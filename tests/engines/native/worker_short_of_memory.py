"""A tensor-parallel worker that finds no memory for steps of more than `MOST` bytes; run as a module."""

from __future__ import annotations

import sys

import torch

from visavis.engine.parallel import worker

MOST = 60_000


def reserve(num_bytes: int, device: torch.device) -> None:
    if num_bytes > MOST:
        raise RuntimeError(f"[enforce fail] DefaultCPUAllocator: can't allocate memory: {num_bytes} bytes")


if __name__ == "__main__":
    worker.reserve = reserve  # type: ignore[attr-defined]
    worker.main(sys.argv[1:])
