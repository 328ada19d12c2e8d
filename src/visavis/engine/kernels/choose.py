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

    Raises OptionError when compiled ones are asked for and cannot be had.
    """
    device, dtype, scheme = settings.device, settings.dtype, settings.scheme
    reason = "plain torch was asked for" if settings.kernels == "torch" else _why_not_compiled(config, device, dtype)
    if device.type == "cpu" and settings.tensor_parallel_size > 1:
        reason = "a compiled step cannot wait for other ranks in its middle"
    kernels: Kernels
    if reason is None and device.type == "cuda":
        from visavis.engine.kernels.cuda.kernels import CudaKernels

        description = "Triton, no CUDA graphs" if settings.enforce_eager else "Triton, CUDA graphs"
        kernels = CudaKernels(device, dtype, description, graphs=not settings.enforce_eager)
    elif reason is None:
        from visavis.engine.kernels.cpu.kernels import CpuKernels

        kernels = CpuKernels(device, dtype, "compiled for this processor", config.num_layers)
    elif settings.kernels == "compiled":
        raise OptionError(f"kernels compiled cannot be had: {reason}; leave it out for plain torch")
    else:
        kernels = TorchKernels(device, dtype, "torch" if settings.kernels == "torch" else f"torch ({reason})")
    if scheme is not None:
        kernels.quantize(scheme)
    return kernels


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
