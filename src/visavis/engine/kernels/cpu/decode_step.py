"""`CpuDecodeStep`: a whole decode step of the decoder in one call of compiled code (`decode_step.h`)."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from visavis.engine.kernels.base import AttentionRow
from visavis.engine.kernels.cpu.build import BuildError
from visavis.engine.kernels.cpu.library import TYPES, LayerStruct, ModelStruct, Workers, library
from visavis.engine.kernels.cpu.packed import PANEL, PackedWeight
from visavis.engine.kv_cache import KVCache
from visavis.engine.model_config import ModelConfig
from visavis.errors import BackendError

__all__ = ["AttentionTables", "CpuDecodeStep", "attention_tables", "unsupported"]

HEAD_MULTIPLE = 16  # a vector of floats, at its widest
MAX_GROUP, MAX_HEAD_DIM = 16, 512  # as in attention.h


def unsupported(config: ModelConfig, dtype: torch.dtype) -> str | None:
    """Why the compiled step cannot run this model here; None when it can. Builds the library the first time."""
    if dtype not in (torch.float32, torch.bfloat16):
        return f"no {str(dtype).removeprefix('torch.')} on the CPU"
    widths = (config.hidden_size, config.intermediate_size, config.num_heads * config.head_dim)
    if any(width % PANEL for width in widths) or config.head_dim % HEAD_MULTIPLE:
        return (
            f"widths {widths} are not all multiples of {PANEL}, "
            f"or the head size {config.head_dim} is none of {HEAD_MULTIPLE}"
        )
    if config.num_heads // config.num_kv_heads > MAX_GROUP or config.head_dim > MAX_HEAD_DIM:
        return f"more than {MAX_GROUP} query heads a key head, or heads wider than {MAX_HEAD_DIM}"
    try:
        library()
    except BuildError as error:
        return str(error)
    return None


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
        max_batch: int,
    ) -> None:
        """`layers`: DecoderLayers whose linears are packed. `cache` and `workers` must live as long as this."""
        self._library = library()
        self._workers = workers
        self._kept: list[Any] = [cache.data, head, layers]  # what the structures point to
        c = config
        self.vocab_size = head.n
        self.width = (c.num_heads + 2 * c.num_kv_heads) * c.head_dim
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
        self._workers.handle  # noqa: B018 (refuses a forked child)
        tables, lengths = attention_tables(rows)
        logits = torch.empty((len(rows), self.vocab_size))
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

    def attention(self, layer: int, queries: torch.Tensor, rows: AttentionTables) -> torch.Tensor:
        """queries (n, H, D) float32, rotated: the first heads of a contiguous (n, H + 2K, D) → (n, H·D).

        The keys and values of the new tokens are in the cache already.
        """
        n, num_heads, head_dim = queries.shape
        if queries.stride() != (self.width, head_dim, 1):
            raise ValueError(f"queries of strides {queries.stride()} are not the beginning of rows of {self.width}")
        out = torch.empty((n, num_heads * head_dim))
        tables, lengths = rows
        self._workers.handle  # noqa: B018
        self._library.visavis_decode_attention(
            self._handle,
            layer,
            n,
            queries.data_ptr(),
            tables.ctypes.data,
            tables.shape[1],
            lengths.ctypes.data,
            out.data_ptr(),
        )
        return out

    def store(self, layer: int, new: torch.Tensor, slots: torch.Tensor) -> None:
        """Keys and values (n, 2K, D) float32, rows apart as they like, into the cache's slots (n,) int64."""
        if new.stride()[1:] != (new.shape[2], 1) or new.dtype != torch.float32 or slots.dtype != torch.int64:
            raise ValueError(
                f"{new.dtype} of strides {new.stride()} for {slots.dtype} slots, not float32 heads in a row"
            )
        slots = slots.contiguous()
        self._workers.handle  # noqa: B018
        self._library.visavis_store(self._handle, layer, new.data_ptr(), new.stride(0), new.shape[0], slots.data_ptr())

    def prompt_attention(self, layer: int, queries: torch.Tensor, row: AttentionRow) -> torch.Tensor:
        """queries (row.num_new, H, D) float32, rotated, rows apart as they like → (row.num_new, H·D).

        The keys and values of the new tokens are in the cache already.
        """
        n, num_heads, head_dim = queries.shape
        if queries.stride()[1:] != (head_dim, 1) or queries.dtype != torch.float32:
            raise ValueError(
                f"queries of strides {queries.stride()} and {queries.dtype} are not float32 heads in a row"
            )
        out = torch.empty((n, num_heads * head_dim))
        table = np.array(row.block_table, dtype=np.int32)
        self._workers.handle  # noqa: B018
        self._library.visavis_prompt_attention(
            self._handle,
            layer,
            queries.data_ptr(),
            queries.stride(0),
            n,
            row.num_context,
            table.ctypes.data,
            out.data_ptr(),
        )
        return out

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


AttentionTables = tuple[np.ndarray, np.ndarray]
"""(n, blocks) int32 block tables and (n,) int32 lengths."""


def attention_tables(rows: Sequence[AttentionRow]) -> AttentionTables:
    """Where the rows' keys are, for the compiled code."""
    longest = max(len(row.block_table) for row in rows)
    tables = np.zeros((len(rows), longest), dtype=np.int32)
    for table, row in zip(tables, rows, strict=True):
        table[: len(row.block_table)] = row.block_table
    return tables, np.fromiter((row.num_keys for row in rows), dtype=np.int32, count=len(rows))
