"""Weights in the panels that the compiled products read (`panels.h`), and the linear layer over them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import torch

from visavis.engine.kernels.cpu.library import TYPES, LinearStruct, Workers, library
from visavis.engine.kernels.cpu.recycled import RecycledMemory

__all__ = ["PANEL", "PackedLinear", "PackedWeight", "padded"]

PANEL = 32  # rows of a panel, as in panels.h
INT8_MAX = 127

Allocate = Callable[[tuple[int, ...], torch.dtype], torch.Tensor]


def padded(rows: int) -> int:
    """Rows of whole panels."""
    return -(-rows // PANEL) * PANEL


class PackedWeight:
    """A matrix (n, k) and its bias, ready for products in float32. Memory: `data`, padded to whole panels."""

    def __init__(self, data: torch.Tensor, scale: torch.Tensor | None, bias: torch.Tensor | None, n: int, k: int):
        self.n, self.k = n, k
        self._library = library()
        self._kept = (data, scale, bias)  # what the structure points to
        self.struct = LinearStruct(
            data.data_ptr(),
            scale.data_ptr() if scale is not None else None,
            bias.data_ptr() if bias is not None else None,
            n,
            k,
            TYPES[data.dtype],
            0,
        )
        self._pointer = ctypes.pointer(self.struct)

    @classmethod
    def pack(cls, rows: torch.Tensor, bias: torch.Tensor | None, allocate: Allocate) -> PackedWeight:
        """rows: (n, k) float32 or bfloat16, contiguous; kept in its type."""
        n, k = rows.shape
        data = allocate((padded(n), k), rows.dtype)
        library().visavis_pack(data.data_ptr(), rows.data_ptr(), n, k, TYPES[rows.dtype])
        return cls(data, None, _whole_panels(bias), n, k)

    @classmethod
    def pack_in_place(cls, rows: torch.Tensor, bias: torch.Tensor | None) -> PackedWeight:
        """As `pack`, in the memory of `rows`, which was made for `padded(n)` of them."""
        n, k = rows.shape
        copy = rows.clone()
        library().visavis_pack(rows.data_ptr(), copy.data_ptr(), n, k, TYPES[rows.dtype])
        return cls(rows, None, _whole_panels(bias), n, k)

    @classmethod
    def quantise(cls, rows: torch.Tensor, bias: torch.Tensor | None, allocate: Allocate) -> PackedWeight:
        """As int8 with one scale a row, symmetric: the largest of a row becomes 127."""
        n, k = rows.shape
        wide = rows.float()
        scale = wide.abs().amax(dim=1).div_(INT8_MAX)
        steps = torch.where(scale > 0, scale, 1.0)  # a row of zeros stays one
        whole = (wide / steps[:, None]).round_().to(torch.int8)
        data = allocate((padded(n), k), torch.int8)
        library().visavis_pack(data.data_ptr(), whole.data_ptr(), n, k, TYPES[torch.int8])
        return cls(data, _whole_panels(scale), _whole_panels(bias), n, k)

    def product(self, x: torch.Tensor, out: torch.Tensor, workers: Workers, *, add: bool) -> torch.Tensor:
        """x (m, k) float32, out (m, n) float32, rows contiguous: out (+)= x · Wᵀ + bias."""
        if x.shape[0]:
            self._library.visavis_product(
                workers.handle,
                self._pointer,
                x.data_ptr(),
                x.stride(0),
                x.shape[0],
                out.data_ptr(),
                out.stride(0),
                int(add),
            )
        return out

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        """Rows of the matrix, (m,) int64 → (m, k) float32."""
        out = torch.empty((ids.shape[0], self.k))
        self._library.visavis_rows(self._pointer, ids.contiguous().data_ptr(), ids.shape[0], out.data_ptr())
        return out


class PackedLinear:
    """`weight` is where a checkpoint is copied into, row-major; `CpuKernels.weights_loaded` then makes `packed` of it,
    and it must not be read any more."""

    def __init__(
        self, weight: torch.Tensor, bias: torch.Tensor | None, workers: Workers, recycled: RecycledMemory
    ) -> None:
        self.weight = weight
        self.bias = bias
        self.workers = workers
        self.recycled = recycled
        self.packed: PackedWeight | None = None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        packed = self._packed()
        return packed.product(_rows(x), self.recycled.empty(x.shape[0], packed.n), self.workers, add=False)

    def add_to(self, residual: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return self._packed().product(_rows(x), residual, self.workers, add=True)

    def _packed(self) -> PackedWeight:
        if self.packed is None:
            raise RuntimeError("a product before the weights were loaded")
        return self.packed


def _rows(x: torch.Tensor) -> torch.Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


def _whole_panels(values: torch.Tensor | None) -> torch.Tensor | None:
    if values is None:
        return None
    whole = torch.zeros(padded(values.shape[0]))
    whole[: values.shape[0]] = values
    return whole
