"""Which kernels a device and a model get."""

from __future__ import annotations

import torch

from visavis.engine.config import EngineSettings
from visavis.engine.kernels.base import Kernels
from visavis.engine.kernels.torch_kernels import TorchKernels
from visavis.engine.model_config import ModelConfig
from visavis.errors import OptionError

__all__ = ["choose_kernels"]


def choose_kernels(config: ModelConfig, settings: EngineSettings) -> Kernels:
    """Compiled ones on a CPU where a compiler and the model's shape allow; else plain torch, which says why in
    `description`. The first time on a machine this compiles for some seconds.

    Raises OptionError when compiled ones are asked for, or needed for a quantization, and cannot be had.
    """
    device, dtype, quantization = settings.device, settings.dtype, settings.quantization
    reason = "plain torch was asked for" if settings.kernels == "torch" else _why_not_compiled(config, device, dtype)
    if reason is None:
        from visavis.engine.kernels.cpu.kernels import CpuKernels

        description = "compiled for this processor" + (f", {quantization} weights" if quantization else "")
        return CpuKernels(device, dtype, description, config.num_layers, quantization)
    if quantization is not None:
        raise OptionError(f"quantization {quantization} needs the compiled CPU kernels, which cannot be had: {reason}")
    if settings.kernels == "compiled":
        raise OptionError(f"kernels compiled cannot be had: {reason}; leave it out for plain torch")
    if settings.kernels == "torch" or device.type != "cpu":
        return TorchKernels(device, dtype)
    return TorchKernels(device, dtype, f"torch ({reason})")


def _why_not_compiled(config: ModelConfig, device: torch.device, dtype: torch.dtype) -> str | None:
    if device.type != "cpu":
        return f"they are for the CPU, and the device is {device}"
    from visavis.engine.kernels.cpu.decode_step import unsupported

    return unsupported(config, dtype)
