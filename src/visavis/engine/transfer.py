"""Small tensors from the host to the device, without waiting for what the device is doing."""

from __future__ import annotations

import torch

__all__ = ["send"]


def send(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A CPU tensor on `device`. From pageable memory a GPU's driver would first wait for all work before the copy."""
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)
