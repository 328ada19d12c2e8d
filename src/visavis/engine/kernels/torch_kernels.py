"""The operations of `base.Kernels` in plain torch: few calls per layer, because on a CPU the calls are the cost."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from visavis.engine.kernels.base import AttentionRow, Kernels, Linear, Rotation, StepLayout
from visavis.engine.kernels.torch_decode import DecodeAttention, DecodeBatch, read
from visavis.engine.kv_cache import KVCache

__all__ = ["TorchKernels"]

MAX_MASK = 1 << 22
"""Elements of an attention mask. A longer chunk is attended some queries at a time, each slice with a mask of its own.
Peak memory of a layer for 4,096 tokens after 28,672, measured: 135 MiB instead of 646, in the same time."""
MANY_ROWS = 64
"""From here on the memory a product passes over costs more than a second call; but two calls round twice, so in
float32 only."""


class TorchLinear:
    """`weight` is (out, in) in any layout: transposed in memory, a CPU's products of a few rows are faster."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self.weight = weight
        self.transposed = weight.t()
        self.bias = bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self.bias is None:
            return torch.mm(x, self.transposed)
        if x.shape[0] > MANY_ROWS and x.dtype == torch.float32:  # addmm would first fill the result with the bias
            return torch.mm(x, self.transposed).add_(self.bias)
        return torch.addmm(self.bias, x, self.transposed)

    def add_to(self, residual: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        if self.bias is not None:  # not added by itself: the residual is rounded once
            return residual.add_(self(x))
        return residual.addmm_(x, self.transposed)


class TorchNorm:
    """x / sqrt(mean(x²) + eps) · weight (Zhang & Sennrich, arXiv:1910.07467)."""

    def __init__(self, size: int, eps: float, device: torch.device, dtype: torch.dtype) -> None:
        self.weight = torch.empty(size, device=device, dtype=dtype)
        self.eps = eps
        # sqrt(mean(x²) + eps) = hypot(‖x‖, sqrt(n·eps)) / sqrt(n): half the calls of the spelled-out formula.
        self.floor = torch.tensor(math.sqrt(size * eps), device=device)
        self.scaled_weight: torch.Tensor | None = None
        self.exact = dtype == torch.float32

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self.exact:
            if self.scaled_weight is None:  # the weight is filled in after construction
                self.scaled_weight = self.weight * math.sqrt(self.weight.shape[0])
            length = torch.linalg.vector_norm(x, dim=-1, keepdim=True).hypot_(self.floor)
            return (x / length).mul_(self.scaled_weight)
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return wide.to(x.dtype) * self.weight


@dataclass(slots=True)
class TorchPlan:
    slot_mapping: torch.Tensor
    decodes: DecodeBatch | None
    chunks: list[Chunk]


@dataclass(slots=True)
class Chunk:
    """A prompt chunk, rows start … stop of the step; `slots` of all its tokens so far, None when all are new."""

    start: int
    stop: int
    slots: slice | torch.Tensor | None
    num_context: int
    mask: torch.Tensor | None  # for all its queries at once; None without context, and where it would be too large


class TorchKernels(Kernels):
    def __init__(self, device: torch.device, dtype: torch.dtype, description: str = "torch") -> None:
        self.device = device
        self.dtype = dtype
        self.description = description

    def linear(self, in_features: int, out_features: int, *, bias: bool) -> Linear:
        on_cpu = self.device.type == "cpu"
        weight = self.empty(in_features, out_features).t() if on_cpu else self.empty(out_features, in_features)
        return TorchLinear(weight, self.empty(out_features) if bias else None)

    def rms_norm(self, size: int, eps: float) -> TorchNorm:
        return TorchNorm(size, eps, self.device, self.dtype)

    def rotate_(self, heads: torch.Tensor, rotation: Rotation) -> None:
        rolled = heads.roll(heads.shape[-1] // 2, -1)
        heads.mul_(rotation.cos).addcmul_(rolled, rotation.signed_sin)

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        width = gate_up.shape[1] // 2
        return F.silu(gate_up.narrow(1, 0, width)).mul_(gate_up.narrow(1, width, width))

    def bind_cache(self, cache: KVCache) -> None:
        self.cache = cache
        self.layers = cache.data.unbind(0)
        self.decode_attention = DecodeAttention(cache)

    def plan(self, layout: StepLayout) -> TorchPlan:
        decodes = self.decode_attention.plan(layout.decodes) if layout.decodes else None
        chunks = []
        start = len(layout.decodes)
        for row in layout.prefills:
            slots = self.cache.locate(row.block_table, row.num_keys) if row.num_context else None
            chunks.append(Chunk(start, start + row.num_new, slots, row.num_context, _mask(row, self.device)))
            start += row.num_new
        return TorchPlan(layout.slot_mapping, decodes, chunks)

    def attention(self, layer: int, qkv: torch.Tensor, num_heads: int, plan: TorchPlan) -> torch.Tensor:
        cache = self.layers[layer]
        num_new = cache.shape[1]
        queries, new = qkv.split_with_sizes((num_heads, num_new), 1)
        new = new.to(cache.dtype)  # no difference between what is read back and what was never stored
        cache.index_copy_(0, plan.slot_mapping, new)
        if not plan.chunks:
            assert plan.decodes is not None
            return plan.decodes.attend(layer, queries, new)
        parts: list[torch.Tensor] = []
        if plan.decodes is not None:
            count = plan.chunks[0].start
            parts.append(plan.decodes.attend(layer, queries[:count], new[:count]))
        for chunk in plan.chunks:
            stored = new[chunk.start : chunk.stop] if chunk.slots is None else read(cache, chunk.slots)
            parts.append(_attend_chunk(queries[chunk.start : chunk.stop], stored, chunk))
        return parts[0] if len(parts) == 1 else torch.cat(parts)


def _mask(row: AttentionRow, device: torch.device) -> torch.Tensor | None:
    """(num_new, num_keys) True where a chunk's token may look; None when the chunk has no context (plain causal), or
    when it would be larger than `MAX_MASK`."""
    if row.num_context == 0 or row.num_new * row.num_keys > MAX_MASK:
        return None
    return torch.ones((row.num_new, row.num_keys), dtype=torch.bool, device=device).tril_(row.num_context)


def _attend_chunk(queries: torch.Tensor, stored: torch.Tensor, chunk: Chunk) -> torch.Tensor:
    """queries (n, H, D) of one request over its keys and values (m, 2K, D) → (n, H·D)."""
    group = queries.shape[1] * 2 // stored.shape[1]
    q = queries.transpose(0, 1).unsqueeze(0)
    k, v = stored.to(queries.dtype).transpose(0, 1).unsqueeze(0).chunk(2, dim=1)
    if group > 1:
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    if chunk.num_context == 0 or chunk.mask is not None:
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=chunk.mask, is_causal=chunk.mask is None)
    else:
        out = _attend_in_slices(q, k, v, chunk.num_context)
    return out[0].transpose(0, 1).reshape(queries.shape[0], -1)


def _attend_in_slices(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, num_context: int) -> torch.Tensor:
    """(1, H, n, D) over (1, H, num_context + n, D), causally."""
    num_new = q.shape[2]
    rows = max(1, MAX_MASK // k.shape[2])
    parts = []
    for start in range(0, num_new, rows):
        stop = min(start + rows, num_new)
        keys = num_context + stop
        mask = torch.ones((stop - start, keys), dtype=torch.bool, device=q.device).tril_(num_context + start)
        parts.append(F.scaled_dot_product_attention(q[:, :, start:stop], k[:, :, :keys], v[:, :, :keys], mask))
    return torch.cat(parts, dim=2)
