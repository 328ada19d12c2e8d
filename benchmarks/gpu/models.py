"""Models of real dimensions with random weights, made on the device: speed needs no checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

import visavis.engine.share as share_module
from visavis.engine import EngineConfig, NativeEngine
from visavis.engine.model_config import ModelConfig
from visavis.engine.quantization.places import Place
from visavis.families.positions import VisualBlock, mrope_positions
from visavis.prompt import PatchRule, PreparedMedia, Prompt, Span

__all__ = [
    "CONFIGS",
    "kv_bytes_per_token",
    "make_engine",
    "picture_prompt",
    "random_prompt",
    "randomise",
    "weight_bytes",
]


def _qwen2(hidden: int, inner: int, layers: int, heads: int, kv: int, vocab: int, tied: bool) -> dict[str, Any]:
    return {
        "architectures": ["Qwen2ForCausalLM"], "hidden_size": hidden, "intermediate_size": inner,
        "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv, "vocab_size": vocab,
        "max_position_embeddings": 32768, "rope_theta": 1e6, "rms_norm_eps": 1e-6, "tie_word_embeddings": tied,
        "dtype": "bfloat16",
    }  # fmt: skip


QWEN_7B = (3584, 18944, 28, 28, 4, 152064, False)
CONFIGS: dict[str, dict[str, Any]] = {
    "Qwen2.5-1.5B": _qwen2(1536, 8960, 28, 12, 2, 151936, True),
    "Qwen2.5-7B": _qwen2(*QWEN_7B),
    # Not tuned on: another width, another group, norms of queries and keys.
    "Qwen3-4B": _qwen2(2560, 9728, 36, 32, 8, 151936, True)
    | {"architectures": ["Qwen3ForCausalLM"], "head_dim": 128},
    "tiny": _qwen2(64, 96, 2, 4, 2, 300, True) | {"max_position_embeddings": 2048},
    "Qwen2-VL-7B": _qwen2(*QWEN_7B)
    | {
        "architectures": ["Qwen2VLForConditionalGeneration"],
        "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}, "image_token_id": 151655,
        "vision_config": {"depth": 32, "embed_dim": 1280, "num_heads": 16, "mlp_ratio": 4, "hidden_size": 3584,
                          "patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2, "in_channels": 3},
    },
}  # fmt: skip


def make_engine(
    model: str | Mapping[str, Any], fill: Callable[..., None] | None = None, **settings: Any
) -> NativeEngine:
    """An engine without a checkpoint, of a name in `CONFIGS` or of a config.json. `fill` stands in for `load_weights`;
    without it weights are N(0, 0.02²) and norms ones."""
    config = CONFIGS[model] if isinstance(model, str) else model
    real = share_module.load_weights
    share_module.load_weights = fill or randomise  # type: ignore[assignment]
    try:
        return NativeEngine(Path("."), config, EngineConfig(**settings))
    finally:
        share_module.load_weights = real


def randomise(folder: Path, destinations: Mapping[str, Place], *, tied: bool, left_out: str | None = None) -> None:
    """In place of `load_weights`."""
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    for name, place in destinations.items():
        tensor = place if isinstance(place, torch.Tensor) else torch.empty(tuple(place.shape), device=device)
        if tensor.ndim == 1 and name.endswith("weight"):
            tensor.fill_(1.0)
        else:
            tensor.normal_(std=0.02)
        if tensor is not place:  # a share of it, or codes
            place.copy_(tensor)


def random_prompt(rng: np.random.Generator, length: int, vocab: int) -> Prompt:
    ids = tuple(rng.integers(0, vocab, length).tolist())
    return Prompt(
        model="random", family="qwen2", text="", canonical_ids=ids, token_ids=ids,
        position_ids=np.arange(length, dtype=np.int64)[None], rope_delta=0, media=(), patch_rule=None,
        image_token_id=None, video_token_id=None,
    )  # fmt: skip


def picture_prompt(rng: np.random.Generator, config: Mapping[str, Any]) -> Prompt:
    """A picture of 1920 × 1080 after its resize to 1316 × 728 (1,222 tokens), and 40 tokens of text around it."""
    rows, columns, before, after = 26, 47, 15, 25
    rule = PatchRule(14, 2, 2, (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
    size = (rows * rule.cell, columns * rule.cell)
    pixels = rng.integers(0, 256, (*size, 3), dtype=np.uint8)
    span, token = Span(before, rows * columns), config["image_token_id"]
    words = rng.integers(0, 150000, before + after).tolist()
    ids = (*words[:before], *[token] * span.length, *words[before:])
    positions, delta = mrope_positions(len(ids), [VisualBlock(before, 1, rows, columns)])
    item = PreparedMedia(
        "image", pixels, (1080, 1920), size, (1, size[0] // 14, size[1] // 14), span.length, span, Span(before, 1),
        str(rng.integers(1 << 62)),
    )  # fmt: skip
    return Prompt(
        model="random", family="qwen2_vl", text="", canonical_ids=(*words[:before], token, *words[before:]),
        token_ids=ids, position_ids=positions, rope_delta=delta, media=(item,), patch_rule=rule, image_token_id=token,
    )  # fmt: skip


BYTES_OF_CODE = {None: 2.0, "int8": 1.0, "int4": 0.5 + 3 / 128}
"""Of a weight of the decoder's matrices, with its share of a group's scale and zero."""


def weight_bytes(name: str, quantization: str | None = None) -> int:
    """Read by one decode step: every matrix of the decoder once, the embedding only as the head."""
    c = ModelConfig.from_dict(CONFIGS[name])
    heads = (c.num_heads + 2 * c.num_kv_heads) * c.head_dim
    layer = c.hidden_size * (heads + c.num_heads * c.head_dim + 3 * c.intermediate_size)
    return int(BYTES_OF_CODE[quantization] * c.num_layers * layer) + 2 * c.vocab_size * c.hidden_size


def kv_bytes_per_token(name: str, item: int = 2) -> int:
    return item * ModelConfig.from_dict(CONFIGS[name]).kv_values_per_token
