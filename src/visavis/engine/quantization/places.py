"""Where the tensors of a checkpoint go: straight into memory of their shape, or through what makes codes of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from visavis.engine.quantization.checkpoints import CheckpointMatrix
from visavis.engine.quantization.codes import quantize
from visavis.engine.quantization.scheme import Scheme
from visavis.engine.quantization.weight import QuantizedWeight

__all__ = ["Place", "Places", "Share", "SharedPlace", "matrix_places", "taking"]


class Place(Protocol):
    """Takes one tensor of a checkpoint. A torch tensor is one."""

    @property
    def shape(self) -> Sequence[int]: ...

    def copy_(self, tensor: torch.Tensor, /) -> Any: ...


Places = Iterator[tuple[str, Place]]


@dataclass(frozen=True, slots=True)
class Share:
    """The part of a checkpoint's (out, in) matrix that is kept here: from `start`, of `full`, along `dim` (0: out).
    A vector (a bias) has but the one dimension."""

    dim: int
    start: int
    full: int


@dataclass(frozen=True, slots=True)
class SharedPlace:
    place: torch.Tensor | QuantizingPlace
    share: Share

    @property
    def shape(self) -> Sequence[int]:
        shape = list(self.place.shape)
        shape[self.share.dim] = self.share.full
        return torch.Size(shape)

    @property
    def rows(self) -> tuple[int, int] | None:
        """The first row and how many, where whole rows go straight into memory."""
        if self.share.dim != 0 or not isinstance(self.place, torch.Tensor):
            return None
        return self.share.start, self.place.shape[0]

    def copy_(self, tensor: torch.Tensor) -> None:
        length = self.place.shape[self.share.dim]
        self.place.copy_(tensor.narrow(self.share.dim, self.share.start, length))


@dataclass(frozen=True, slots=True)
class QuantizingPlace:
    """Makes codes of a dense matrix as it comes; into dense memory goes what they stand for."""

    rows: torch.Tensor | QuantizedWeight
    scheme: Scheme

    @property
    def shape(self) -> torch.Size:
        return self.rows.shape

    def copy_(self, tensor: torch.Tensor) -> None:
        k = self.shape[1]
        codes = quantize(tensor.to(self.rows.device), self.scheme.bits, self.scheme.group_of(k))
        if isinstance(self.rows, QuantizedWeight):
            self.rows.store(codes)
        else:
            self.rows.copy_(codes.dequantize())


def taking(place: torch.Tensor | QuantizingPlace, share: Share | None) -> Place:
    """`place` for the checkpoint's whole tensor, of which it takes its share."""
    return place if share is None else SharedPlace(place, share)


def matrix_places(
    weight: torch.Tensor | QuantizedWeight,
    bias: torch.Tensor | None,
    names: Sequence[str],
    sizes: Sequence[int],
    scheme: Scheme | None,
    shares: Sequence[Share | None] | None = None,
) -> Places:
    """Of a matrix of the decoder made of the checkpoint's `names`, so many rows each: whichever of them are stored as
    codes, and whether they stay codes here or become dense."""
    shares = shares or [None] * len(names)
    whole = weight
    for name, rows, share in zip(names, weight.split(list(sizes)), shares, strict=True):
        if scheme is not None and scheme.is_stored(name):
            yield from CheckpointMatrix(name, rows, whole, scheme, share, bias is None).places()
        elif scheme is not None and not scheme.is_checkpoint:
            yield f"{name}.weight", taking(QuantizingPlace(rows, scheme), share)
        else:
            assert isinstance(rows, torch.Tensor)
            yield f"{name}.weight", taking(rows, share)
    yield from _bias_places(bias, names, sizes, shares)


def _bias_places(
    bias: torch.Tensor | None, names: Sequence[str], sizes: Sequence[int], shares: Sequence[Share | None]
) -> Places:
    if bias is None:
        return
    for name, part, share in zip(names, bias.split(list(sizes)), shares, strict=True):
        yield f"{name}.bias", taking(part, share if share is not None and share.dim == 0 else None)
