"""The seam between the model and the hardware: what a decoder layer needs, as one small set of operations.

`torch_kernels.TorchKernels` is the plain version, the CPU path and the reference. A set for another device
subclasses it and replaces what it can do faster.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch

from visavis.engine.communicator import ALONE, Communicator
from visavis.engine.draw import greedy_and_totals
from visavis.engine.kernels.torch_threads import TorchThreads
from visavis.engine.kv_cache import KVCache
from visavis.engine.quantization.linear import QuantizedLinear
from visavis.engine.quantization.scheme import Scheme
from visavis.engine.quantization.weight import QuantizedWeight

if TYPE_CHECKING:
    from visavis.engine.kernels.cuda.ahead import AheadDecoder
    from visavis.engine.kernels.vision import LayerNorm, VisionOps
    from visavis.engine.models.decoder import Decoder
    from visavis.engine.models.rope import RotaryEmbedding
    from visavis.engine.models.vision import VisionTower

__all__ = ["AttentionRow", "Kernels", "Linear", "Norm", "Rotation", "StepLayout", "SummedLinear", "WholeStep"]


class Rotation(NamedTuple):
    """cos and sin of the tokens of a step, each (n, 1, head_dim), ready for x·cos + roll(x, head_dim/2)·signed_sin."""

    cos: torch.Tensor
    signed_sin: torch.Tensor


class Linear(Protocol):
    """A product with a weight of its own, in whatever layout is fastest."""

    weight: Any  # (out, in): a tensor that a checkpoint is copied into, or a QuantizedWeight
    bias: torch.Tensor | None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """(n, in) → (n, out)."""
        ...

    def add_to(self, residual: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """residual (n, out) + self(x), in the residual's memory."""
        ...


class SummedLinear:
    """A product whose inputs are spread over the ranks: each computes its part, and the parts are summed. Rank 0 alone
    adds residual and bias to its part, so that the sum over ranks is all there is to do."""

    def __init__(self, linear: Linear, communicator: Communicator) -> None:
        self.linear = linear
        self.communicator = communicator
        self.weight = linear.weight
        self.bias = linear.bias  # where the checkpoint's goes
        if communicator.rank > 0:
            linear.bias = None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.communicator.all_reduce(self.linear(x))

    def add_to(self, residual: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        if self.communicator.rank == 0:
            self.linear.add_to(residual, x)
        else:
            residual.copy_(self.linear(x))
        return self.communicator.all_reduce(residual)


class Norm(Protocol):
    """RMS normalisation over the last dimension with a weight of its own."""

    weight: torch.Tensor
    eps: float

    def __call__(self, x: torch.Tensor) -> torch.Tensor: ...


@dataclass(slots=True)
class AttentionRow:
    """One request's share of a step: `num_new` tokens after the `num_context` already in the cache."""

    uid: int  # of the sequence
    num_context: int
    num_new: int
    block_table: list[int]

    @property
    def num_keys(self) -> int:
        return self.num_context + self.num_new


@dataclass(slots=True)
class StepLayout:
    """How a step's tokens are laid out: first one token of each of `decodes`, then the chunks of `prefills`."""

    slot_mapping: torch.Tensor  # (tokens,) int64: the cache slot of each token
    decodes: list[AttentionRow] = field(default_factory=list)
    prefills: list[AttentionRow] = field(default_factory=list)


class WholeStep(ABC):
    """A decode step of the whole decoder in one call, for up to `max_batch` requests."""

    max_batch: int

    @abstractmethod
    def __call__(
        self, token_ids: Sequence[int], positions: Sequence[int], rows: Sequence[AttentionRow]
    ) -> torch.Tensor:
        """The newest token of each request and its rotary position → (n, vocab) float32. Stores keys and values."""

    @abstractmethod
    def close(self) -> None:
        """Ends its threads."""


class Kernels(ABC):
    """One instance per engine. Shapes: n tokens of a step, H query heads, K key-value heads, D head size."""

    device: torch.device
    dtype: torch.dtype
    description: str  # for people: which kernels, and why not others
    rotates_in_float32 = False  # whatever the dtype of what `rotate_` is given
    communicator: Communicator = ALONE  # with whom the model is shared
    scheme: Scheme | None = None  # what the decoder's matrices are in; None: `dtype`
    torch_threads = TorchThreads(kernels_have_own=False)

    def quantize(self, scheme: Scheme) -> None:
        """Told before the first matrix is made: what the decoder's are to be in."""
        self.scheme = scheme
        self.description += f", {scheme.method} weights"

    def empty(self, *shape: int) -> torch.Tensor:
        """Memory for a weight, where and as this device reads it best."""
        return torch.empty(shape, device=self.device, dtype=self.dtype)

    def whole_step(self, model: Decoder, rope: RotaryEmbedding, cache: KVCache, max_batch: int) -> WholeStep | None:
        """A faster way for steps that are decodes only, where there is one."""
        return None

    def ahead(
        self, model: Decoder, rope: RotaryEmbedding, cache: KVCache, max_batch: int, max_model_len: int
    ) -> AheadDecoder | None:
        """Decoding that stays on the device, sampling included, one step ahead of the host, where there is one."""
        return None

    def layer_norm(self, size: int, eps: float) -> LayerNorm:
        from visavis.engine.kernels.vision import LayerNorm

        return LayerNorm(size, eps, self)

    def vision(self, head_dim: int) -> VisionOps:
        """What a vision tower with heads of `head_dim` needs beside products and norms."""
        from visavis.engine.kernels.vision import VisionOps

        return VisionOps(self)

    @property
    def activation_dtype(self) -> torch.dtype:
        """Of what flows between the weights."""
        return self.dtype

    def warm_up(self, model: Decoder, tower: VisionTower | None) -> None:
        """Told once, before the checkpoint is read: the time to begin making ready what can be meanwhile."""
        return None

    def warmed_up(self) -> None:
        """Returns when nothing of that is going on any more."""
        return None

    def give_back_memory(self) -> None:
        """What is kept for later results goes back to the system, or the device."""
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def weights_loaded(self, model: Decoder) -> None:
        """Told once, when the checkpoint is in: the time to bring weights into another form."""
        return None

    def embed(self, table: Any, token_ids: torch.Tensor) -> torch.Tensor:
        """(n,) int64 → (n, hidden). `table`: the model's `embedding`, as `weights_loaded` left it."""
        rows: torch.Tensor = table.index_select(0, token_ids)
        return rows

    def project(self, x: torch.Tensor, table: Any) -> torch.Tensor:
        """(n, hidden) → (n, vocab) float32. `table`: the model's `lm_head`, as `weights_loaded` left it."""
        return torch.nn.functional.linear(x, table).float()

    def best(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(rows, vocab) float32 → (rows,) int64 and (rows,) float32, as `greedy_and_totals` has them."""
        return greedy_and_totals(logits)

    @abstractmethod
    def linear(self, in_features: int, out_features: int, *, bias: bool) -> Linear: ...

    def decoder_linear(self, names: Sequence[str], in_features: int, out_features: int, *, bias: bool) -> Linear:
        """A matrix of the decoder, made of the checkpoint's `names` one above the other: in codes where `scheme` has
        all of them so, else dense."""
        scheme = self.scheme
        if scheme is None or (scheme.is_checkpoint and not all(scheme.is_stored(name) for name in names)):
            return self.linear(in_features, out_features, bias=bias)
        weight = QuantizedWeight.empty(
            out_features, in_features, bits=scheme.bits, group=scheme.group_of(in_features),
            scale_dtype=scheme.scale_dtype, device=self.device,
        )  # fmt: skip
        return self.quantized_linear(weight, self.empty(out_features) if bias else None)

    def quantized_linear(self, weight: QuantizedWeight, bias: torch.Tensor | None) -> Linear:
        return QuantizedLinear(weight, bias)

    @abstractmethod
    def rms_norm(self, size: int, eps: float) -> Norm: ...

    def normalise_(self, heads: torch.Tensor, norm: Norm) -> None:
        """Normalises queries or keys (n, heads, D) in place."""
        heads.copy_(norm(heads))

    @abstractmethod
    def rotate_(self, heads: torch.Tensor, rotation: Rotation) -> None:
        """Rotates queries or keys (n, heads, D) in place."""

    @abstractmethod
    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """(n, 2·m), gates first → (n, m): silu(gate) · up."""

    def whole_layer(self, layer: int, x: torch.Tensor, rotation: Rotation, plan: Any) -> torch.Tensor | None:
        """A decoder layer over x (n, hidden), in its memory, where that is faster than an operation after the other."""
        return None

    @abstractmethod
    def bind_cache(self, cache: KVCache) -> None:
        """Told once, before the first step."""

    @abstractmethod
    def plan(self, layout: StepLayout) -> Any:
        """Whatever attention needs to know about a step, worked out once for all layers."""

    @abstractmethod
    def attention(self, layer: int, qkv: torch.Tensor, num_heads: int, plan: Any) -> torch.Tensor:
        """Stores the step's keys and values, then attends causally, each request over its own cache.

        qkv: (n, H + 2K, D), rotated → (n, H·D).
        """
