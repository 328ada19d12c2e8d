"""What a vision tower needs beside products, compiled, on the engine's own threads."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

import numpy as np
import torch

from visavis.engine.kernels.base import Rotation
from visavis.engine.kernels.cpu.decode_step import VECTOR
from visavis.engine.kernels.cpu.library import Workers, library
from visavis.engine.kernels.cpu.recycled import RecycledMemory
from visavis.engine.kernels.vision import LayerNorm, Order, VisionOps
from visavis.engine.models.vision_layout import Run
from visavis.errors import BackendError

if TYPE_CHECKING:
    from visavis.engine.kernels.cpu.kernels import CpuKernels

__all__ = ["CpuLayerNorm", "CpuVision"]

HEAD_MULTIPLE = 8  # numbers of a key that attention reads at once, at most
KINDS = {"quick_gelu": 0, "gelu_pytorch_tanh": 1}  # as in vision_rows.h


class CpuLayerNorm(LayerNorm):
    def __init__(self, size: int, eps: float, kernels: CpuKernels) -> None:
        super().__init__(size, eps, kernels)
        self.workers = kernels.workers
        self.recycled = kernels.recycled

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        size = self.weight.shape[0]
        if size % VECTOR or not x.is_contiguous() or x.dtype != torch.float32:
            return super().__call__(x)
        out = self.recycled.empty(*x.shape)
        library().visavis_layer_norm(
            self.workers.handle,
            x.data_ptr(),
            x.numel() // size,
            size,
            self.weight.data_ptr(),
            self.bias.data_ptr(),
            self.eps,
            out.data_ptr(),
        )
        return out


class CpuVision(VisionOps):
    windows_by_size = False  # one call takes windows of all sizes; frames then stay together

    def __init__(self, kernels: CpuKernels, head_dim: int) -> None:
        super().__init__(kernels)
        self.workers: Workers = kernels.workers
        self.recycled: RecycledMemory = kernels.recycled
        self.compiled = head_dim % HEAD_MULTIPLE == 0
        self._library = library()
        self._attention: int | None = None

    def torch_threads(self) -> AbstractContextManager[None]:
        return nullcontext() if self.compiled else super().torch_threads()

    def order(self, runs: list[Run], gather: torch.Tensor | None = None, scatter: torch.Tensor | None = None) -> Order:
        lengths = [0, *(run.length for run in runs for _ in range(run.repeats))]
        return Order(runs, gather, scatter, np.cumsum(lengths).astype(np.int32))

    def activate(self, name: str, inner: torch.Tensor) -> torch.Tensor:
        kind = KINDS.get(name)
        if kind is None or not inner.is_contiguous() or inner.dtype != torch.float32:
            return super().activate(name, inner)
        self._library.visavis_activate(self.workers.handle, kind, inner.data_ptr(), inner.numel())
        return inner

    def gate(self, name: str, inner: torch.Tensor) -> torch.Tensor:
        return self.kernels.silu_mul(inner) if name == "silu" else super().gate(name, inner)

    def attend(self, qkv: torch.Tensor, turn: Rotation, order: Order) -> torch.Tensor:
        n, _, heads, head_dim = qkv.shape
        starts = order.prepared
        if not self.compiled or not qkv.is_contiguous() or qkv.dtype != torch.float32:
            return super().attend(qkv, turn, order)
        if order.gather is not None or starts[-1] != n:
            raise ValueError(f"stretches of {starts[-1]} patches in another order are not these {n}")
        self.kernels.rotate_(qkv[:, :2].flatten(1, 2), turn)
        out = self.recycled.empty(n, heads * head_dim)
        self._library.visavis_vision_attention(
            self._handle(heads, head_dim), qkv.data_ptr(), starts.ctypes.data, len(starts) - 1, out.data_ptr()
        )
        return out

    def _handle(self, heads: int, head_dim: int) -> int:
        workers = self.workers.handle  # of this process, and open
        if self._attention is None:
            self._attention = self._library.visavis_vision_new(workers, heads, head_dim) or None
            if self._attention is None:
                raise BackendError("no memory for the compiled vision attention")
        return self._attention

    def __del__(self) -> None:
        handle, self._attention = getattr(self, "_attention", None), None
        if handle is not None:
            self._library.visavis_vision_free(handle)
