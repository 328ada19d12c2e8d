"""The operations of `base.Kernels` in plain torch: few calls per layer, because on a CPU the calls are the cost."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from visavis.engine.kernels.base import AttentionRow, Kernels, Rotation, StepLayout
from visavis.engine.kernels.dense_decode import DenseDecode
from visavis.engine.kv_cache import KVCache

__all__ = ["TorchKernels"]


class TorchLinear:
    """The weight is kept transposed on a CPU: its products of a few rows are faster that way, and `add_to` is one
    call."""

    def __init__(self, in_features: int, out_features: int, bias: bool, device: torch.device, dtype: torch.dtype):
        if device.type == "cpu":
            self.weight = torch.empty((in_features, out_features), device=device, dtype=dtype).t()
        else:
            self.weight = torch.empty((out_features, in_features), device=device, dtype=dtype)
        self.transposed = self.weight.t()
        self.bias = torch.empty(out_features, device=device, dtype=dtype) if bias else None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self.bias is None:
            return torch.mm(x, self.transposed)
        return torch.addmm(self.bias, x, self.transposed)

    def add_to(self, residual: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        summed = torch.addmm(residual, x, self.transposed)
        return summed if self.bias is None else summed.add_(self.bias)


class TorchNorm:
    """x / sqrt(mean(x²) + eps) · weight (Zhang & Sennrich, arXiv:1910.07467)."""

    def __init__(self, size: int, eps: float, device: torch.device, dtype: torch.dtype) -> None:
        self.weight = torch.empty(size, device=device, dtype=dtype)
        self.eps = eps
        # sqrt(mean(x²) + eps) = hypot(‖x‖, sqrt(n·eps)) / sqrt(n): half the calls of the spelled-out formula.
        self.floor = torch.tensor(math.sqrt(size * eps), device=device)
        self.scale = math.sqrt(size)
        self.exact = dtype == torch.float32

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self.exact:
            length = torch.linalg.vector_norm(x, dim=-1, keepdim=True).hypot_(self.floor)
            return (x / length).mul_(self.scaled_weight)
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return wide.to(x.dtype) * self.weight

    @property
    def scaled_weight(self) -> torch.Tensor:
        # Made on first use: the weight is filled in after construction.
        scaled = self.__dict__.get("_scaled")
        if scaled is None:
            scaled = self.__dict__["_scaled"] = self.weight * self.scale
        return scaled


@dataclass(slots=True)
class TorchPlan:
    layout: StepLayout
    dense: DenseDecode | None  # set when the decodes run as one batch
    singles: list[slice | torch.Tensor]  # otherwise: the cache slots of each decode
    chunks: list[tuple[slice | torch.Tensor | None, torch.Tensor | None]]  # per prefill: slots (None: all new), mask


class TorchKernels(Kernels):
    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self.device = device
        self.dtype = dtype
        self.dense = DenseDecode()

    def linear(self, in_features: int, out_features: int, *, bias: bool) -> TorchLinear:
        return TorchLinear(in_features, out_features, bias, self.device, self.dtype)

    def rms_norm(self, size: int, eps: float) -> TorchNorm:
        return TorchNorm(size, eps, self.device, self.dtype)

    def rotate_(self, heads: torch.Tensor, rotation: Rotation) -> None:
        rolled = heads.roll(heads.shape[-1] // 2, -1)
        heads.mul_(rotation.cos).addcmul_(rolled, rotation.signed_sin)

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return F.silu(gate).mul_(up)

    def bind_cache(self, cache: KVCache) -> None:
        self.cache = cache
        self.dense.bind(cache)

    def plan(self, layout: StepLayout) -> TorchPlan:
        dense = self.dense if self.dense.begin(layout.decodes) else None
        singles = [] if dense else [self.cache.locate(row.block_table, row.num_keys) for row in layout.decodes]
        chunks = [
            (self.cache.locate(row.block_table, row.num_keys) if row.num_context else None, _mask(row, self.device))
            for row in layout.prefills
        ]
        return TorchPlan(layout, dense, singles, chunks)

    def attention(self, layer: int, qkv: torch.Tensor, num_heads: int, plan: TorchPlan) -> torch.Tensor:
        cache = self.cache.data[layer]
        queries = qkv[:, :num_heads]
        new = qkv[:, num_heads:].unflatten(1, cache.shape[1:3])
        cache.index_copy_(0, plan.layout.slot_mapping, new)
        num_decodes = len(plan.layout.decodes)
        parts: list[torch.Tensor] = []
        if plan.dense is not None:
            parts.append(plan.dense.attend(layer, queries[:num_decodes], new[:num_decodes]))
        for i, slots in enumerate(plan.singles):
            parts.append(_attend(queries[i : i + 1], _read(cache, slots), None))
        start = num_decodes
        for row, (context, mask) in zip(plan.layout.prefills, plan.chunks, strict=True):
            stop = start + row.num_new
            keys_values = new[start:stop] if context is None else _read(cache, context)
            parts.append(_attend(queries[start:stop], keys_values, mask))
            start = stop
        return parts[0] if len(parts) == 1 else torch.cat(parts)


def _read(cache: torch.Tensor, slots: slice | torch.Tensor) -> torch.Tensor:
    """(slots, 2, K, D) of one layer; a view when the slots are one run."""
    return cache[slots] if isinstance(slots, slice) else cache.index_select(0, slots)


def _mask(row: AttentionRow, device: torch.device) -> torch.Tensor | None:
    """(num_new, num_keys) True where a chunk's token may look; None when plain causal or no mask at all says it."""
    if row.num_context == 0 or row.num_new == 1:
        return None
    return torch.ones((row.num_new, row.num_keys), dtype=torch.bool, device=device).tril_(row.num_context)


def _attend(queries: torch.Tensor, keys_values: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """queries (n, H, D) of one request over (keys, 2, K, D) → (n, H·D); with no mask causal when n = keys."""
    num_new, num_heads, head_dim = queries.shape
    num_kv_heads = keys_values.shape[2]
    group = num_heads // num_kv_heads
    if num_new == 1:
        # The query heads that share a key head become rows of one product, instead of copies of the keys.
        q = queries.view(1, num_kv_heads, group, head_dim)
        k, v = keys_values.unsqueeze(0).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(q, k, v).reshape(1, num_heads * head_dim)
    q = queries.transpose(0, 1).unsqueeze(0)
    k, v = keys_values.permute(1, 2, 0, 3).unsqueeze(1)
    if group > 1:
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
    return out[0].transpose(0, 1).reshape(num_new, num_heads * head_dim)
