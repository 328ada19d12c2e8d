"""`QuantizedWeight`: the one layout of 8- and 4-bit matrices that our kernels read.

8 bits: (n, k) int8, row-major, and a scale a row or for each group of columns.

4 bits: rows of units of 128 columns (the last one padded), 64 bytes each. A unit is 32 numbers of 16 bits, and the four
nibbles of number j, the lowest first, are columns j, 32 + j, 64 + j and 96 + j: shifting a run of numbers by a nibble
gives a run of columns, so a kernel that masks whole registers never moves a code from one lane to another. Scales and
zeros stand row by row, for each 32, 64 or 128 columns.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from visavis.engine.quantization.codes import Codes
from visavis.errors import ModelError

__all__ = ["UNIT", "QuantizedWeight", "pack_int4", "unpack_int4"]

UNIT = 128
"""Columns whose 4-bit codes are interleaved; also the most columns that share a scale of ours."""
GROUPS = (32, 64, UNIT)
"""Columns of a scale; a checkpoint's larger groups repeat theirs."""


def padded(columns: int) -> int:
    return -(-columns // UNIT) * UNIT


def pack_int4(values: torch.Tensor) -> torch.Tensor:
    """(n, k) codes of 0 to 15, k a multiple of UNIT → (n, k / 8) int32."""
    units = values.to(torch.int32).view(values.shape[0], -1, 4, UNIT // 4)
    words = units[:, :, 0] | units[:, :, 1] << 4 | units[:, :, 2] << 8 | units[:, :, 3] << 12
    return words.to(torch.int16).flatten(1).view(torch.int32)


def unpack_int4(packed: torch.Tensor) -> torch.Tensor:
    """The inverse of `pack_int4`, as uint8."""
    words = packed.view(torch.int16).unflatten(1, (-1, 1, UNIT // 4))
    shifts = torch.arange(0, 16, 4, device=packed.device, dtype=torch.int16).view(1, 1, 4, 1)
    return ((words >> shifts) & 15).to(torch.uint8).flatten(1)


class QuantizedWeight:
    """An (out, in) matrix. `rows` of it share its memory, so the parts of a fused matrix are filled one by one."""

    def __init__(
        self,
        bits: int,
        k: int,
        group: int,
        data: torch.Tensor,
        scales: torch.Tensor,
        zeros: torch.Tensor | None,
    ) -> None:
        self.bits = bits
        self.shape = torch.Size((data.shape[0], k))
        self.group = group  # columns of a scale; 0: a whole row
        self.data = data  # (n, k) int8, or (n, padded(k) / 8) int32
        self.scales = scales  # (n, groups)
        self.zeros = zeros  # (n, groups) uint8 with 4 bits
        self.order: torch.Tensor | None = None  # (k,) int64, as `Codes.order`
        self._order_known = False

    @classmethod
    def empty(
        cls, n: int, k: int, *, bits: int, group: int, scale_dtype: torch.dtype, device: torch.device
    ) -> QuantizedWeight:
        """`group` as a checkpoint has it: 32, 64, a multiple of 128, or k for one scale a row."""
        if bits == 8 and group == k:
            group = 0
        elif group not in GROUPS:
            group = UNIT
        data = (
            torch.empty((n, k), dtype=torch.int8, device=device)
            if bits == 8
            else torch.empty((n, padded(k) // 8), dtype=torch.int32, device=device)
        )
        groups = 1 if group == 0 else -(-padded(k) // group)
        return cls(
            bits, k, group, data, torch.empty((n, groups), dtype=scale_dtype, device=device),
            torch.empty((n, groups), dtype=torch.uint8, device=device) if bits == 4 else None,
        )  # fmt: skip

    @property
    def device(self) -> torch.device:
        return self.data.device

    @property
    def nbytes(self) -> int:
        zeros = 0 if self.zeros is None else self.zeros.nbytes
        return self.data.nbytes + self.scales.nbytes + zeros

    def rows(self, start: int, stop: int) -> QuantizedWeight:
        """A view of some rows."""
        zeros = None if self.zeros is None else self.zeros[start:stop]
        return QuantizedWeight(
            self.bits, self.shape[1], self.group, self.data[start:stop], self.scales[start:stop], zeros
        )

    def split(self, sizes: Sequence[int]) -> list[QuantizedWeight]:
        """Views of so many rows each, as of a tensor."""
        parts, start = [], 0
        for size in sizes:
            parts.append(self.rows(start, start + size))
            start += size
        return parts

    def store(self, codes: Codes) -> None:
        """Fills these rows. The order of inputs is the caller's to keep."""
        n, k = self.shape
        if tuple(codes.values.shape) != (n, k) or codes.bits != self.bits:
            raise ValueError(f"codes of {tuple(codes.values.shape)} in {codes.bits} bits are not for {(n, k)}")
        if self.bits == 8:
            self.data.copy_(codes.values)
        else:
            values = codes.values
            if padded(k) != k:
                values = torch.nn.functional.pad(values, (0, padded(k) - k))
            self.data.copy_(pack_int4(values))
        self._store_groups(self.scales, codes.scales, codes.group)
        if self.zeros is not None and codes.zeros is not None:
            self._store_groups(self.zeros, codes.zeros, codes.group)

    def _store_groups(self, to: torch.Tensor, values: torch.Tensor, group: int) -> None:
        if self.group == 0 or group == self.group:
            to.zero_()
            to[:, : values.shape[1]].copy_(values)
        elif group == self.shape[1]:  # one for a whole row
            to.copy_(values.expand(-1, to.shape[1]))
        else:
            to.copy_(values.repeat_interleave(group // self.group, dim=1))

    def codes(self) -> Codes:
        """What was stored, in our groups."""
        k = self.shape[1]
        values = self.data if self.bits == 8 else unpack_int4(self.data)[:, :k]
        group = self.group or k
        if k % group:  # the last unit is not whole: a group of its own width would be needed
            values = torch.nn.functional.pad(values, (0, padded(k) - k))
        groups = values.shape[1] // group
        zeros = None if self.zeros is None else self.zeros[:, :groups]
        return Codes(self.bits, values, self.scales[:, :groups], zeros, group)

    def dequantize(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """(n, k) dense, inputs in their order."""
        dense = self.codes().dequantize(dtype)[:, : self.shape[1]]
        if self.order is None:
            return dense
        out = torch.empty_like(dense)
        out[:, self.order] = dense
        return out

    def set_order(self, order: torch.Tensor | None) -> None:
        """Told by each part of the matrix. Raises ModelError where parts differ: they read one input."""
        if not self._order_known:
            self._order_known, self.order = True, order
        elif (order is None) != (self.order is None) or (
            order is not None and self.order is not None and not torch.equal(order, self.order)
        ):
            raise ModelError(
                "matrices that share their input (q, k and v, or gate and up) have different g_idx: the native engine "
                "joins them and cannot; try --backend hf"
            )
