"""How a model is divided over ranks: the sizes of one of them, and which part of each tensor it takes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from visavis.engine.communicator import columns_of
from visavis.engine.model_config import ModelConfig, VisionConfig
from visavis.engine.quantization.places import Place, Share, taking
from visavis.engine.quantization.scheme import Scheme
from visavis.errors import OptionError

__all__ = ["Shares", "config_of_one", "shares_of", "vision_places"]


def config_of_one(config: ModelConfig, size: int, scheme: Scheme | None = None) -> ModelConfig:
    """The sizes that one of `size` ranks computes with. Raises OptionError for a model that does not divide."""
    if size == 1:
        return config
    if (why := _why_not(config, size, scheme)) is not None:
        possible = [n for n in range(1, config.num_heads + 1) if _why_not(config, n, scheme) is None]
        raise OptionError(
            f"tensor_parallel_size {size} does not divide this model: {why}; possible: {', '.join(map(str, possible))}"
        )
    return replace(
        config,
        num_heads=config.num_heads // size,
        num_kv_heads=max(config.num_kv_heads // size, 1),
        intermediate_size=config.intermediate_size // size,
        vision=None if config.vision is None else _vision_of_one(config.vision, size),
        shards=size,
        whole_kv_heads=config.num_kv_heads,
    )


def _why_not(config: ModelConfig, size: int, scheme: Scheme | None) -> str | None:
    heads, kv_heads, inner = config.num_heads, config.num_kv_heads, config.intermediate_size
    if heads % size:
        return f"it has {heads} attention heads"
    if kv_heads % size and size % kv_heads:
        return f"it has {kv_heads} key-value heads"
    if inner % size:
        return f"its MLPs have {inner} columns"
    if scheme is None or not scheme.is_checkpoint or scheme.group_size == -1:
        return None
    group = scheme.group_size
    if heads // size * config.head_dim % group or inner // size % group:
        return (
            f"{heads // size * config.head_dim} and {inner // size} columns are no whole groups of {group} of its "
            f"{scheme.method} weights"
        )
    return None


def _vision_of_one(vision: VisionConfig, size: int) -> VisionConfig:
    if vision.num_heads % size or vision.intermediate_size % size or vision.hidden_size * vision.merge_size**2 % size:
        return vision  # whole, on rank 0
    return replace(
        vision,
        num_heads=vision.num_heads // size,
        intermediate_size=vision.intermediate_size // size,
        shards=size,
    )


class Shares(NamedTuple):
    """Of the decoder's matrices, whichever layer; None: all of it."""

    queries: Share | None = None
    keys: Share | None = None  # and values
    output: Share | None = None
    gates: Share | None = None  # and ups
    down: Share | None = None
    head: Share | None = None


def shares_of(config: ModelConfig, rank: int) -> Shares:
    """`config`: of one rank."""
    size, kv_heads = config.shards, config.whole_kv_heads
    if size == 1:
        return Shares()
    queries, inner = config.num_heads * config.head_dim, config.intermediate_size
    repeats = max(size // kv_heads, 1)  # with more ranks than key heads, neighbours have the same one
    keys = config.num_kv_heads * config.head_dim
    return Shares(
        queries=Share(0, rank * queries, size * queries),
        keys=Share(0, rank // repeats * keys, kv_heads * config.head_dim),
        output=Share(1, rank * queries, size * queries),
        gates=Share(0, rank * inner, size * inner),
        down=Share(1, rank * inner, size * inner),
        head=Share(0, columns_of(rank, size, config.vocab_size)[0], config.vocab_size),
    )


_ROWS = re.compile(r"\.(fc1|linear_fc1|gate_proj|up_proj|mlp\.0)\.(weight|bias)$")
_COLUMNS = re.compile(r"\.(attn\.proj|fc2|linear_fc2|down_proj|mlp\.2)\.weight$")
_FUSED = re.compile(r"\.attn\.qkv\.(weight|bias)$")


def vision_places(weights: Iterable[tuple[str, torch.Tensor]], config: VisionConfig, rank: int) -> dict[str, Place]:
    """Where the checkpoint's tensors of a vision tower go; `config` is of one rank."""
    return {name: _vision_place(name, tensor, config.shards, rank) for name, tensor in weights}


def _vision_place(name: str, tensor: torch.Tensor, size: int, rank: int) -> Place:
    if size == 1:
        return tensor
    if _FUSED.search(name):
        return _FusedPlace(tensor, rank, size)
    dim = 0 if _ROWS.search(name) else 1 if _COLUMNS.search(name) else None
    if dim is None:
        return tensor
    return taking(tensor, Share(dim, rank * tensor.shape[dim], size * tensor.shape[dim]))


@dataclass(frozen=True, slots=True)
class _FusedPlace:
    """Queries, keys and values in one: of each its part."""

    place: torch.Tensor
    rank: int
    size: int

    @property
    def shape(self) -> torch.Size:
        return torch.Size((self.size * self.place.shape[0], *self.place.shape[1:]))

    def copy_(self, tensor: torch.Tensor) -> None:
        mine, whole = self.place.unflatten(0, (3, -1)), tensor.unflatten(0, (3, -1))
        mine.copy_(whole.narrow(1, self.rank * mine.shape[1], mine.shape[1]))
