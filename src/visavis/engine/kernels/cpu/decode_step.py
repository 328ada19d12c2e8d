"""`CpuDecodeStep`: a decode step of the whole decoder in one call of compiled code (`decode_step.h`); of a step with
prompts, a layer in three calls or its attention alone."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from visavis.engine.kernels.base import AttentionRow, Rotation, StepLayout
from visavis.engine.kernels.cpu.build import BuildError
from visavis.engine.kernels.cpu.library import TYPES, LayerStruct, ModelStruct, Workers, library
from visavis.engine.kernels.cpu.packed import PANEL, PackedWeight
from visavis.engine.kernels.cpu.recycled import RecycledMemory
from visavis.engine.kv_cache import KVCache
from visavis.engine.model_config import ModelConfig
from visavis.errors import BackendError

__all__ = ["VECTOR", "AttentionPlan", "CpuDecodeStep", "unsupported"]

VECTOR = 16  # floats in a register, at its widest
MAX_GROUP = 16  # as in attention.h
MAX_HEAD_DIM = 512  # the largest tested


def unsupported(config: ModelConfig, dtype: torch.dtype) -> str | None:
    """Why the compiled step cannot run this model here; None when it can. Builds the library the first time."""
    if dtype not in (torch.float32, torch.bfloat16):
        return f"no {str(dtype).removeprefix('torch.')} on the CPU"
    widths = (config.hidden_size, config.intermediate_size, config.num_heads * config.head_dim)
    if any(width % PANEL for width in widths) or config.head_dim % VECTOR:
        return (
            f"widths {widths} are not all multiples of {PANEL}, or the head size {config.head_dim} is none of {VECTOR}"
        )
    if config.num_heads // config.num_kv_heads > MAX_GROUP or config.head_dim > MAX_HEAD_DIM:
        return f"more than {MAX_GROUP} query heads a key head, or heads wider than {MAX_HEAD_DIM}"
    try:
        library()
    except BuildError as error:
        return str(error)
    return None


AttentionTables = tuple[np.ndarray, np.ndarray]
"""(n, blocks) int32 block tables and (n,) int32 lengths."""


class PromptChunk(NamedTuple):
    start: int  # its first row of the step
    num_new: int
    num_context: int
    table: np.ndarray  # (blocks,) int32


@dataclass(slots=True)
class AttentionPlan:
    slots: torch.Tensor  # (n,) int64: where the keys and values of the step's tokens go
    decodes: AttentionTables | None  # of the first rows
    chunks: list[PromptChunk]


class CpuDecodeStep:
    """Weights are read where they are packed; norms are kept in float32 copies."""

    def __init__(
        self,
        config: ModelConfig,
        layers: Sequence[Any],
        norm: Any,
        head: PackedWeight,
        cache: KVCache,
        workers: Workers,
        recycled: RecycledMemory,
        max_batch: int,
    ) -> None:
        """`layers`: DecoderLayers whose linears are packed. `cache` and `workers` must live as long as this."""
        self._library = library()
        self._workers = workers
        self._recycled = recycled
        self._kept: list[Any] = [cache.data, head, layers]  # what the structures point to
        c = config
        self.vocab_size, self.hidden_size = head.n, c.hidden_size
        self.num_heads, self.num_kv_heads, self.head_dim = c.num_heads, c.num_kv_heads, c.head_dim
        self.block_size = cache.block_size
        self.max_batch = max_batch
        array = (LayerStruct * len(layers))()
        for i, layer in enumerate(layers):
            data = cache.data[i]  # (slots, 2K, D)
            q_norm, k_norm = layer.qk_norm if layer.qk_norm is not None else (None, None)
            array[i] = LayerStruct(
                *(linear.packed.struct for linear in (layer.qkv, layer.output, layer.gate_up, layer.down)),
                self._floats(layer.input_norm.weight),
                self._floats(layer.mlp_norm.weight),
                self._floats(q_norm.weight) if q_norm is not None else None,
                self._floats(k_norm.weight) if k_norm is not None else None,
                data.data_ptr(),
                data[:, c.num_kv_heads :].data_ptr(),
            )
        token_stride, head_stride, _ = cache.data[0].stride()
        model = ModelStruct(
            array,
            head.struct,
            self._floats(norm.weight),
            len(layers),
            c.hidden_size,
            c.num_heads,
            c.num_kv_heads,
            c.head_dim,
            c.intermediate_size,
            TYPES[cache.data.dtype],
            cache.block_size,
            token_stride * cache.block_size,
            token_stride,
            head_stride,
            c.rms_norm_eps,
            c.head_dim**-0.5,
            max_batch,
            0,
        )
        self._handle = self._library.visavis_decode_new(ctypes.byref(model), workers.handle)
        if not self._handle:
            raise BackendError("no memory for the compiled decode step; lower max_num_seqs")

    def __call__(
        self, embedded: torch.Tensor, cos: np.ndarray, sin: np.ndarray, rows: Sequence[AttentionRow]
    ) -> torch.Tensor:
        """One new token of each of `rows`. embedded: (n, hidden) float32, overwritten; cos, sin: (n, D / 2) float32
        → (n, vocab) float32. Stores the keys and values of the new tokens."""
        self._workers.check()
        tables, lengths = attention_tables(rows)
        logits = self._recycled.empty(len(rows), self.vocab_size)
        self._library.visavis_decode_step(
            self._handle,
            len(rows),
            embedded.data_ptr(),
            cos.ctypes.data,
            sin.ctypes.data,
            tables.ctypes.data,
            tables.shape[1],
            lengths.ctypes.data,
            logits.data_ptr(),
        )
        return logits

    def plan(self, layout: StepLayout) -> AttentionPlan:
        """Where a step's tokens go and where their keys are: the same for all layers."""
        rows, slots = [*layout.decodes, *layout.prefills], layout.slot_mapping
        if slots.dtype != torch.int64 or slots.shape != (sum(row.num_new for row in rows),):
            raise ValueError(f"slots {slots.dtype} {tuple(slots.shape)} are not one int64 a token")
        if any(len(row.block_table) * self.block_size < row.num_keys for row in rows):
            raise ValueError("a block table is too short for its keys")
        if len(layout.decodes) > self.max_batch:
            raise ValueError(f"{len(layout.decodes)} decodes, and room for {self.max_batch}")
        decodes = attention_tables(layout.decodes) if layout.decodes else None
        chunks = []
        start = len(layout.decodes)
        for row in layout.prefills:
            table = np.array(row.block_table, dtype=np.int32)
            chunks.append(PromptChunk(start, row.num_new, row.num_context, table))
            start += row.num_new
        return AttentionPlan(slots.contiguous(), decodes, chunks)

    def layer(self, layer: int, x: torch.Tensor, rotation: Rotation, plan: AttentionPlan) -> torch.Tensor:
        """x (n, hidden) float32, the plan's tokens → itself, changed. Stores keys and values."""
        n, heads = plan.slots.shape[0], self.num_heads + 2 * self.num_kv_heads
        _check(x, (n, self.hidden_size))
        for part in rotation:
            _check(part, (n, 1, self.head_dim))
        self._workers.check()
        qkv = self._recycled.empty(n, heads, self.head_dim)
        self._library.visavis_prompt_before(
            self._handle,
            layer,
            n,
            x.data_ptr(),
            rotation.cos.data_ptr(),
            rotation.signed_sin.data_ptr(),
            plan.slots.data_ptr(),
            qkv.data_ptr(),
        )
        mixed = self._attend(layer, qkv, plan)
        self._library.visavis_prompt_after(self._handle, layer, n, x.data_ptr(), mixed.data_ptr())
        return x

    def attention(self, layer: int, qkv: torch.Tensor, plan: AttentionPlan) -> torch.Tensor:
        """qkv (n, H + 2K, D) float32, rotated → (n, H·D). Stores keys and values, then attends over the cache."""
        shape = (plan.slots.shape[0], self.num_heads + 2 * self.num_kv_heads, self.head_dim)
        _check(qkv, shape)
        self._workers.check()
        keys = qkv[:, self.num_heads :]
        self._library.visavis_store(
            self._handle, layer, keys.data_ptr(), qkv.stride(0), shape[0], plan.slots.data_ptr()
        )
        return self._attend(layer, qkv, plan)

    def _attend(self, layer: int, qkv: torch.Tensor, plan: AttentionPlan) -> torch.Tensor:
        stride = qkv.stride(0)
        out = self._recycled.empty(qkv.shape[0], self.num_heads * self.head_dim)
        if plan.decodes is not None:
            tables, lengths = plan.decodes
            self._library.visavis_decode_attention(
                self._handle,
                layer,
                len(lengths),
                qkv.data_ptr(),
                stride,
                tables.ctypes.data,
                tables.shape[1],
                lengths.ctypes.data,
                out.data_ptr(),
            )
        for chunk in plan.chunks:
            self._library.visavis_prompt_attention(
                self._handle,
                layer,
                qkv[chunk.start :].data_ptr(),
                stride,
                chunk.num_new,
                chunk.num_context,
                chunk.table.ctypes.data,
                out[chunk.start :].data_ptr(),
            )
        return out

    @property
    def prompt_bytes(self) -> int:
        """Of buffers outside torch that grow with the tokens of a step: each thread's for a block, and vectors made
        ready for a product."""
        return int(self._library.visavis_prompt_bytes(self._handle))

    def close(self) -> None:
        """Frees its buffers."""
        handle, self._handle = self._handle, None
        if handle is not None:
            self._library.visavis_decode_free(handle)
            self._kept.clear()

    def __del__(self) -> None:
        if getattr(self, "_handle", None) is not None:
            self.close()

    def _floats(self, tensor: torch.Tensor) -> int:
        kept = tensor.float().contiguous()
        self._kept.append(kept)
        return kept.data_ptr()


def _check(tensor: torch.Tensor, shape: tuple[int, ...]) -> None:
    """Whether the compiled code can read it. Raises ValueError."""
    if tensor.shape != shape or tensor.dtype != torch.float32 or not tensor.is_contiguous():
        raise ValueError(
            f"{tensor.dtype} {tuple(tensor.shape)}, strides {tensor.stride()}, is no contiguous float32 {shape}"
        )


def attention_tables(rows: Sequence[AttentionRow]) -> AttentionTables:
    """Where the rows' keys are, for the compiled code."""
    longest = max(len(row.block_table) for row in rows)
    tables = np.zeros((len(rows), longest), dtype=np.int32)
    for table, row in zip(tables, rows, strict=True):
        table[: len(row.block_table)] = row.block_table
    return tables, np.fromiter((row.num_keys for row in rows), dtype=np.int32, count=len(rows))
