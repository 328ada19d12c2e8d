"""`CudaQuantizedLinear`: products of prompts and mixed steps with a quantised weight."""

from __future__ import annotations

import torch

from visavis.engine.kernels.triton.launch_quantized import QuantizedLauncher
from visavis.engine.quantization.weight import QuantizedWeight

__all__ = ["CudaQuantizedLinear"]


class CudaQuantizedLinear:
    def __init__(self, weight: QuantizedWeight, bias: torch.Tensor | None, launcher: QuantizedLauncher) -> None:
        self.weight = weight
        self.bias = bias
        self.launcher = launcher

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.launcher.linear(x, self.weight, self.bias)

    def add_to(self, residual: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return self.launcher.linear(x, self.weight, self.bias, residual)
