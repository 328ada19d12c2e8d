"""`ModelConfig`: a checkpoint's config.json, old and new layouts, reduced to what the engine computes with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from visavis.engine.quantization.scheme import Scheme
from visavis.errors import ModelError, shorten

__all__ = ["Llama3Scaling", "ModelConfig", "RopeConfig", "VisionConfig"]

VisionKind = Literal["qwen2_vl", "qwen2_5_vl", "qwen3_vl"]

ARCHITECTURES = {
    "LlamaForCausalLM": "llama",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Qwen2VLForConditionalGeneration": "qwen2_vl",
    "Qwen2_5_VLForConditionalGeneration": "qwen2_5_vl",
    "Qwen3VLForConditionalGeneration": "qwen3_vl",
}
DEFAULT_MROPE_SECTION = {"qwen2_vl": (16, 24, 24), "qwen2_5_vl": (16, 24, 24), "qwen3_vl": (24, 20, 20)}
VISION_ACTIVATIONS = ("quick_gelu", "gelu", "gelu_pytorch_tanh", "silu")


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Llama 3.1's frequency scaling: low frequencies divided by `factor`, a smooth ramp between the two bounds."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position: int


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary position embedding. `mrope_section` counts frequencies per axis (time, height, width)."""

    theta: float
    scaling: Llama3Scaling | None = None
    mrope_section: tuple[int, int, int] | None = None
    interleaved: bool = False  # axes alternate frequency by frequency (Qwen3-VL) instead of in sections

    @property
    def num_axes(self) -> int:
        return 1 if self.mrope_section is None else 3


@dataclass(frozen=True, slots=True)
class VisionConfig:
    """A Qwen vision tower; what the three generations share and where they part."""

    kind: VisionKind
    depth: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    out_hidden_size: int
    activation: str
    patch_size: int
    temporal_patch_size: int
    in_channels: int
    merge_size: int
    rope_theta: float = 10000.0
    window_size: int = 0  # pixels a side; 0: every layer attends over the whole frame
    full_attention_layers: frozenset[int] = frozenset()
    num_position_embeddings: int = 0  # learned, square grid, interpolated; 0: none
    deepstack_layers: tuple[int, ...] = ()
    shards: int = 1  # ranks that the heads and the inner columns are split over; `num_heads` and the like are of one

    @property
    def head_dim(self) -> int:
        return self.hidden_size // (self.num_heads * self.shards)

    @property
    def patch_dim(self) -> int:
        return self.in_channels * self.temporal_patch_size * self.patch_size**2


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The decoder's shape and options, and its vision tower's, if it has one."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position: int
    rms_norm_eps: float
    rope: RopeConfig
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool
    tie_word_embeddings: bool
    checkpoint_dtype: str | None
    vision: VisionConfig | None = None
    quantization: Scheme | None = None  # of the decoder's matrices as the checkpoint has them
    shards: int = 1  # ranks that the heads and the inner columns are split over; `num_heads` and the like are of one
    whole_kv_heads: int = 0  # of all ranks together; set where there are several

    @property
    def kv_values_per_token(self) -> int:
        """Numbers (not bytes) of key and value cache one token takes in all layers together."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> ModelConfig:
        """Reads config.json. Raises ModelError naming an architecture or feature that is not supported."""
        kind = _architecture(config)
        # Text settings are at the top in text models and in old vision-language folders, nested in newer ones.
        text: Mapping[str, Any] = {**config, **(config.get("text_config") or {})}
        _refuse_unsupported(config, text)
        try:
            return cls._read(kind, config, text)
        except KeyError as error:
            raise ModelError(f"config.json: {error.args[0]} is missing; it is needed for a {kind} model") from None
        except (TypeError, ValueError) as error:
            raise ModelError(f"config.json of a {kind} model cannot be read: {shorten(str(error))}") from None

    @classmethod
    def _read(cls, kind: str, config: Mapping[str, Any], text: Mapping[str, Any]) -> ModelConfig:
        num_heads = int(text["num_attention_heads"])
        hidden_size = int(text["hidden_size"])
        qwen2_like = kind in ("qwen2", "qwen2_vl", "qwen2_5_vl")
        attention_bias = bool(text.get("attention_bias", False))
        max_position = int(text["max_position_embeddings"])
        head_dim = int(text.get("head_dim") or 0) or _default_head_dim(kind, hidden_size, num_heads)
        num_kv_heads = int(text.get("num_key_value_heads") or num_heads)
        if num_heads % num_kv_heads:
            raise ModelError(f"config.json: {num_heads} attention heads cannot share {num_kv_heads} key-value heads")
        return cls(
            architecture=kind,
            vocab_size=int(text["vocab_size"]),
            hidden_size=hidden_size,
            intermediate_size=int(text["intermediate_size"]),
            num_layers=int(text["num_hidden_layers"]),
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            max_position=max_position,
            rms_norm_eps=float(text.get("rms_norm_eps", 1e-6)),
            rope=_rope(kind, text, max_position, head_dim),
            qkv_bias=qwen2_like or attention_bias,
            output_bias=not qwen2_like and attention_bias,
            mlp_bias=kind == "llama" and bool(text.get("mlp_bias", False)),
            qk_norm=kind in ("qwen3", "qwen3_vl"),
            # The outer value rules the lm_head of a composed model; a nested one only fills in for it.
            tie_word_embeddings=bool(config.get("tie_word_embeddings", text.get("tie_word_embeddings", False))),
            checkpoint_dtype=_first(config, text, "dtype", "torch_dtype"),
            vision=_vision(kind, config["vision_config"], hidden_size) if kind.endswith("_vl") else None,
            quantization=Scheme.from_config(config.get("quantization_config") or text.get("quantization_config")),
        )


def _architecture(config: Mapping[str, Any]) -> str:
    names = config.get("architectures") or []
    for name in names:
        if name in ARCHITECTURES:
            return ARCHITECTURES[name]
    if not names and config.get("model_type") in ARCHITECTURES.values():
        return str(config["model_type"])
    found = shorten(names[0] if names else config.get("model_type"))
    known = ", ".join(ARCHITECTURES)
    raise ModelError(f"the native engine does not know the architecture {found} (it knows {known}); try --backend hf")


def _refuse_unsupported(config: Mapping[str, Any], text: Mapping[str, Any]) -> None:
    layer_types = text.get("layer_types")
    if layer_types is not None:
        for name in layer_types:
            if name != "full_attention":
                raise ModelError(f"{shorten(name)} layers are not supported by the native engine; try --backend hf")
    elif text.get("use_sliding_window") and text.get("sliding_window"):
        windowed = int(text["num_hidden_layers"]) - int(text.get("max_window_layers") or 0)
        if windowed > 0:
            raise ModelError("sliding-window attention is not supported by the native engine; try --backend hf")
    activation = text.get("hidden_act", "silu")
    if activation != "silu":
        raise ModelError(f"the activation {shorten(activation)} is not supported by the native engine; it has silu")


def _default_head_dim(kind: str, hidden_size: int, num_heads: int) -> int:
    if kind in ("qwen3", "qwen3_vl"):
        return 128  # these two configurations state 128 as their default instead of deriving it
    return hidden_size // num_heads


def _first(*places: Any) -> Any:
    """The first value found under any of the trailing names in the leading mappings."""
    mappings = [p for p in places if isinstance(p, Mapping)]
    names = [p for p in places if isinstance(p, str)]
    return next((m[n] for m in mappings for n in names if m.get(n) is not None), None)


def _rope(kind: str, text: Mapping[str, Any], max_position: int, head_dim: int) -> RopeConfig:
    # Newer files keep everything in rope_parameters; older ones have rope_theta beside rope_scaling.
    given: dict[str, Any] = {**(text.get("rope_scaling") or {}), **(text.get("rope_parameters") or {})}
    theta = float(given.get("rope_theta") or text.get("rope_theta") or 10000.0)
    rope_type = given.get("rope_type") or given.get("type") or "default"
    partial = float(given.get("partial_rotary_factor") or text.get("partial_rotary_factor") or 1.0)
    if partial != 1.0:
        raise ModelError(f"rotary embedding over {partial} of the head is not supported by the native engine")
    scaling = None
    if rope_type == "llama3":
        scaling = Llama3Scaling(
            factor=float(given["factor"]),
            low_freq_factor=float(given["low_freq_factor"]),
            high_freq_factor=float(given["high_freq_factor"]),
            original_max_position=int(given.get("original_max_position_embeddings") or max_position),
        )
    elif rope_type not in ("default", "mrope"):
        raise ModelError(
            f"rope type {shorten(rope_type)} is not supported by the native engine (default, mrope and llama3 are)"
        )
    section = None
    if kind in DEFAULT_MROPE_SECTION:
        t, h, w = (int(n) for n in given.get("mrope_section") or DEFAULT_MROPE_SECTION[kind])
        if t + h + w != head_dim // 2:
            raise ModelError(f"config.json: mrope_section {[t, h, w]} does not add up to half of head_dim {head_dim}")
        section = (t, h, w)
    return RopeConfig(theta=theta, scaling=scaling, mrope_section=section, interleaved=kind == "qwen3_vl")


def _vision(kind: str, vision: Mapping[str, Any], text_hidden_size: int) -> VisionConfig:
    rope = vision.get("rope_parameters") or {}
    activation = str(vision.get("hidden_act", {"qwen2_vl": "quick_gelu", "qwen2_5_vl": "silu"}.get(kind, "")))
    activation = activation or "gelu_pytorch_tanh"
    if activation not in VISION_ACTIVATIONS:
        raise ModelError(f"vision_config: the activation {shorten(activation)} is not supported by the native engine")
    common: dict[str, Any] = {
        "depth": int(vision["depth"]),
        "num_heads": int(vision["num_heads"]),
        "activation": activation,
        "patch_size": int(vision.get("patch_size") or vision.get("spatial_patch_size") or (16 if "3" in kind else 14)),
        "temporal_patch_size": int(vision.get("temporal_patch_size", 2)),
        "in_channels": int(_first(vision, "in_channels", "in_chans") or 3),
        "merge_size": int(vision.get("spatial_merge_size", 2)),
        "rope_theta": float(rope.get("rope_theta") or 10000.0),
    }
    if kind == "qwen2_vl":
        embed_dim = int(vision["embed_dim"])
        return VisionConfig(
            kind="qwen2_vl",
            hidden_size=embed_dim,
            intermediate_size=int(embed_dim * float(vision.get("mlp_ratio", 4))),
            out_hidden_size=int(vision.get("hidden_size", text_hidden_size)),
            **common,
        )
    common |= {
        "hidden_size": int(vision["hidden_size"]),
        "intermediate_size": int(vision["intermediate_size"]),
        "out_hidden_size": int(vision.get("out_hidden_size", text_hidden_size)),
    }
    if kind == "qwen2_5_vl":
        return VisionConfig(
            kind="qwen2_5_vl",
            window_size=int(vision.get("window_size", 112)),
            full_attention_layers=frozenset(vision.get("fullatt_block_indexes", (7, 15, 23, 31))),
            **common,
        )
    return VisionConfig(
        kind="qwen3_vl",
        num_position_embeddings=int(vision.get("num_position_embeddings", 2304)),
        deepstack_layers=tuple(vision.get("deepstack_visual_indexes", (8, 16, 24))),
        **common,
    )
