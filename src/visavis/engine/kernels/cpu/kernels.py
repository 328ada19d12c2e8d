"""`CpuKernels`: packed weights; a decoder layer's operations compiled one by one, a layer over many tokens in three, a
step of decodes as one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from visavis.engine.kernels.base import AttentionRow, Norm, Rotation, StepLayout, WholeStep
from visavis.engine.kernels.cpu.arena import Arena
from visavis.engine.kernels.cpu.decode_step import VECTOR, AttentionPlan, CpuDecodeStep
from visavis.engine.kernels.cpu.library import Workers, library
from visavis.engine.kernels.cpu.packed import PackedLinear, PackedWeight, padded
from visavis.engine.kernels.cpu.recycled import RecycledMemory
from visavis.engine.kernels.cpu.vision import CpuLayerNorm, CpuVision
from visavis.engine.kernels.torch_kernels import TorchKernels, TorchNorm
from visavis.engine.kernels.torch_threads import TorchThreads
from visavis.engine.kv_cache import KVCache
from visavis.engine.quantization.scheme import Scheme

if TYPE_CHECKING:
    from visavis.engine.models.decoder import Decoder
    from visavis.engine.models.rope import RotaryEmbedding

__all__ = ["CpuKernels"]

MIN_BLOCK = 48  # tokens a thread, from which on each takes its own through a whole layer


class CpuNorm(TorchNorm):
    """`TorchNorm` on the engine's own threads: torch's would keep the cores from them for a while after each call."""

    def __init__(self, size: int, eps: float, device: torch.device, workers: Workers, recycled: RecycledMemory) -> None:
        super().__init__(size, eps, device, torch.float32)
        self.workers = workers
        self.recycled = recycled

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        heads = self._heads(x)
        if heads is None:
            return super().__call__(x)
        out = self.recycled.empty(*x.shape)
        self._run(heads, out.view(heads.shape))
        return out

    def in_place(self, x: torch.Tensor) -> None:
        heads = self._heads(x)
        if heads is None:
            x.copy_(super().__call__(x))
        else:
            self._run(heads, heads)

    def _heads(self, x: torch.Tensor) -> torch.Tensor | None:
        """A view (n, heads, size), each row's heads side by side; None where the compiled code cannot take x."""
        size = self.weight.shape[0]
        if x.dtype != torch.float32 or x.shape[-1] != size or size % VECTOR:
            return None
        heads = x.view(-1, 1, size) if x.is_contiguous() else x
        return heads if heads.dim() == 3 and heads.stride()[1:] == (size, 1) else None

    def _run(self, heads: torch.Tensor, out: torch.Tensor) -> None:
        n, count, size = heads.shape
        library().visavis_rms_norm(
            self.workers.handle,
            heads.data_ptr(),
            heads.stride(0),
            n,
            count,
            size,
            self.weight.data_ptr(),
            self.eps,
            out.data_ptr(),
            out.stride(0),
        )


class CpuKernels(TorchKernels):
    """Activations are float32 whatever the weights are; products round their own where that is faster (`rows.h`)."""

    def __init__(
        self,
        device: torch.device,
        dtype: torch.dtype,
        description: str,
        num_layers: int,
    ) -> None:
        super().__init__(device, dtype, description)
        self._int8 = False
        self.arena = Arena()
        self.recycled = RecycledMemory()
        self.workers = Workers(torch.get_num_threads(), num_layers)
        self.torch_threads = TorchThreads(kernels_have_own=True)
        self._linears: list[PackedLinear] = []
        self._in_arena: set[int] = set()  # where matrices begin whose memory has room for whole panels
        self._step: CpuDecodeStep | None = None

    def quantize(self, scheme: Scheme) -> None:
        """int8: the decoder's matrices, embedding and head become int8, one scale a row, once they are loaded; the
        vision tower keeps `dtype`. What comes in or is made of 4 bits is kept as the numbers it stands for."""
        self._int8 = scheme.method == "int8"
        kept = "" if self._int8 else f" as {str(self.dtype).removeprefix('torch.')}"
        self.description += f", {scheme.method} weights{kept}"
        self.scheme = None if self._int8 else scheme

    def decoder_linear(self, names: Sequence[str], in_features: int, out_features: int, *, bias: bool) -> PackedLinear:
        return self.linear(in_features, out_features, bias=bias)

    @property
    def activation_dtype(self) -> torch.dtype:
        return torch.float32

    def empty(self, *shape: int) -> torch.Tensor:
        if len(shape) != 2:
            return super().empty(*shape)
        if self._int8:  # freed when it is packed anew, which memory of the arena cannot be
            return super().empty(*shape)
        whole = self.arena.empty((padded(shape[0]), shape[1]), self.dtype)
        self._in_arena.add(whole.data_ptr())
        return whole[: shape[0]]

    def linear(self, in_features: int, out_features: int, *, bias: bool) -> PackedLinear:
        made = PackedLinear(
            self.empty(out_features, in_features),
            torch.empty(out_features, dtype=self.dtype) if bias else None,
            self.workers,
            self.recycled,
        )
        self._linears.append(made)
        return made

    def rms_norm(self, size: int, eps: float) -> CpuNorm:
        return CpuNorm(size, eps, self.device, self.workers, self.recycled)

    def give_back_memory(self) -> None:
        self.recycled.give_back()

    @property
    def buffer_bytes(self) -> int:
        """Of the compiled code's buffers that grow with the tokens of a step, beside `recycled`."""
        return 0 if self._step is None else self._step.prompt_bytes

    def layer_norm(self, size: int, eps: float) -> CpuLayerNorm:
        return CpuLayerNorm(size, eps, self)

    def vision(self, head_dim: int) -> CpuVision:
        return CpuVision(self, head_dim)

    def normalise_(self, heads: torch.Tensor, norm: Norm) -> None:
        assert isinstance(norm, CpuNorm)
        norm.in_place(heads)

    def rotate_(self, heads: torch.Tensor, rotation: Rotation) -> None:
        n, count, head_dim = heads.shape
        cos, sin = rotation.cos, rotation.signed_sin
        dense = heads.stride()[1:] == (head_dim, 1) and heads.dtype == torch.float32
        if not dense or not _is_plain(rotation, n, head_dim):
            return super().rotate_(heads, rotation)
        library().visavis_rotate(
            self.workers.handle,
            heads.data_ptr(),
            heads.stride(0),
            n,
            count,
            head_dim,
            cos.data_ptr(),
            sin.data_ptr(),
        )

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        n, width = gate_up.shape[0], gate_up.shape[1] // 2
        if not gate_up.is_contiguous() or width % VECTOR or gate_up.dtype != torch.float32:
            return super().silu_mul(gate_up)
        out = self.recycled.empty(n, width)
        library().visavis_silu_mul(self.workers.handle, gate_up.data_ptr(), n, width, out.data_ptr())
        return out

    def plan(self, layout: StepLayout) -> Any:
        return super().plan(layout) if self._step is None else self._step.plan(layout)

    def attention(self, layer: int, qkv: torch.Tensor, num_heads: int, plan: Any) -> torch.Tensor:
        if isinstance(plan, AttentionPlan):
            assert self._step is not None
            return self._step.attention(layer, qkv, plan)
        return super().attention(layer, qkv, num_heads, plan)

    def whole_layer(self, layer: int, x: torch.Tensor, rotation: Rotation, plan: Any) -> torch.Tensor | None:
        n = x.shape[0]
        if self._step is None or not isinstance(plan, AttentionPlan) or n < MIN_BLOCK * self.workers.threads:
            return None
        if x.dtype != torch.float32 or not x.is_contiguous() or not _is_plain(rotation, n, self._step.head_dim):
            return None
        return self._step.layer(layer, x, rotation, plan)

    def weights_loaded(self, model: Decoder) -> None:
        """Packs every matrix, one after the other, so that only one is there twice at a time."""
        quantised: set[int] = set()
        if self._int8:
            for layer in model.layers:
                quantised |= {id(linear) for linear in (layer.qkv, layer.output, layer.gate_up, layer.down)}
        for linear in self._linears:
            linear.packed = self._pack(linear.weight, linear.bias, quantised=id(linear) in quantised)
            linear.weight = linear.weight.new_empty(0)
        tied = model.lm_head is model.embedding
        model.embedding = self._pack(model.embedding, None, quantised=self._int8)
        model.lm_head = model.embedding if tied else self._pack(model.lm_head, None, quantised=self._int8)

    def _pack(self, rows: torch.Tensor, bias: torch.Tensor | None, *, quantised: bool) -> PackedWeight:
        if quantised:
            return PackedWeight.quantise(rows, bias, self.arena.empty)
        if rows.data_ptr() in self._in_arena:
            return PackedWeight.pack_in_place(rows, bias)
        return PackedWeight.pack(rows.to(self.dtype).contiguous(), bias, self.arena.empty)

    def embed(self, table: Any, token_ids: torch.Tensor) -> torch.Tensor:
        rows: torch.Tensor = table.rows(token_ids)
        return rows

    def project(self, x: torch.Tensor, table: Any) -> torch.Tensor:
        out = self.recycled.empty(x.shape[0], table.n)
        table.product(x.contiguous(), out, self.workers, add=False)
        return out

    def best(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if not logits.is_contiguous():
            return super().best(logits)
        rows, vocab = logits.shape
        places, sums = torch.empty(rows, dtype=torch.int64), torch.empty(rows)
        library().visavis_best(self.workers.handle, logits.data_ptr(), rows, vocab, places.data_ptr(), sums.data_ptr())
        return places, sums

    def whole_step(self, model: Decoder, rope: RotaryEmbedding, cache: KVCache, max_batch: int) -> WholeStep:
        self._step = CpuDecodeStep(
            model.config, model.layers, model.norm, model.lm_head, cache, self.workers, self.recycled, max_batch
        )
        return _WholeStep(self._step, model.embedding, rope, self.workers, max_batch)


class _WholeStep(WholeStep):
    def __init__(
        self, step: CpuDecodeStep, embedding: PackedWeight, rope: RotaryEmbedding, workers: Workers, max_batch: int
    ) -> None:
        self.max_batch = max_batch
        self.step = step
        self.embedding = embedding
        self.rope = rope
        self.workers = workers
        self.cos = self.sin = np.empty((0, 0), dtype=np.float32)  # a row a position, made as far as needed

    def __call__(
        self, token_ids: Sequence[int], positions: Sequence[int], rows: Sequence[AttentionRow]
    ) -> torch.Tensor:
        largest = max(positions)
        if largest >= len(self.cos):
            angles = self.rope.angles(max(1024, 1 << largest.bit_length()))
            self.cos, self.sin = angles.cos().numpy(), angles.sin().numpy()
        places = np.fromiter(positions, dtype=np.int64, count=len(positions))
        embedded = self.embedding.rows(torch.tensor(token_ids))
        return self.step(embedded, self.cos[places], self.sin[places], rows)

    def close(self) -> None:
        self.step.close()
        self.workers.close()


def _is_plain(rotation: Rotation, n: int, head_dim: int) -> bool:
    """Whether the compiled code can read it."""
    return all(t.dtype == torch.float32 and t.is_contiguous() and t.shape == (n, 1, head_dim) for t in rotation)
