"""`CpuDecodeStep`: a whole decode step of the decoder in one call of compiled code (`decode_step.cpp`)."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from ctypes import POINTER, Structure, c_float, c_int, c_int32, c_int64, c_void_p
from functools import cache
from typing import Any, ClassVar

import numpy as np
import torch

from visavis.engine.kernels.base import AttentionRow
from visavis.engine.kernels.cpu.build import BuildError, find_library
from visavis.engine.kv_cache import KVCache
from visavis.engine.model_config import ModelConfig
from visavis.errors import BackendError

__all__ = ["CpuDecodeStep", "unsupported"]

TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.int8: 2}
WIDTH_MULTIPLE, HEAD_MULTIPLE = 32, 16  # two vectors and one vector of 16 floats
MAX_GROUP, MAX_HEAD_DIM = 16, 512  # as in decode_step.cpp


class _Linear(Structure):
    _fields_: ClassVar[Any] = [
        ("weight", c_void_p),
        ("scale", c_void_p),
        ("bias", c_void_p),
        ("n", c_int32),
        ("k", c_int32),
        ("dtype", c_int32),
        ("pad", c_int32),
    ]


class _Layer(Structure):
    _fields_: ClassVar[Any] = [
        *((name, _Linear) for name in ("qkv", "output", "gate_up", "down")),
        *((name, c_void_p) for name in ("input_norm", "mlp_norm", "q_norm", "k_norm", "k_cache", "v_cache")),
    ]


class _Model(Structure):
    _fields_: ClassVar[Any] = [
        ("layers", POINTER(_Layer)),
        ("lm_head", _Linear),
        ("final_norm", c_void_p),
        *(
            (name, c_int32)
            for name in (
                "num_layers",
                "hidden",
                "heads",
                "kv_heads",
                "head_dim",
                "intermediate",
                "kv_dtype",
                "block_size",
            )
        ),
        *((name, c_int64) for name in ("block_stride", "token_stride", "head_stride")),
        ("eps", c_float),
        ("scale", c_float),
        ("threads", c_int32),
        ("max_batch", c_int32),
    ]


def unsupported(config: ModelConfig, dtype: torch.dtype) -> str | None:
    """Why the compiled step cannot run this model here; None when it can. Builds the library the first time."""
    if dtype not in (torch.float32, torch.bfloat16):
        return f"no {str(dtype).removeprefix('torch.')} on the CPU"
    widths = (config.hidden_size, config.intermediate_size, config.num_heads * config.head_dim)
    if any(width % WIDTH_MULTIPLE for width in widths) or config.head_dim % HEAD_MULTIPLE:
        return (
            f"widths {widths} are not all multiples of {WIDTH_MULTIPLE}, "
            f"or the head size {config.head_dim} is none of {HEAD_MULTIPLE}"
        )
    if config.num_heads // config.num_kv_heads > MAX_GROUP or config.head_dim > MAX_HEAD_DIM:
        return f"more than {MAX_GROUP} query heads a key head, or heads wider than {MAX_HEAD_DIM}"
    try:
        _library()
    except BuildError as error:
        return str(error)
    return None


class CpuDecodeStep:
    """Weights are read where torch has them (row-major); nothing is copied but norms and biases to float32."""

    def __init__(
        self,
        config: ModelConfig,
        layers: Sequence[Any],
        norm: Any,
        lm_head: torch.Tensor,
        cache: KVCache,
        threads: int,
        max_batch: int,
    ) -> None:
        self._library = _library()
        self._kept: list[torch.Tensor] = []  # what the structures point to
        c = config
        self.vocab_size = lm_head.shape[0]
        self.half = c.head_dim // 2
        array = (_Layer * len(layers))()
        for i, layer in enumerate(layers):
            data = cache.data[i]  # (slots, 2K, D)
            q_norm, k_norm = layer.qk_norm if layer.qk_norm is not None else (None, None)
            array[i] = _Layer(
                self._linear(layer.qkv.weight, layer.qkv.bias),
                self._linear(layer.output.weight, layer.output.bias),
                self._linear(layer.gate_up.weight, layer.gate_up.bias),
                self._linear(layer.down.weight, layer.down.bias),
                self._floats(layer.input_norm.weight),
                self._floats(layer.mlp_norm.weight),
                self._floats(q_norm.weight) if q_norm is not None else None,
                self._floats(k_norm.weight) if k_norm is not None else None,
                data.data_ptr(),
                data[:, c.num_kv_heads :].data_ptr(),
            )
        token_stride, head_stride, _ = cache.data[0].stride()
        model = _Model(
            array,
            self._linear(lm_head, None),
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
            threads,
            max_batch,
        )
        self._kept.append(cache.data)
        self._handle = self._library.visavis_decode_new(ctypes.byref(model))
        self._process = os.getpid()
        if not self._handle:
            raise BackendError(f"no memory or threads for the compiled decode step ({threads} threads); ask for fewer")

    def __call__(
        self, embedded: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, rows: Sequence[AttentionRow]
    ) -> torch.Tensor:
        """One new token of each of `rows`. embedded: (n, hidden) float32, overwritten; cos, sin: (n, D / 2) float32
        → (n, vocab) float32. Stores the keys and values of the new tokens."""
        if self._process != os.getpid():  # its threads stayed in the parent: a step would wait for them for ever
            raise BackendError("the engine was loaded before this process was forked; load it in the child, or spawn")
        n = len(rows)
        longest = max(len(row.block_table) for row in rows)
        tables = np.zeros((n, longest), dtype=np.int32)
        for table, row in zip(tables, rows, strict=True):
            table[: len(row.block_table)] = row.block_table
        lengths = np.fromiter((row.num_keys for row in rows), dtype=np.int32, count=n)
        logits = torch.empty((n, self.vocab_size))
        self._library.visavis_decode_step(
            self._handle,
            n,
            embedded.data_ptr(),
            cos.data_ptr(),
            sin.data_ptr(),
            tables.ctypes.data,
            longest,
            lengths.ctypes.data,
            logits.data_ptr(),
        )
        return logits

    def close(self) -> None:
        """Ends its threads."""
        handle, self._handle = self._handle, None
        if handle is not None:
            if self._process == os.getpid():  # a forked child has no threads to end, and would wait for them
                self._library.visavis_decode_free(handle)
            self._kept.clear()

    def __del__(self) -> None:
        if getattr(self, "_handle", None) is not None:
            self.close()

    def _linear(self, weight: torch.Tensor, bias: torch.Tensor | None) -> _Linear:
        if not weight.is_contiguous():
            raise ValueError("the compiled decode step reads row-major weights")
        self._kept.append(weight)
        n, k = weight.shape
        return _Linear(
            weight.data_ptr(), None, self._floats(bias) if bias is not None else None, n, k, TYPES[weight.dtype], 0
        )

    def _floats(self, tensor: torch.Tensor) -> int:
        kept = tensor.float().contiguous()
        self._kept.append(kept)
        return kept.data_ptr()


@cache
def _library() -> ctypes.CDLL:
    """Raises BuildError when it cannot be had."""
    path = find_library()
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise BuildError(f"{path} cannot be loaded: {error}") from None
    library.visavis_decode_new.argtypes = [POINTER(_Model)]
    library.visavis_decode_new.restype = c_void_p
    library.visavis_decode_free.argtypes = [c_void_p]
    library.visavis_decode_free.restype = None
    library.visavis_decode_step.argtypes = [c_void_p, c_int, *[c_void_p] * 4, c_int, *[c_void_p] * 2]
    library.visavis_decode_step.restype = None
    sizes = library.visavis_decode_model_size(), library.visavis_decode_layer_size()
    if sizes != (ctypes.sizeof(_Model), ctypes.sizeof(_Layer)):
        raise BuildError(f"{path} lays its structures out otherwise: {sizes}")
    return library
