"""`CudaKernels`: the operations of `base.Kernels` for prompts and mixed steps; torch's products, our Triton kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from visavis.engine.kernels.base import AttentionRow, Kernels, Rotation, StepLayout
from visavis.engine.kernels.cuda.ahead import AheadDecoder
from visavis.engine.kernels.cuda.quantized import CudaQuantizedLinear
from visavis.engine.kernels.cuda.step import DecodeStep
from visavis.engine.kernels.cuda.warm_up import WarmUp
from visavis.engine.kernels.triton.launch import DecodeScratch, Launcher
from visavis.engine.kernels.triton.launch_quantized import QuantizedLauncher
from visavis.engine.kernels.triton.tiles import pad
from visavis.engine.kv_cache import KVCache
from visavis.engine.quantization.weight import QuantizedWeight
from visavis.engine.transfer import send

if TYPE_CHECKING:
    from visavis.engine.kernels.vision import VisionOps
    from visavis.engine.models.decoder import Decoder
    from visavis.engine.models.rope import RotaryEmbedding
    from visavis.engine.models.vision import VisionTower

__all__ = ["CudaKernels", "CudaLinear", "CudaNorm"]

MIXED_SPLITS = 8
"""Programs that share a decoding request's keys in a step with prompts, whatever the number of requests: a kernel is
compiled for each number, which would come to seconds while prompts arrive."""


class CudaLinear:
    """cuBLAS, the bias in its epilogue."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self.weight = weight
        self.bias = bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight, self.bias)

    def add_to(self, residual: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        if self.bias is not None:  # not added by itself: the residual is rounded once
            return residual.add_(self(x))
        return residual.addmm_(x, self.weight.t())


class CudaNorm:
    def __init__(self, weight: torch.Tensor, eps: float, launcher: Launcher) -> None:
        self.weight = weight
        self.eps = eps
        self.launcher = launcher

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        return self.launcher.rms_norm(x, self.weight, self.eps, torch.empty_like(x))


@dataclass(slots=True)
class Decodes:
    """The first `count` tokens of a step, one of each request."""

    count: int
    tables: torch.Tensor
    table_rows: torch.Tensor
    lengths: torch.Tensor


@dataclass(slots=True)
class Chunks:
    """The other tokens of a step: int32 tensors, one value a chunk."""

    tables: torch.Tensor
    starts: torch.Tensor
    contexts: torch.Tensor
    counts: torch.Tensor
    longest: int


@dataclass(slots=True)
class Plan:
    slot_mapping: torch.Tensor
    decodes: Decodes | None
    chunks: Chunks | None


class CudaKernels(Kernels):
    rotates_in_float32 = True

    def __init__(self, device: torch.device, dtype: torch.dtype, description: str, *, graphs: bool = True) -> None:
        self.device = device
        self.dtype = dtype
        self.description = description
        self.launcher = Launcher(device)
        self.quantized = QuantizedLauncher(self.launcher)
        self.graphs = graphs
        self.warming = WarmUp(device)

    def linear(self, in_features: int, out_features: int, *, bias: bool) -> CudaLinear:
        return CudaLinear(self.empty(out_features, in_features), self.empty(out_features) if bias else None)

    def quantized_linear(self, weight: QuantizedWeight, bias: torch.Tensor | None) -> CudaQuantizedLinear:
        return CudaQuantizedLinear(weight, bias, self.quantized)

    def rms_norm(self, size: int, eps: float) -> CudaNorm:
        return CudaNorm(self.empty(size), eps, self.launcher)

    def rotate_(self, heads: torch.Tensor, rotation: Rotation) -> None:
        self.launcher.rotate_(heads, rotation.cos, rotation.signed_sin)

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        return self.launcher.silu_mul(gate_up, gate_up.new_empty((gate_up.shape[0], gate_up.shape[1] // 2)))

    def vision(self, head_dim: int) -> VisionOps:
        from visavis.engine.kernels.cuda.vision import CudaVision

        return CudaVision(self)

    def bind_cache(self, cache: KVCache) -> None:
        self.cache = cache
        self.layers = cache.data.unbind(0)
        self._scratch: tuple[int, DecodeScratch] | None = None

    def ahead(
        self, model: Decoder, rope: RotaryEmbedding, cache: KVCache, max_batch: int, max_model_len: int
    ) -> AheadDecoder:
        if self.communicator.size > 1:
            from visavis.engine.parallel.decode import ParallelAhead, ParallelDecodeStep

            shared = ParallelDecodeStep(model, rope, cache, self.launcher, max_batch, max_model_len, self.communicator)
            return ParallelAhead(shared, max_model_len, graphs=self.graphs)
        step = DecodeStep(model, rope, cache, self.launcher, max_batch, max_model_len)
        if self.launcher.gpu:
            self.warming.decoding(step)
        return AheadDecoder(step, max_model_len, graphs=self.graphs, ready=self.warming.wait)

    def warm_up(self, model: Decoder, tower: VisionTower | None) -> None:
        if self.launcher.gpu:
            self.warming.prompts(self, model)
            if tower is not None:
                self.warming.pictures(tower)

    def warmed_up(self) -> None:
        self.warming.wait()

    def plan(self, layout: StepLayout) -> Plan:
        decodes = chunks = None
        if layout.decodes:
            count = len(layout.decodes)
            lengths = [row.num_keys for row in layout.decodes]
            packed = self._ints([lengths, list(range(count))])
            decodes = Decodes(count, self._tables(layout.decodes), packed[1], packed[0])
        if layout.prefills:
            starts, start = [], len(layout.decodes)
            for row in layout.prefills:
                starts.append(start)
                start += row.num_new
            counts = [row.num_new for row in layout.prefills]
            packed = self._ints([starts, [row.num_context for row in layout.prefills], counts])
            chunks = Chunks(self._tables(layout.prefills), packed[0], packed[1], packed[2], max(counts))
        return Plan(layout.slot_mapping, decodes, chunks)

    def attention(self, layer: int, qkv: torch.Tensor, num_heads: int, plan: Plan) -> torch.Tensor:
        cache = self.layers[layer]
        cache.index_copy_(0, plan.slot_mapping, qkv[:, num_heads:])
        out = qkv.new_empty((qkv.shape[0], num_heads * qkv.shape[2]))
        if plan.decodes is not None:
            d = plan.decodes
            self.launcher.decode_attention(
                qkv[: d.count], cache, out, d.tables, d.table_rows, d.lengths,
                block_size=self.cache.block_size, scratch=self._decode_scratch(d.count, qkv), splits=MIXED_SPLITS,
            )  # fmt: skip
        if plan.chunks is not None:
            c = plan.chunks
            self.launcher.prefill_attention(
                qkv, cache, out, c.tables, c.starts, c.contexts, c.counts, c.longest, block_size=self.cache.block_size
            )
        return out

    def _decode_scratch(self, rows: int, qkv: torch.Tensor) -> DecodeScratch:
        if self._scratch is None or self._scratch[0] < rows:
            kv_heads, d = self.cache.num_kv_heads, qkv.shape[2]
            group = (qkv.shape[1] - 2 * kv_heads) // kv_heads
            floats = rows * kv_heads * MIXED_SPLITS * pad(group, 16) * (pad(d, 16) + 2)
            self._scratch = (rows, DecodeScratch.make(floats, rows * kv_heads, self.device))
        return self._scratch[1]

    def _tables(self, rows: Sequence[AttentionRow]) -> torch.Tensor:
        size = self.cache.block_size
        tables = [row.block_table[: -(-row.num_keys // size)] for row in rows]
        widest = max(map(len, tables))
        return self._ints([table + [0] * (widest - len(table)) for table in tables])

    def _ints(self, values: list[list[int]]) -> torch.Tensor:
        return send(torch.tensor(values, dtype=torch.int32), self.device)
