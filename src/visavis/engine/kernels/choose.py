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
    """Compiled ones where the device, the model's shape and what is installed allow; else plain torch, which says why
    in `description`. On a CPU the first time on a machine compiles for some seconds; on a GPU Triton compiles each
    kernel when it is first used.

    Raises OptionError when compiled ones are asked for, or needed for a quantization, and cannot be had.
    """
    device, dtype, quantization = settings.device, settings.dtype, settings.quantization
    reason = "plain torch was asked for" if settings.kernels == "torch" else _why_not_compiled(config, device, dtype)
    if quantization is not None and (reason is not None or device.type != "cpu"):
        why = reason or f"the device is {device}"
        raise OptionError(f"quantization {quantization} needs the compiled CPU kernels, which cannot be had: {why}")
    if reason is None and device.type == "cuda":
        from visavis.engine.kernels.cuda.kernels import CudaKernels

        description = "Triton, no CUDA graphs" if settings.enforce_eager else "Triton, CUDA graphs"
        return CudaKernels(device, dtype, description, graphs=not settings.enforce_eager)
    if reason is None:
        from visavis.engine.kernels.cpu.kernels import CpuKernels

        description = "compiled for this processor" + (f", {quantization} weights" if quantization else "")
        return CpuKernels(device, dtype, description, config.num_layers, quantization)
    if settings.kernels == "compiled":
        raise OptionError(f"kernels compiled cannot be had: {reason}; leave it out for plain torch")
    return TorchKernels(device, dtype, "torch" if settings.kernels == "torch" else f"torch ({reason})")


def _why_not_compiled(config: ModelConfig, device: torch.device, dtype: torch.dtype) -> str | None:
    if device.type == "cuda":
        try:
            from triton.language.extra.cuda import gdc_wait  # noqa: F401 (the newest of what the kernels need)
        except ImportError as error:
            return f"triton cannot be used: {error}"
        major, minor = torch.cuda.get_device_capability(device)
        return None if major >= 8 else f"they need compute capability 8.0, and the device has {major}.{minor}"
    from visavis.engine.kernels.cpu.decode_step import unsupported

    return unsupported(config, dtype)
