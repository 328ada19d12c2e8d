"""The vision tower of Qwen2-VL, Qwen2.5-VL and Qwen3-VL: one shape, with options where the three part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F

from visavis.engine.kernels.base import Kernels, Linear, Norm, Rotation, SummedLinear
from visavis.engine.kernels.vision import LayerNorm, Order, VisionOps
from visavis.engine.model_config import VisionConfig
from visavis.engine.models.rope import rotation
from visavis.engine.models.vision_layout import (
    Grid,
    frame_runs,
    interpolation_taps,
    patch_positions,
    window_layout,
)
from visavis.engine.transfer import send

__all__ = ["VisionOutput", "VisionTower"]

EPS = 1e-6
"""Of every norm in these towers; their configurations do not state it."""


Weights = Iterator[tuple[str, torch.Tensor]]


class VisionOutput(NamedTuple):
    """`embeddings` (cells, text hidden) stand for the visual tokens; `deepstack` (cells, k, text hidden) is added after
    the decoder's first k layers (None where the family has none)."""

    embeddings: torch.Tensor
    deepstack: torch.Tensor | None


class Block:
    def __init__(self, config: VisionConfig, kernels: Kernels, ops: VisionOps) -> None:
        size = config.hidden_size
        self.ops = ops
        self.num_heads = config.num_heads
        self.activation = config.activation
        self.gated = config.kind == "qwen2_5_vl"
        self.norm1 = _make_norm(config, size, kernels)
        self.norm2 = _make_norm(config, size, kernels)
        width = config.num_heads * config.head_dim
        self.qkv = kernels.linear(size, 3 * width, bias=True)
        self.proj = _summed(config, kernels, width, size)
        self.up = kernels.linear(size, config.intermediate_size * (2 if self.gated else 1), bias=True)
        self.down = _summed(config, kernels, config.intermediate_size, size)
        self.mlp_names = {
            "qwen2_vl": (("fc1",), "fc2"),
            "qwen2_5_vl": (("gate_proj", "up_proj"), "down_proj"),
            "qwen3_vl": (("linear_fc1",), "linear_fc2"),
        }[config.kind]

    def __call__(
        self, x: torch.Tensor, normed: torch.Tensor, turn: Rotation, order: Order, following: Norm
    ) -> torch.Tensor:
        """x (patches, hidden), in place, and `norm1` of it → `following` of the new x."""
        ops = self.ops
        # Nothing here keeps queries, keys and values: their memory is the MLP's.
        seen = ops.attend(self.qkv(normed).view(x.shape[0], 3, self.num_heads, -1), turn, order)
        normed = ops.join(x, self.proj, seen, self.norm2)
        del seen
        inner = self.up(normed)
        inner = ops.gate(self.activation, inner) if self.gated else ops.activate(self.activation, inner)
        return ops.join(x, self.down, inner, following)

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
        inner = self.wide // config.shards
        self.first = kernels.linear(self.wide, inner, bias=True)
        self.second = _summed(config, kernels, inner, config.out_hidden_size)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x: (patches, hidden) → (cells, text hidden)."""
        return self.project(self.norm(x.view(-1, self.wide) if self.late_norm else x))

    def project(self, normed: torch.Tensor) -> torch.Tensor:
        """The same of what the norm made of x."""
        return self.second(F.gelu(self.first(normed.view(-1, self.wide))))

    def weights(self) -> Weights:
        norm, first, second = self.names
        yield from _norm_weights(norm, self.norm)
        yield from _linear_weights((first,), self.first)
        yield from _linear_weights((second,), self.second)


class _Layout(NamedTuple):
    """What depends on the sizes of a pass alone."""

    turn: Rotation
    whole: Order
    windowed: Order
    to_windows: torch.Tensor | None  # which patch stands at each place in the order of windows
    from_windows: torch.Tensor | None  # which cell of that order stands at each place of the output


class VisionTower:
    def __init__(self, config: VisionConfig, kernels: Kernels) -> None:
        self.config = config
        self.device = kernels.device
        self.dtype = kernels.activation_dtype
        self.ops = kernels.vision(config.head_dim)
        qwen3 = config.kind == "qwen3_vl"
        self.patch_embed = kernels.linear(config.patch_dim, config.hidden_size, bias=qwen3)
        self.blocks = [Block(config, kernels, self.ops) for _ in range(config.depth)]
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
        quarter = config.head_dim // 4
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
            taps, weights = (send(part, self.device) for part in interpolation_taps(grids, config.merge_size, side))
            x += (self.positions[taps] * weights[:, :, None]).sum(1).to(self.dtype)
        layout = self._layout(grids)
        if layout.to_windows is not None:
            x = x.index_select(0, layout.to_windows)
        deepstack: list[torch.Tensor] = []
        normed = self.blocks[0].norm1(x)
        for index, block in enumerate(self.blocks):
            full = not config.window_size or index in config.full_attention_layers
            following = self.blocks[index + 1].norm1 if index + 1 < len(self.blocks) else self.merger.norm
            normed = block(x, normed, layout.turn, layout.whole if full else layout.windowed, following)
            if index in config.deepstack_layers:
                deepstack.append(self.deepstack[config.deepstack_layers.index(index)](x))
        merged = self.merger.project(normed)
        if layout.from_windows is not None:
            merged = merged.index_select(0, layout.from_windows)
        return VisionOutput(merged, torch.stack(deepstack, dim=1) if deepstack else None)

    def _layout(self, grids: Sequence[Grid]) -> _Layout:
        config, ops = self.config, self.ops
        places = patch_positions(grids, config.merge_size)
        whole = windowed = ops.order(frame_runs(grids))
        to_windows = from_windows = None
        if config.window_size:
            side = config.window_size // config.merge_size // config.patch_size
            windows = window_layout(grids, config.merge_size, side, by_size=ops.windows_by_size)
            to_windows, to_frames = (_cells_to_patches(cells, config.merge_size) for cells in windows[:2])
            places = places[to_windows]
            from_windows = send(windows.inverse, self.device)
            to_windows, to_frames = send(to_windows, self.device), send(to_frames, self.device)
            windowed = ops.order(windows.runs)
            if ops.windows_by_size:  # else a frame's patches are neighbours still, and whole attention knows no order
                whole = ops.order(whole.runs, gather=to_frames, scatter=to_windows)
        angles = send((places[:, :, None] * self.inv_freq).flatten(1), self.device)
        return _Layout(rotation(angles, torch.float32), whole, windowed, to_windows, from_windows)

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


def _summed(config: VisionConfig, kernels: Kernels, in_features: int, out_features: int) -> Linear:
    """Behind what is spread over the ranks."""
    linear = kernels.linear(in_features, out_features, bias=True)
    return linear if config.shards == 1 else SummedLinear(linear, kernels.communicator)


def _make_norm(config: VisionConfig, size: int, kernels: Kernels) -> Norm:
    return kernels.rms_norm(size, EPS) if config.kind == "qwen2_5_vl" else kernels.layer_norm(size, EPS)


def _cells_to_patches(cells: torch.Tensor, merge: int) -> torch.Tensor:
    """Indices of cells → indices of their patches, merge² each."""
    return (cells[:, None] * merge**2 + torch.arange(merge**2)).view(-1)


def _norm_weights(name: str, norm: Norm) -> Weights:
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
