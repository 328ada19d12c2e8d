"""Which kernels a device and a model get."""

from __future__ import annotations

import torch

from visavis.engine.kernels.base import Kernels
from visavis.engine.kernels.torch_kernels import TorchKernels
from visavis.engine.model_config import ModelConfig

__all__ = ["choose_kernels"]


def choose_kernels(config: ModelConfig, device: torch.device, dtype: torch.dtype) -> Kernels:
    """Compiled ones on a CPU where a compiler and the model's shape allow; else plain torch, which says why in
    `description`. The first time on a machine this compiles for some seconds."""
    if device.type != "cpu":
        return TorchKernels(device, dtype)
    from visavis.engine.kernels.cpu.decode_step import unsupported

    reason = unsupported(config, dtype)
    if reason is not None:
        return TorchKernels(device, dtype, f"torch ({reason})")
    from visavis.engine.kernels.cpu.kernels import CpuKernels

    return CpuKernels(device, dtype, "compiled for this processor")
