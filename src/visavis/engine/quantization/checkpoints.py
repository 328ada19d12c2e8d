"""AWQ and GPTQ: how their tensors hold a matrix, read into `Codes`.

AWQ (version gemm): `qweight` (in, out / 8), `qzeros` (groups, out / 8) int32, `scales` (groups, out); the eight nibbles
of a word, the lowest first, are columns 0 2 4 6 1 3 5 7 of eight.
GPTQ: `qweight` (in / 8, out) int32, nibbles along the inputs in order; `qzeros` (groups, out / 8) along the outputs,
in the first format each less one; `scales` (groups, out); `g_idx` (in) the group of each input. With 8 bits there are
four bytes in a word.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from visavis.engine.quantization.codes import Codes
from visavis.engine.quantization.scheme import Scheme
from visavis.engine.quantization.weight import QuantizedWeight
from visavis.errors import ModelError

if TYPE_CHECKING:
    from visavis.engine.quantization.places import Share

__all__ = ["CheckpointMatrix", "read_awq", "read_gptq"]

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
INT8_ZERO = 128


def _unpack(words: torch.Tensor, bits: int) -> torch.Tensor:
    """(…, m) int32 → (…, m · 32 / bits) uint8, the lowest bits first."""
    shifts = torch.arange(0, 32, bits, device=words.device, dtype=torch.int32)
    return ((words.unsqueeze(-1) >> shifts) & ((1 << bits) - 1)).to(torch.uint8).flatten(-2)


def read_awq(parts: dict[str, torch.Tensor], group: int) -> Codes:
    back = torch.tensor([AWQ_ORDER.index(i) for i in range(8)], device=parts["qweight"].device)

    def columns(words: torch.Tensor) -> torch.Tensor:
        return _unpack(words, 4).unflatten(-1, (-1, 8))[..., back].flatten(-2).t()

    return Codes(4, columns(parts["qweight"]), parts["scales"].t(), columns(parts["qzeros"]), group)


def read_gptq(parts: dict[str, torch.Tensor], bits: int, group: int, *, less_one: bool) -> Codes:
    """Raises ModelError for groups of uneven sizes, and for 8-bit codes that are not symmetric."""
    values = _unpack(parts["qweight"].t().contiguous(), bits)  # (out, in)
    zeros = _unpack(parts["qzeros"], bits).t()
    if less_one:  # 0 less one is stored as the largest code
        zeros = (zeros + 1) & ((1 << bits) - 1)
    order = None
    if (groups := parts.get("g_idx")) is not None:
        expected = torch.arange(values.shape[1], device=groups.device, dtype=groups.dtype) // group
        if not torch.equal(groups, expected):
            order = torch.argsort(groups, stable=True)
            if not torch.equal(groups[order], expected):
                raise ModelError(f"g_idx has groups that are not of {group} inputs each; try --backend hf")
            values = values[:, order]
    scales = parts["scales"].t()
    if bits == 4:
        return Codes(4, values, scales, zeros, group, order)
    if not bool((zeros == INT8_ZERO).all()):
        raise ModelError("8-bit gptq weights that are not symmetric are not supported by the native engine")
    return Codes(8, (values.short() - INT8_ZERO).to(torch.int8), scales, None, group, order)


class CheckpointMatrix:
    """Collects the tensors of one matrix, in whatever order they come, and hands its codes on with the last one."""

    def __init__(
        self,
        name: str,
        rows: torch.Tensor | QuantizedWeight,
        whole: torch.Tensor | QuantizedWeight,
        scheme: Scheme,
        share: Share | None,
        without_bias: bool,
    ) -> None:
        """`rows`: where the matrix goes, a part of `whole`."""
        self.name = name
        self.rows = rows
        self.whole = whole
        self.scheme = scheme
        self.share = share
        self.without_bias = without_bias
        out, k = rows.shape
        if share is not None:
            out, k = (share.full, k) if share.dim == 0 else (out, share.full)
        per_word = 32 // scheme.bits
        self.group = scheme.group_of(k)
        if k % self.group or out % per_word or k % per_word:
            raise ModelError(
                f"{name}: a matrix of {out} × {k} does not divide into groups of {self.group} and words of {per_word}"
            )
        packed = (k, out // per_word) if scheme.method == "awq" else (k // per_word, out)
        groups = k // self.group
        self.shapes: dict[str, tuple[int, ...]] = {
            "qweight": packed,
            "qzeros": (groups, out // per_word),
            "scales": (groups, out),
        }
        if scheme.method == "gptq" and scheme.has(f"{name}.g_idx"):
            self.shapes["g_idx"] = (k,)
        self.parts: dict[str, torch.Tensor] = {}

    def places(self) -> Iterator[tuple[str, Any]]:
        for part, shape in self.shapes.items():
            yield f"{self.name}.{part}", _PartPlace(self, part, torch.Size(shape))
        if self.without_bias and self.scheme.has(f"{self.name}.bias"):
            yield f"{self.name}.bias", _ZeroBias(self.name, self.shapes["scales"][1])

    def take(self, part: str, tensor: torch.Tensor) -> None:
        self.parts[part] = tensor.to(self.rows.device)
        if len(self.parts) < len(self.shapes):
            return
        parts, self.parts = self.parts, {}
        if self.scheme.method == "awq":
            codes = read_awq(parts, self.group)
        else:
            codes = read_gptq(parts, self.scheme.bits, self.group, less_one=self.scheme.zeros_less_one)
        if self.share is not None:
            if codes.order is not None and self.share.dim == 1:
                raise ModelError(f"{self.name}: desc_act cannot be split over devices; use one")
            codes = codes.narrow(self.share.dim, self.share.start, self.rows.shape[self.share.dim])
        if isinstance(self.rows, QuantizedWeight):
            assert isinstance(self.whole, QuantizedWeight)
            self.whole.set_order(codes.order)
            self.rows.store(codes)
        else:
            self.rows.copy_(codes.dequantize())


class _PartPlace:
    def __init__(self, matrix: CheckpointMatrix, part: str, shape: torch.Size) -> None:
        self.matrix, self.part, self.shape = matrix, part, shape

    def copy_(self, tensor: torch.Tensor) -> None:
        self.matrix.take(self.part, tensor)


class _ZeroBias:
    """Older GPTQ checkpoints have a bias of zeros beside every matrix of models that have none."""

    def __init__(self, name: str, size: int) -> None:
        self.name, self.shape = name, torch.Size((size,))

    def copy_(self, tensor: torch.Tensor) -> None:
        if bool(tensor.any()):
            raise ModelError(f"{self.name}.bias is not zero, and this model has no such bias")
