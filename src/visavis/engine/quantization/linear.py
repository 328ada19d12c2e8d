"""`QuantizedLinear`: a product with a quantised weight in plain torch, the reference of the fused ones."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from visavis.engine.quantization.weight import QuantizedWeight

__all__ = ["QuantizedLinear"]


class QuantizedLinear:
    """Makes the weight dense for every product, in the dtype of what it is multiplied with."""

    def __init__(self, weight: QuantizedWeight, bias: torch.Tensor | None) -> None:
        self.weight = weight
        self.bias = bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight.dequantize(x.dtype), self.bias)

    def add_to(self, residual: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        if self.bias is not None:  # not added by itself: the residual is rounded once
            return residual.add_(self(x))
        return residual.addmm_(x, self.weight.dequantize(x.dtype).t())
