"""`ModelShape`: the dimensions of a model, read from its config.json alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from visavis.errors import ModelError, shorten
from visavis.plan.quantization import Quantization, from_config

__all__ = ["DTYPE_BYTES", "ModelShape", "MoeShape", "TextShape", "VisionShape", "read_shape"]

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True)
class MoeShape:
    """Mixture-of-experts layers. `shared_intermediate` is 0 where there is no shared expert."""

    experts: int
    per_token: int
    intermediate: int  # width of one expert
    shared_intermediate: int
    layers: frozenset[int]  # which decoder layers are sparse; the others have a dense MLP


@dataclass(frozen=True, slots=True)
class TextShape:
    """The language decoder. Widths in elements."""

    hidden: int
    intermediate: int  # of a dense MLP
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    tied: bool  # lm_head shares the embedding's weights
    max_positions: int
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    qk_norm: bool
    moe: MoeShape | None = None

    @property
    def q_size(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.kv_heads * self.head_dim


@dataclass(frozen=True, slots=True)
class VisionShape:
    """The vision tower. `hidden` is the tower's own width, `out_hidden` the decoder's."""

    depth: int
    hidden: int
    intermediate: int
    heads: int
    out_hidden: int
    patch_size: int
    merge_size: int
    temporal_patch_size: int
    channels: int
    gated_mlp: bool  # SwiGLU (three matrices) against two matrices
    layer_norm: bool  # LayerNorm (weight and bias) against RMSNorm (weight)
    patch_bias: bool
    positions: int = 0  # learned position embedding
    deepstack: int = 0  # extra mergers whose output enters the first text layers

    @property
    def cell(self) -> int:
        """Pixels a side of one visual token."""
        return self.patch_size * self.merge_size

    @property
    def patch_elements(self) -> int:
        """Values of one patch before the tower: channels · frames · height · width."""
        return self.channels * self.temporal_patch_size * self.patch_size**2


@dataclass(frozen=True, slots=True)
class ModelShape:
    model_type: str
    text: TextShape
    vision: VisionShape | None
    dtype: str  # of the checkpoint: a key of DTYPE_BYTES
    quantization: Quantization | None  # of the checkpoint


# What a config.json may leave out: the published vision configs name only what differs from these.
_VISION_DEFAULTS: dict[str, dict[str, int]] = {
    "qwen2_vl": {"depth": 32, "embed_dim": 1280, "num_heads": 16, "mlp_ratio": 4, "patch_size": 14},
    "qwen2_5_vl": {"depth": 32, "num_heads": 16, "intermediate_size": 3420, "patch_size": 14},
    "qwen3_vl": {
        "depth": 27,
        "hidden_size": 1152,
        "num_heads": 16,
        "intermediate_size": 4304,
        "patch_size": 16,
        "num_position_embeddings": 2304,
    },
}
_VISION_DEFAULTS["qwen3_vl_moe"] = _VISION_DEFAULTS["qwen3_vl"]
_DEEPSTACK_DEFAULT = (8, 16, 24)

_QKV_BIAS = {"qwen2", "qwen2_moe", "qwen2_vl", "qwen2_5_vl"}
_QK_NORM = {"qwen3", "qwen3_moe", "qwen3_vl", "qwen3_vl_moe"}
_MOE = {"qwen2_moe", "qwen3_moe", "qwen3_vl_moe", "mixtral"}
_KNOWN = ("llama", "mistral", "mixtral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", *_VISION_DEFAULTS)


def read_shape(config: Mapping[str, Any], *, where: str = "config.json") -> ModelShape:
    """Dimensions from a parsed config.json (flat or with `text_config` and `vision_config`).

    Raises ModelError naming the key at fault, or the model type when its weights are not known here.
    """
    kind = config.get("model_type")
    if not isinstance(kind, str):
        raise ModelError(f"{where}: model_type is missing; is this the config.json of a transformers model?")
    if kind not in _KNOWN:
        raise ModelError(
            f"{where}: the weights of model_type {shorten(kind)} are not known; known: {', '.join(_KNOWN)}"
        )
    nested = config.get("text_config")
    text = {**config, **nested} if isinstance(nested, Mapping) else dict(config)
    # Whether the head is tied is a property of the whole model; a nested copy of it is only a default written out.
    text["tie_word_embeddings"] = config.get("tie_word_embeddings", text.get("tie_word_embeddings", False))
    reader = _Reader(text, where)
    vision = None
    if kind in _VISION_DEFAULTS:
        given = config.get("vision_config")
        vision = _read_vision(kind, given if isinstance(given, Mapping) else {}, reader.integer("hidden_size"), where)
    return ModelShape(
        model_type=kind,
        text=_read_text(kind, reader),
        vision=vision,
        dtype=_read_dtype(config, text),
        quantization=from_config(config.get("quantization_config"), where=where),
    )


def _read_text(kind: str, read: _Reader) -> TextShape:
    heads, hidden, layers = (read.integer(k) for k in ("num_attention_heads", "hidden_size", "num_hidden_layers"))
    bias = bool(read.values.get("attention_bias", False))
    qkv_bias = bool(read.values.get("qkv_bias", True)) if kind in _QKV_BIAS else bias and kind != "mistral"
    return TextShape(
        hidden=hidden,
        intermediate=read.integer("intermediate_size", 0 if kind in _MOE else None),
        layers=layers,
        heads=heads,
        kv_heads=read.integer("num_key_value_heads", heads),
        head_dim=read.integer("head_dim", 128 if kind in ("qwen3", "qwen3_vl") else hidden // heads),
        vocab=read.integer("vocab_size"),
        tied=bool(read.values["tie_word_embeddings"]),
        max_positions=read.integer("max_position_embeddings"),
        qkv_bias=qkv_bias,
        o_bias=bias and kind not in _QKV_BIAS and kind not in ("mistral", "mixtral"),
        mlp_bias=kind == "llama" and bool(read.values.get("mlp_bias", False)),
        qk_norm=kind in _QK_NORM,
        moe=_read_moe(kind, read, layers) if kind in _MOE else None,
    )


def _read_moe(kind: str, read: _Reader, layers: int) -> MoeShape:
    # Published configs say `num_experts`; transformers 5 writes `num_local_experts`.
    experts = read.integer("num_local_experts" if "num_local_experts" in read.values else "num_experts")
    if kind == "mixtral":
        return MoeShape(
            experts=experts,
            per_token=read.integer("num_experts_per_tok"),
            intermediate=read.integer("intermediate_size"),
            shared_intermediate=0,
            layers=frozenset(range(layers)),
        )
    step = read.integer("decoder_sparse_step", 1)
    dense = set(read.values.get("mlp_only_layers") or ())
    return MoeShape(
        experts=experts,
        per_token=read.integer("num_experts_per_tok"),
        intermediate=read.integer("moe_intermediate_size"),
        shared_intermediate=read.integer("shared_expert_intermediate_size") if kind == "qwen2_moe" else 0,
        layers=frozenset(i for i in range(layers) if i not in dense and (i + 1) % step == 0),
    )


def _read_vision(kind: str, given: Mapping[str, Any], text_hidden: int, where: str) -> VisionShape:
    read = _Reader({**_VISION_DEFAULTS[kind], **given}, f"{where}: vision_config")
    hidden = read.integer("embed_dim" if kind == "qwen2_vl" else "hidden_size")
    deepstack = given.get("deepstack_visual_indexes", _DEEPSTACK_DEFAULT) if kind.startswith("qwen3") else ()
    return VisionShape(
        depth=read.integer("depth"),
        hidden=hidden,
        intermediate=hidden * read.integer("mlp_ratio") if kind == "qwen2_vl" else read.integer("intermediate_size"),
        heads=read.integer("num_heads"),
        # Qwen2-VL calls the decoder's width `hidden_size` here.
        out_hidden=read.integer("hidden_size" if kind == "qwen2_vl" else "out_hidden_size", text_hidden),
        patch_size=read.integer(
            "spatial_patch_size" if "patch_size" not in given else "patch_size", read.values["patch_size"]
        ),
        merge_size=read.integer("spatial_merge_size", 2),
        temporal_patch_size=read.integer("temporal_patch_size", 2),
        # The published configs spell it `in_chans`; transformers writes `in_channels`.
        channels=read.integer("in_channels", given.get("in_chans", 3)),
        gated_mlp=kind == "qwen2_5_vl",
        layer_norm=kind != "qwen2_5_vl",
        patch_bias=kind.startswith("qwen3"),
        positions=read.integer("num_position_embeddings", 0),
        deepstack=len(deepstack),
    )


def _read_dtype(config: Mapping[str, Any], text: Mapping[str, Any]) -> str:
    """The checkpoint's dtype; bfloat16 where it is not said (all supported families publish in it)."""
    for values in (config, text):
        for key in ("dtype", "torch_dtype"):
            name = str(values.get(key) or "").removeprefix("torch.")
            if name in DTYPE_BYTES:
                return name
    return "bfloat16"


class _Reader:
    """Integers of a config with errors that name the key."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self.values = dict(values)
        self.where = where

    def integer(self, key: str, default: int | None = None) -> int:
        value = self.values.get(key)
        if value is None:
            value = default
        if value is None:
            raise ModelError(f"{self.where}: {key} is missing")
        if isinstance(value, list | tuple) and value and len(set(value)) == 1:
            value = value[0]  # patch sizes may be written once a side
        if isinstance(value, bool) or not isinstance(value, int) or value < 0 or (value == 0 and default != 0):
            raise ModelError(f"{self.where}: {key} is {shorten(value)}; a positive whole number is needed")
        return value
