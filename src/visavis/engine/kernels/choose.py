"""Which kernels a device and a model get."""

from __future__ import annotations

import torch

from visavis.engine.kernels.base import Kernels
from visavis.engine.kernels.torch_kernels import TorchKernels
from visavis.engine.model_config import ModelConfig
from visavis.errors import OptionError

__all__ = ["choose_kernels"]


def choose_kernels(config: ModelConfig, device: torch.device, dtype: torch.dtype, wish: str = "auto") -> Kernels:
    """Compiled ones on a CPU where a compiler and the model's shape allow; else plain torch, which says why in
    `description`. The first time on a machine this compiles for some seconds.

    `wish` is "auto", "torch" or "compiled"; raises OptionError when the last cannot be had.
    """
    if wish == "torch":
        return TorchKernels(device, dtype)
    reason = _why_not_compiled(config, device, dtype)
    if reason is None:
        from visavis.engine.kernels.cpu.kernels import CpuKernels

        return CpuKernels(device, dtype, "compiled for this processor")
    if wish == "compiled":
        raise OptionError(f"kernels compiled cannot be had: {reason}; leave it out for plain torch")
    return TorchKernels(device, dtype, "torch" if device.type != "cpu" else f"torch ({reason})")


def _why_not_compiled(config: ModelConfig, device: torch.device, dtype: torch.dtype) -> str | None:
    if device.type != "cpu":
        return f"they are for the CPU, and the device is {device}"
    from visavis.engine.kernels.cpu.decode_step import unsupported

    return unsupported(config, dtype)
