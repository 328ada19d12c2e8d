"""Whether the memory for a step is there, asked before it begins: once some ranks compute, none can turn back."""

from __future__ import annotations

import torch

__all__ = ["reserve"]


def reserve(num_bytes: int, device: torch.device) -> None:
    """Takes so much memory and gives it back; on a GPU to torch's allocator, which then has it for the step."""
    torch.empty(num_bytes, dtype=torch.uint8, device=device)
