"""The vision tower of Qwen2-VL, Qwen2.5-VL and Qwen3-VL: one shape, with options where the three part."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F

from visavis.engine.kernels.base import Kernels, Linear, Rotation
from visavis.engine.model_config import VisionConfig
from visavis.engine.models.rope import rotation
from visavis.engine.models.vision_layout import (
    Grid,
    Run,
    frame_runs,
    interpolation_taps,
    patch_positions,
    window_layout,
)

__all__ = ["VisionOutput", "VisionTower"]

EPS = 1e-6
"""Of every norm in these towers; their configurations do not state it."""


def _quick_gelu(x: torch.Tensor) -> torch.Tensor:
    """x · sigmoid(1.702 x), in place: three passes over memory and none of it new."""
    return F.silu(x.mul_(1.702), inplace=True).mul_(1 / 1.702)


ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "quick_gelu": _quick_gelu,
    "gelu": F.gelu,
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
}
"""They may write over what they are given."""

Weights = Iterator[tuple[str, torch.Tensor]]


class VisionOutput(NamedTuple):
    """`embeddings` (cells, text hidden) stand for the visual tokens; `deepstack` (cells, k, text hidden) is added after
    the decoder's first k layers (None where the family has none)."""

    embeddings: torch.Tensor
    deepstack: torch.Tensor | None


class _Norm(Protocol):
    weight: torch.Tensor

    def __call__(self, x: torch.Tensor) -> torch.Tensor: ...


class LayerNorm:
    def __init__(self, size: int, kernels: Kernels) -> None:
        self.weight = torch.empty(size, device=kernels.device, dtype=kernels.activation_dtype)
        self.bias = torch.empty(size, device=kernels.device, dtype=kernels.activation_dtype)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, EPS)


class _Order(NamedTuple):
    """How attention sees the patches: `runs` in the order that `gather` brings about (None: as they lie)."""

    runs: list[Run]
    gather: torch.Tensor | None = None
    scatter: torch.Tensor | None = None


class Block:
    def __init__(self, config: VisionConfig, kernels: Kernels) -> None:
        size = config.hidden_size
        self.kernels = kernels
        self.num_heads = config.num_heads
        self.activation = ACTIVATIONS[config.activation]
        self.gated = config.kind == "qwen2_5_vl"
        self.norm1 = _make_norm(config, size, kernels)
        self.norm2 = _make_norm(config, size, kernels)
        self.qkv = kernels.linear(size, 3 * size, bias=True)
        self.proj = kernels.linear(size, size, bias=True)
        self.up = kernels.linear(size, config.intermediate_size * (2 if self.gated else 1), bias=True)
        self.down = kernels.linear(config.intermediate_size, size, bias=True)
        self.mlp_names = {
            "qwen2_vl": (("fc1",), "fc2"),
            "qwen2_5_vl": (("gate_proj", "up_proj"), "down_proj"),
            "qwen3_vl": (("linear_fc1",), "linear_fc2"),
        }[config.kind]

    def __call__(self, x: torch.Tensor, turn: Rotation, order: _Order) -> torch.Tensor:
        """x: (patches, hidden)."""
        x = self.proj.add_to(x, self._attend(self.norm1(x), turn, order))
        inner = self.up(self.norm2(x))
        if self.gated:
            gate, up = inner.chunk(2, dim=-1)
            inner = self.activation(gate).mul_(up)
        else:
            inner = self.activation(inner)
        return self.down.add_to(x, inner)

    def _attend(self, x: torch.Tensor, turn: Rotation, order: _Order) -> torch.Tensor:
        patches, hidden = x.shape
        qkv = self.qkv(x).view(patches, 3, self.num_heads, -1)
        queries_keys = qkv[:, :2].flatten(1, 2)
        if queries_keys.dtype == torch.float32 or self.kernels.rotates_in_float32:
            self.kernels.rotate_(queries_keys, turn)
        else:  # the reference rotates in float32 whatever the model's dtype
            wide = queries_keys.float()
            self.kernels.rotate_(wide, turn)
            queries_keys.copy_(wide)
        if order.gather is not None:
            qkv = qkv.index_select(0, order.gather)
        parts = []
        for run, part in zip(order.runs, qkv.split([run.repeats * run.length for run in order.runs]), strict=True):
            q, k, v = part.view(run.repeats, run.length, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
            out = F.scaled_dot_product_attention(q, k, v)
            parts.append(out.transpose(1, 2).reshape(run.repeats * run.length, hidden))
        joined = parts[0] if len(parts) == 1 else torch.cat(parts)
        return joined if order.scatter is None else joined.index_select(0, order.scatter)

    def weights(self) -> Weights:
        yield from _norm_weights("norm1", self.norm1)
        yield from _norm_weights("norm2", self.norm2)
        yield from _linear_weights(("attn.qkv",), self.qkv)
        yield from _linear_weights(("attn.proj",), self.proj)
        up, down = self.mlp_names
        yield from _linear_weights(tuple(f"mlp.{name}" for name in up), self.up)
        yield from _linear_weights((f"mlp.{down}",), self.down)


class Merger:
    """merge² patches become one token of the text's width."""

    def __init__(self, config: VisionConfig, kernels: Kernels, names: tuple[str, str, str], late_norm: bool = False):
        self.wide = config.hidden_size * config.merge_size**2
        self.late_norm = late_norm  # over the joined patches instead of each one
        self.names = names
        self.norm = _make_norm(config, self.wide if late_norm else config.hidden_size, kernels)
        self.first = kernels.linear(self.wide, self.wide, bias=True)
        self.second = kernels.linear(self.wide, config.out_hidden_size, bias=True)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(x.view(-1, self.wide)) if self.late_norm else self.norm(x).view(-1, self.wide)
        return self.second(F.gelu(self.first(x)))

    def weights(self) -> Weights:
        norm, first, second = self.names
        yield from _norm_weights(norm, self.norm)
        yield from _linear_weights((first,), self.first)
        yield from _linear_weights((second,), self.second)


class VisionTower:
    def __init__(self, config: VisionConfig, kernels: Kernels) -> None:
        self.config = config
        self.device = kernels.device
        self.dtype = kernels.activation_dtype
        qwen3 = config.kind == "qwen3_vl"
        self.patch_embed = kernels.linear(config.patch_dim, config.hidden_size, bias=qwen3)
        self.blocks = [Block(config, kernels) for _ in range(config.depth)]
        names = ("norm", "linear_fc1", "linear_fc2") if qwen3 else ("ln_q", "mlp.0", "mlp.2")
        self.merger = Merger(config, kernels, names)
        self.deepstack = [Merger(config, kernels, names, late_norm=True) for _ in config.deepstack_layers]
        self.positions = (
            torch.empty(
                (config.num_position_embeddings, config.hidden_size),
                device=kernels.device,
                dtype=kernels.activation_dtype,
            )
            if config.num_position_embeddings
            else None
        )
        quarter = config.hidden_size // config.num_heads // 4
        frequencies = torch.arange(quarter, dtype=torch.float32) / quarter
        self.inv_freq = 1.0 / (config.rope_theta**frequencies)

    def __call__(self, patches: torch.Tensor, grids: Sequence[Grid]) -> VisionOutput:
        """patches: (n, channels · frames · size²) float32 of all `grids`, one after the other.

        Grids of one frame size should be neighbours: they then share their attention calls.
        """
        config = self.config
        x = self.patch_embed(patches.to(device=self.device, dtype=self.dtype))
        if self.positions is not None:
            side = int(config.num_position_embeddings**0.5)
            taps, weights = (part.to(self.device) for part in interpolation_taps(grids, config.merge_size, side))
            x += (self.positions[taps] * weights[:, :, None]).sum(1).to(self.dtype)
        places = patch_positions(grids, config.merge_size)
        whole = windowed = _Order(frame_runs(grids))
        inverse = None
        if config.window_size:
            layout = window_layout(
                grids, config.merge_size, config.window_size // config.merge_size // config.patch_size
            )
            to_windows, to_frames = (_cells_to_patches(cells, config.merge_size) for cells in layout[:2])
            places = places[to_windows]
            inverse = layout.inverse.to(self.device)
            to_windows, to_frames = to_windows.to(self.device), to_frames.to(self.device)
            x = x.index_select(0, to_windows)
            windowed = _Order(layout.runs)
            whole = _Order(whole.runs, gather=to_frames, scatter=to_windows)
        angles = (places[:, :, None] * self.inv_freq).flatten(1).to(self.device)
        turn = rotation(angles, torch.float32)

        deepstack: list[torch.Tensor] = []
        for index, block in enumerate(self.blocks):
            full = not config.window_size or index in config.full_attention_layers
            x = block(x, turn, whole if full else windowed)
            if index in config.deepstack_layers:
                deepstack.append(self.deepstack[config.deepstack_layers.index(index)](x))
        merged = self.merger(x)
        if inverse is not None:
            merged = merged.index_select(0, inverse)
        return VisionOutput(merged, torch.stack(deepstack, dim=1) if deepstack else None)

    def weights(self) -> Weights:
        """Names as in the checkpoint, from `visual.` on, and the memory each goes to."""
        c = self.config
        shape = (c.hidden_size, c.in_channels, c.temporal_patch_size, c.patch_size, c.patch_size)
        # The checkpoint has a convolution whose stride is its kernel, which is a product over flattened patches.
        yield "visual.patch_embed.proj.weight", self.patch_embed.weight.unflatten(1, shape[1:])
        if self.patch_embed.bias is not None:
            yield "visual.patch_embed.proj.bias", self.patch_embed.bias
        if self.positions is not None:
            yield "visual.pos_embed.weight", self.positions
        parts: list[tuple[str, Block | Merger]] = [(f"blocks.{i}", block) for i, block in enumerate(self.blocks)]
        parts.append(("merger", self.merger))
        parts += [(f"deepstack_merger_list.{i}", merger) for i, merger in enumerate(self.deepstack)]
        for prefix, part in parts:
            for name, tensor in part.weights():
                yield f"visual.{prefix}.{name}", tensor


def _make_norm(config: VisionConfig, size: int, kernels: Kernels) -> _Norm:
    return kernels.rms_norm(size, EPS) if config.kind == "qwen2_5_vl" else LayerNorm(size, kernels)


def _cells_to_patches(cells: torch.Tensor, merge: int) -> torch.Tensor:
    """Indices of cells → indices of their patches, merge² each."""
    return (cells[:, None] * merge**2 + torch.arange(merge**2)).view(-1)


def _norm_weights(name: str, norm: _Norm) -> Weights:
    yield f"{name}.weight", norm.weight
    if isinstance(norm, LayerNorm):
        yield f"{name}.bias", norm.bias


def _linear_weights(names: tuple[str, ...], linear: Linear) -> Weights:
    """The parts of equal size that `names` were fused from."""
    for name, part in zip(names, linear.weight.chunk(len(names)), strict=True):
        yield f"{name}.weight", part
    if linear.bias is not None:
        for name, part in zip(names, linear.bias.chunk(len(names)), strict=True):
            yield f"{name}.bias", part
