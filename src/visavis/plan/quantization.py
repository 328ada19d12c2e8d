"""How many bytes a quantised weight takes, scheme by scheme, and which modules a checkpoint leaves alone."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from visavis.errors import ModelError, OptionError, shorten

__all__ = ["LOAD_TIME", "Quantization", "by_name", "from_config"]


@dataclass(frozen=True, slots=True)
class Quantization:
    """One weight format for the linear layers. The bytes of an (out, in) weight are

    `out·in·bits/8 + groups·(scale_bytes + zero_bits/8) + in·index_bytes`,

    where groups are `out·⌈in/group⌉` (one scale for each `group` inputs of a row), or `⌈out/rows⌉·⌈in/group⌉` when a
    scale covers `rows` rows too. `group` 0 means all inputs, `rows` 0 all rows. Norms, biases and expert routers stay
    as they are in every format, embedding and lm_head too unless `embedding` and `lm_head` say otherwise.
    """

    name: str
    bits: float
    group: int = 0
    rows: int = 1
    scale_bytes: float = 2.0
    zero_bits: float = 0.0
    index_bytes: int = 0  # GPTQ's g_idx: the group of each input
    ignore: tuple[str, ...] = ()  # modules left in the checkpoint's dtype
    vision: bool = False  # also the vision tower's linear layers, where `ignore` does not name them
    lm_head: bool = False
    embedding: bool = False

    def linear_bytes(self, out: int, inputs: int) -> float:
        """Bytes of one (out, inputs) weight with its scales, zeros and indices."""
        in_groups = math.ceil(inputs / self.group) if self.group else 1
        groups = math.ceil(out / self.rows) * in_groups if self.rows else in_groups
        return (
            out * inputs * self.bits / 8 + groups * (self.scale_bytes + self.zero_bits / 8) + inputs * self.index_bytes
        )

    @property
    def bytes_per_weight(self) -> float:
        """Of a large matrix, scales included: 0.52 for 4 bits in groups of 128."""
        return self.linear_bytes(8192, 8192) / 8192**2

    @property
    def method(self) -> str:
        """transformers' `quant_method` of this format."""
        if "compressed-tensors" in self.name:
            return "compressed-tensors"
        return self.name.split("-")[0]

    def keeps(self, module: str) -> bool:
        """Whether the checkpoint leaves `module` (`layers.0.mlp.gate_proj`, `visual.…`, `lm_head`) unquantised."""
        return bool(self.ignore) and _named(self.ignore, module)


# What engines can make of 16-bit weights while loading them; checkpoints have the same formats.
LOAD_TIME: dict[str, Quantization] = {
    "int8": Quantization("int8", 8, scale_bytes=2),  # weight only, one scale a row
    "int4": Quantization("int4", 4, group=128, scale_bytes=2, zero_bits=4),
    "fp8": Quantization("fp8", 8, rows=0, scale_bytes=4),  # one scale a matrix
}
_CHECKPOINTS = {
    "awq": Quantization("awq", 4, group=128, scale_bytes=2, zero_bits=4),
    "gptq": Quantization("gptq", 4, group=128, scale_bytes=2, zero_bits=4, index_bytes=4),
    "bitsandbytes-nf4": Quantization("bitsandbytes-nf4", 4, group=64, scale_bytes=4),
    "bitsandbytes-int8": Quantization("bitsandbytes-int8", 8, scale_bytes=4),
}
_ALIASES = {"4bit": "int4", "8bit": "int8", "w8a16": "int8", "w4a16": "int4", "bnb": "bitsandbytes-nf4"}


def by_name(name: str | None, *, where: str = "--quantization") -> Quantization | None:
    """The format of that name; None for None and `none`. Raises OptionError with the nearest known name."""
    if name is None or name.lower() in ("none", "no", "off"):
        return None
    key = _ALIASES.get(name.lower(), name.lower())
    known = {**LOAD_TIME, **_CHECKPOINTS}
    if key not in known:
        near = difflib.get_close_matches(key, known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"known: none, {', '.join(known)}"
        raise OptionError(f"{where}: unknown quantization {shorten(name)}; {hint}")
    return known[key]


def from_config(config: Any, *, where: str = "config.json") -> Quantization | None:
    """The format a checkpoint's `quantization_config` declares; None without one. Raises ModelError if unknown."""
    if config is None:
        return None
    if not isinstance(config, Mapping):
        raise ModelError(f"{where}: quantization_config is {shorten(config)}; an object is needed")
    method = str(config.get("quant_method", "")).lower()
    ignore = _names(config, "modules_to_not_convert", "ignore", "ignored_layers", "llm_int8_skip_modules")
    bits = _number(config, "bits", "w_bit", "weight_bits", default=4)
    group = max(0, int(_number(config, "group_size", "q_group_size", default=128)))
    if method == "awq":
        return Quantization("awq", bits, group, zero_bits=bits, ignore=ignore)
    if method == "gptq":
        head = bool(config.get("lm_head", False))
        return Quantization("gptq", bits, group, zero_bits=bits, index_bytes=4, ignore=ignore, lm_head=head)
    if method == "fp8":
        return _fp8(config, ignore)
    if method == "bitsandbytes":
        return _bitsandbytes(config, ignore)
    if method in ("compressed-tensors", "compressed_tensors"):
        return _compressed_tensors(config, ignore, where)
    known = "awq, gptq, fp8, bitsandbytes, compressed-tensors"
    raise ModelError(
        f"{where}: quantization_config.quant_method {shorten(method)} is not known; known: {known}; "
        "give --quantization with the nearest of them to plan all the same"
    )


def _fp8(config: Mapping[str, Any], ignore: tuple[str, ...]) -> Quantization:
    block = config.get("weight_block_size")
    if isinstance(block, Sequence) and len(block) == 2:
        # Scales lie as bf16 or fp32 in checkpoints; engines hold them in fp32.
        return Quantization(
            "fp8", 8, group=int(block[1]), rows=int(block[0]), scale_bytes=4, ignore=ignore, vision=bool(ignore)
        )
    return replace(LOAD_TIME["fp8"], ignore=ignore, vision=bool(ignore))


def _bitsandbytes(config: Mapping[str, Any], ignore: tuple[str, ...]) -> Quantization:
    ignore = ignore or ("lm_head",)
    if config.get("load_in_8bit") or config.get("_load_in_8bit"):
        return replace(_CHECKPOINTS["bitsandbytes-int8"], ignore=ignore, vision=True)
    scale = 4.0
    if config.get("bnb_4bit_use_double_quant"):
        scale = 1 + 4 / 256  # absmax values are themselves 8-bit in blocks of 256 (arXiv:2305.14314)
    return replace(_CHECKPOINTS["bitsandbytes-nf4"], scale_bytes=scale, ignore=ignore, vision=True)


def _compressed_tensors(config: Mapping[str, Any], ignore: tuple[str, ...], where: str) -> Quantization:
    groups = config.get("config_groups")
    weights: Any = None
    if isinstance(groups, Mapping) and groups:
        first = next(iter(groups.values()))
        weights = first.get("weights") if isinstance(first, Mapping) else None
    if not isinstance(weights, Mapping):
        raise ModelError(f"{where}: quantization_config.config_groups has no weights; cannot tell their size")
    bits = _number(weights, "num_bits", default=8)
    strategy = str(weights.get("strategy") or "channel")
    kind = "fp" if weights.get("type") == "float" else "int"
    zero = 0.0 if weights.get("symmetric", True) else float(bits)
    base = Quantization(
        f"{kind}{bits:g} compressed-tensors",
        bits,
        zero_bits=zero,
        ignore=ignore,
        vision=True,
        lm_head="lm_head" not in ignore,
    )
    if strategy in ("group", "tensor_group"):
        group = int(_number(weights, "group_size", default=128))
        scale = 1.0 if strategy == "tensor_group" else 2.0  # NVFP4 keeps fp8 scales
        return replace(base, group=group, scale_bytes=scale)
    if strategy == "block":
        rows, columns = weights.get("block_structure") or (128, 128)
        return replace(base, group=int(columns), rows=int(rows), scale_bytes=4)
    if strategy == "tensor":
        return replace(base, rows=0, scale_bytes=4)
    return replace(base, scale_bytes=4)


def _names(config: Mapping[str, Any], *keys: str) -> tuple[str, ...]:
    for key in keys:
        value = config.get(key)
        if isinstance(value, list | tuple) and value:
            return tuple(str(v) for v in value)
    return ()


def _number(config: Mapping[str, Any], *keys: str, default: float) -> float:
    for key in keys:
        value = config.get(key)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return value
    return default


_PREFIX = re.compile(r"^(model\.)?(language_model\.)?(model\.)?")


@lru_cache(maxsize=16)
def _patterns(ignore: tuple[str, ...]) -> tuple[frozenset[str], tuple[re.Pattern[str], ...]]:
    """Module paths and (those after `re:`) expressions of an ignore list; checkpoints list hundreds of them."""
    paths = frozenset(_PREFIX.sub("", p) for p in ignore if not p.startswith("re:"))
    expressions = []
    for pattern in ignore:
        if pattern.startswith("re:"):
            try:
                expressions.append(re.compile(pattern.removeprefix("re:")))
            except re.error:
                continue
    return paths, tuple(expressions)


def _named(ignore: tuple[str, ...], module: str) -> bool:
    """Whether a pattern is `module`, a part of its path, or an expression that matches it."""
    paths, expressions = _patterns(ignore)
    parts = module.split(".")
    pieces = (".".join(parts[i:j]) for i in range(len(parts)) for j in range(i + 1, len(parts) + 1))
    if any(piece in paths for piece in pieces):
        return True
    return any(e.match(prefix + module) for e in expressions for prefix in ("", "model.", "model.language_model."))
