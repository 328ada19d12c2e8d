"""`Scheme`: what the decoder's matrices are in, read from a checkpoint's config.json or asked for at load."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from visavis.errors import ModelError, shorten

__all__ = ["AT_LOAD", "CHECKPOINTS", "Scheme"]

AT_LOAD = ("int8", "int4")
"""Made of dense checkpoints while they load."""
CHECKPOINTS = ("awq", "gptq")
"""Checkpoints that come quantised."""
GROUP_SIZES = (32, 64)  # and multiples of 128, and -1: a whole row


@dataclass(frozen=True, slots=True)
class Scheme:
    """Embedding, head, norms and vision tower are dense in all of them."""

    method: str  # of AT_LOAD or CHECKPOINTS
    bits: int
    group_size: int  # columns that share a scale; -1: a whole row
    scale_dtype: torch.dtype = torch.float16
    zeros_less_one: bool = False  # GPTQ's first format stores each zero less one
    names: frozenset[str] | None = None  # the checkpoint's tensors, by their canonical names; None: not looked at

    @classmethod
    def at_load(cls, method: str) -> Scheme:
        return cls("int8", 8, -1, torch.float32) if method == "int8" else cls("int4", 4, 128)

    @classmethod
    def from_config(cls, config: Any) -> Scheme | None:
        """What a `quantization_config` declares; None without one. Raises ModelError naming what is not supported."""
        if not config:
            return None
        if not isinstance(config, Mapping):
            raise ModelError(f"config.json: quantization_config is {shorten(config)}; an object is needed")
        method = str(config.get("quant_method", "unnamed")).lower()
        if method not in CHECKPOINTS:
            raise ModelError(
                f"quantized weights ({shorten(method)}) are not supported by the native engine, which reads "
                f"{' and '.join(CHECKPOINTS)}; try --backend hf"
            )
        try:
            bits = int(config.get("bits", config.get("w_bit", 4)))
            group = int(config.get("group_size", config.get("q_group_size", 128)))
        except (TypeError, ValueError) as error:
            raise ModelError(f"config.json: quantization_config cannot be read: {shorten(str(error))}") from None
        if bits != 4 and (method, bits) != ("gptq", 8):
            raise ModelError(f"{method} of {bits} bits is not supported by the native engine; try --backend hf")
        if group != -1 and group not in GROUP_SIZES and (group <= 0 or group % 128):
            raise ModelError(
                f"{method} groups of {group} are not supported by the native engine (32, 64, multiples of 128 and -1 "
                "are); try --backend hf"
            )
        version = str(config.get("version", "gemm")).lower()
        if method == "awq" and version != "gemm":
            raise ModelError(f"awq version {shorten(version)} is not supported by the native engine, which reads gemm")
        stored = str(config.get("checkpoint_format", "gptq")).lower()
        if method == "gptq" and stored not in ("gptq", "gptq_v2", ""):
            raise ModelError(
                f"gptq checkpoint_format {shorten(stored)} is not supported by the native engine, which reads gptq "
                "and gptq_v2; try --backend hf"
            )
        if config.get("lm_head") is True:
            raise ModelError("a quantised lm_head is not supported by the native engine; try --backend hf")
        return cls(method, bits, group, zeros_less_one=method == "gptq" and stored != "gptq_v2")

    @property
    def is_checkpoint(self) -> bool:
        return self.method in CHECKPOINTS

    def found_in(self, names: Collection[str]) -> Scheme:
        """The same for a checkpoint with these tensors: they say which matrices are codes."""
        return replace(self, names=frozenset(names))

    def is_stored(self, matrix: str) -> bool:
        """Whether the checkpoint has codes of this matrix (`layers.0.mlp.up_proj`)."""
        return self.is_checkpoint and (self.names is None or f"{matrix}.qweight" in self.names)

    def has(self, name: str) -> bool:
        """Whether the checkpoint is known to have this tensor."""
        return self.names is not None and name in self.names

    def group_of(self, k: int) -> int:
        """Columns that share a scale in a matrix of `k` columns: `group_size`, or, of codes made at load, what divides
        them."""
        if self.group_size == -1:
            return k
        if self.is_checkpoint:
            return self.group_size
        return next((g for g in (self.group_size, 64, 32) if k % g == 0), k)
