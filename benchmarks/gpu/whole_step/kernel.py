"""`WholeStep`: a decode step of one request, all layers and the head, as one persistent kernel (whole_step.cu).

Five kernels a layer leave the memory idle each time one ends and the next begins, about a third of a step of a small
model. Here one block a multiprocessor stays for the whole step, and weights stream in without regard to where the
arithmetic is. bfloat16, dense weights, compute capability 9.0.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.gpu.whole_step.nvrtc import Kernel, compile_cubin

if TYPE_CHECKING:
    from visavis.engine.kernels.cuda.step import DecodeStep
    from visavis.engine.model_config import ModelConfig

__all__ = ["UnsuitableError", "WholeStep", "constants_for"]

SOURCE = Path(__file__).with_name("whole_step.cu")
WARPS = 8
THREADS = 32 * WARPS + 32
CHUNK = 256
"""Tokens of a block's share of the keys, at most; with SPLITS the longest context."""
SPLITS = 16
LONGEST_UNIT = 2048
"""Values of a row that one warp multiplies at a time, at most."""
SHARED_MEMORY = 227 << 10
"""Bytes a block may have on compute capability 9.0, where torch does not say."""


class UnsuitableError(ValueError):
    """A model's dimensions do not fit the kernel."""


class Arguments(ctypes.Structure):
    """`Step` of whole_step.cu."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in (
            "layers", "head", "norm", "hidden", "state", "qkv", "inner", "parts", "peaks", "logits",
            "context", "position",
            "seat", "tables",
        )),
        ("table_stride", ctypes.c_longlong),
        *((name, ctypes.c_void_p) for name in ("cosines", "sines", "counters")),
        ("eps", ctypes.c_float),
    ]  # fmt: skip


def _segments(width: int) -> int | None:
    """Into how many units of whole 16 bytes a row is cut."""
    return next((n for n in (1, 2, 4, 8, 16) if width % (8 * n) == 0 and width // n <= LONGEST_UNIT), None)


def _round_up(n: int, to: int) -> int:
    return -(-n // to) * to


def constants_for(c: ModelConfig, blocks: int, block_size: int, shared: int) -> tuple[dict[str, int], int] | None:
    """The constants of whole_step.cu and the bytes of shared memory it takes; None where a model does not suit it."""
    group, width = c.num_heads // c.num_kv_heads, c.num_heads * c.head_dim
    widths = {"S_QKV": c.hidden_size, "S_OUT": width, "S_UP": c.hidden_size, "S_DOWN": c.intermediate_size,
              "S_HEAD": c.hidden_size}  # fmt: skip
    segments = {name: _segments(k) for name, k in widths.items()}
    splits = min(SPLITS, blocks // c.num_kv_heads)
    qkv = (c.num_heads + 2 * c.num_kv_heads) * c.head_dim
    shares = {n: n // blocks + 1 for n in (qkv, c.hidden_size, c.intermediate_size, c.vocab_size)}  # rows of a block
    if (
        None in segments.values() or c.head_dim not in (64, 128) or group > WARPS or splits < 1
        or max(shares[qkv], shares[c.hidden_size]) > 32 * WARPS or c.hidden_size % 8 or width % 8
    ):  # fmt: skip
        return None
    cut = {name: n for name, n in segments.items() if n is not None}
    rows = shares[c.intermediate_size]
    sums = max(2 * rows * cut["S_UP"], shares[c.vocab_size] * cut["S_HEAD"], shares[qkv] * cut["S_QKV"],
               shares[c.hidden_size] * max(cut["S_OUT"], cut["S_DOWN"]), 8 * CHUNK)  # fmt: skip
    x = _round_up(max(c.hidden_size, width, c.intermediate_size, 1024 * group), 8)
    stage = _round_up(max(2 * WARPS * k // cut[name] for name, k in widths.items()), 128)
    fixed = 128 + 4 * (group + 1) * c.head_dim + 2 * x + 4 * sums
    stages = (shared - fixed) // (stage + 16)
    if stages < 3:
        return None
    constants = {
        "H": c.hidden_size, "I": c.intermediate_size, "NH": c.num_heads, "NK": c.num_kv_heads, "D": c.head_dim,
        "V": c.vocab_size, "LAYERS": c.num_layers, "BLOCKS": blocks, "BLOCK_SIZE": block_size, "SPLITS": splits,
        "STAGE": stage, "STAGES": stages, "ROWS": rows, "X_VALUES": x, "QK_NORM": int(c.qk_norm), **cut,
    }  # fmt: skip
    return constants, fixed + stages * (stage + 16)


class WholeStep:
    def __init__(self, step: DecodeStep) -> None:
        c, launcher = step.model.config, step.launcher
        device = launcher.device
        shared = getattr(torch.cuda.get_device_properties(device), "shared_memory_per_block_optin", SHARED_MEMORY)
        found = constants_for(c, launcher.processors, step.cache.block_size, shared)
        if found is None:
            raise UnsuitableError("this model's dimensions do not suit it")
        constants, shared_bytes = found
        major, minor = torch.cuda.get_device_capability(device)
        cubin = compile_cubin(SOURCE.read_text(encoding="utf-8"), constants, f"sm_{major}{minor}")
        self.kernel = Kernel(cubin, "whole_step", shared_bytes)
        self.blocks = launcher.processors
        splits = constants["SPLITS"]
        self.tokens = splits * CHUNK
        """The longest context, the new token included."""
        layers = []
        for layer in step.model.layers:
            norms = (None, None) if layer.qk_norm is None else (layer.qk_norm[0].weight, layer.qk_norm[1].weight)
            matrices = [t for m in (layer.qkv, layer.output, layer.gate_up, layer.down) for t in (m.weight, m.bias)]
            pointers = [*matrices, layer.input_norm.weight, layer.mlp_norm.weight, *norms, step.layers[layer.index]]
            layers.append([0 if t is None else t.data_ptr() for t in pointers])
        self.layers = torch.tensor(layers, dtype=torch.int64, device=device)
        self.parts = torch.empty(c.num_heads * splits * c.head_dim, device=device)
        qkv = (c.num_heads + 2 * c.num_kv_heads) * c.head_dim
        widths = (c.hidden_size, qkv, c.intermediate_size)
        self.words = [torch.zeros(n, dtype=torch.int32, device=device) for n in widths]
        self.peaks = torch.empty(2 * c.num_heads * splits, device=device)
        self.counters = torch.zeros((c.num_layers + 1, 32), dtype=torch.int32, device=device)
        self.step = step

    def __call__(self, columns: dict[str, torch.Tensor]) -> None:
        """From `step.hidden` to `step.logits`, of one row."""
        s = self.step
        where: dict[str, Any] = {
            "layers": self.layers, "head": s.model.lm_head, "norm": s.model.norm.weight, "hidden": s.hidden,
            "state": self.words[0], "qkv": self.words[1], "inner": self.words[2], "parts": self.parts,
            "peaks": self.peaks, "logits": s.logits,
            "context": columns["context"], "position": columns["position"], "seat": columns["seat"],
            "tables": s.tables, "cosines": s.cos, "sines": s.sin, "counters": self.counters,
        }  # fmt: skip
        arguments = Arguments(
            **{name: tensor.data_ptr() for name, tensor in where.items()},
            table_stride=s.tables.stride(0),
            eps=s.model.norm.eps,
        )
        self.kernel(self.blocks, THREADS, arguments)
