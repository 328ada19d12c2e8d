"""Full-size vision models with random weights, as checkpoints of a hub's names, and prompts for them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.gpu.models import make_engine
from benchmarks.gpu.startup import weights_of, write_weights
from visavis.engine.quantization.places import Place
from visavis.families.positions import VisualBlock, mrope_positions
from visavis.prompt import PatchRule, PreparedMedia, Prompt, Span

__all__ = ["FAMILIES", "REAL", "TINY", "Dimensions", "make_prompt", "write_checkpoint"]

SHARPNESS = 1.5
"""Of queries and of keys: their scores spread by its square, so that attention picks out a few tokens of a thousand and
a wrong one shows."""
CLIP = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
HALF = (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)

Cells = tuple[int, int]
Part = int | Cells
"""So many random text tokens, or a picture of so many visual tokens, rows by columns."""


@dataclass(frozen=True)
class Dimensions:
    """What a config.json says, and the size of a screen of 1920 × 1080 after its resize."""

    name: str
    text: dict[str, Any]
    vision: dict[str, Any]
    screen: Cells
    ids: dict[str, int] = field(
        default_factory=lambda: {
            "image_token_id": 151655, "video_token_id": 151656,
            "vision_start_token_id": 151652, "vision_end_token_id": 151653,
        }
    )  # fmt: skip

    def prompts(self) -> dict[str, list[Part]]:
        return {"screen": [15, self.screen, 25], "two-pictures": [60, (6, 9), 12, (11, 5), 40]}


@dataclass(frozen=True)
class Family:
    config: str  # transformers' class
    architecture: str
    rule: PatchRule


FAMILIES = {
    "qwen2_vl": Family("Qwen2VLConfig", "Qwen2VLForConditionalGeneration", PatchRule(14, 2, 2, *CLIP)),
    "qwen2_5_vl": Family("Qwen2_5_VLConfig", "Qwen2_5_VLForConditionalGeneration", PatchRule(14, 2, 2, *CLIP)),
    "qwen3_vl": Family("Qwen3VLConfig", "Qwen3VLForConditionalGeneration", PatchRule(16, 2, 2, *HALF)),
}


def _text(hidden: int, inner: int, layers: int, heads: int, kv: int, vocab: int, **more: Any) -> dict[str, Any]:
    return {
        "hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": kv, "vocab_size": vocab, "rms_norm_eps": 1e-6, "tie_word_embeddings": False, **more,
    }  # fmt: skip


def _rope(theta: float, section: Sequence[int], **more: Any) -> dict[str, Any]:
    return {"rope_type": "default", "rope_theta": theta, "mrope_section": list(section), **more}


PATCHES = {"spatial_merge_size": 2, "temporal_patch_size": 2}
QWEN2_5_VISION = {"window_size": 112, "tokens_per_second": 2, "patch_size": 14, **PATCHES}
REAL = {
    "qwen2_vl": Dimensions(
        "Qwen2-VL-7B",
        _text(3584, 18944, 28, 28, 4, 152064, max_position_embeddings=32768, rope_parameters=_rope(1e6, (16, 24, 24))),
        {"depth": 32, "embed_dim": 1280, "hidden_size": 3584, "num_heads": 16, "mlp_ratio": 4, "patch_size": 14,
         **PATCHES},
        (26, 47),
    ),
    "qwen2_5_vl": Dimensions(
        "Qwen2.5-VL-7B",
        _text(3584, 18944, 28, 28, 4, 152064, max_position_embeddings=128000, rope_parameters=_rope(1e6, (16, 24, 24))),
        {"depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "out_hidden_size": 3584, "num_heads": 16,
         "fullatt_block_indexes": [7, 15, 23, 31], **QWEN2_5_VISION},
        (26, 47),
    ),
    "qwen3_vl": Dimensions(
        "Qwen3-VL-8B",
        _text(4096, 12288, 36, 32, 8, 151936, head_dim=128, attention_bias=False, max_position_embeddings=262144,
              rope_parameters=_rope(5e6, (24, 20, 20), mrope_interleaved=True)),
        {"depth": 27, "hidden_size": 1152, "intermediate_size": 4304, "out_hidden_size": 4096, "num_heads": 16,
         "patch_size": 16, "num_position_embeddings": 2304, "deepstack_visual_indexes": [8, 16, 24], **PATCHES},
        (34, 60),
    ),
}  # fmt: skip
TINY_IDS = dict(
    zip(
        ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id"),
        range(500, 504),
        strict=True,
    )
)
TINY = {
    "qwen2_vl": Dimensions(
        "tiny",
        _text(64, 96, 2, 4, 2, 512, max_position_embeddings=4096, rope_parameters=_rope(1e6, (2, 3, 3))),
        {"depth": 3, "embed_dim": 32, "hidden_size": 64, "num_heads": 2, "mlp_ratio": 2, "patch_size": 14, **PATCHES},
        (5, 7),
        TINY_IDS,
    ),
    "qwen2_5_vl": Dimensions(
        "tiny",
        _text(64, 96, 2, 4, 2, 512, max_position_embeddings=4096, rope_parameters=_rope(1e6, (2, 3, 3))),
        {"depth": 3, "hidden_size": 32, "intermediate_size": 48, "out_hidden_size": 64, "num_heads": 2,
         "fullatt_block_indexes": [1], **QWEN2_5_VISION},
        (5, 7),
        TINY_IDS,
    ),
    "qwen3_vl": Dimensions(
        "tiny",
        _text(64, 96, 3, 4, 2, 512, head_dim=16, attention_bias=False, max_position_embeddings=4096,
              rope_parameters=_rope(5e6, (4, 2, 2), mrope_interleaved=True)),
        {"depth": 3, "hidden_size": 32, "intermediate_size": 48, "out_hidden_size": 64, "num_heads": 2,
         "patch_size": 16, "num_position_embeddings": 64, "deepstack_visual_indexes": [0, 1], **PATCHES},
        (5, 7),
        TINY_IDS,
    ),
}  # fmt: skip


# ---- the checkpoint and the prompts --------------------------------------------------------------------------------


def write_checkpoint(folder: Path, family: str, dimensions: Dimensions) -> dict[str, Any]:
    """→ config.json as transformers writes it."""
    import transformers

    made = getattr(transformers, FAMILIES[family].config)(
        text_config=dimensions.text,
        vision_config=dimensions.vision,
        tie_word_embeddings=False,
        dtype="bfloat16",
        architectures=[FAMILIES[family].architecture],
        **dimensions.ids,
    )
    folder.mkdir(parents=True, exist_ok=True)
    made.save_pretrained(folder)
    config: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    engine = make_engine(config, spread, dtype="bfloat16", kernels="torch", num_blocks=64, max_model_len=1024)
    try:
        write_weights(folder, {hub_name(key): tensor for key, tensor in weights_of(engine).items()})
    finally:
        engine.close()
    return config


def hub_name(key: str) -> str:
    if key.startswith("lm_head."):
        return key
    return f"model.{key}" if key.startswith("visual.") else f"model.language_model.{key}"


def spread(folder: Path, destinations: Mapping[str, Place], *, tied: bool, left_out: str | None = None) -> None:
    """In place of `load_weights`, so that nothing hides: every product keeps the spread of its input, norms are not 1,
    biases not 0, logits spread by 3."""
    torch.manual_seed(0)
    for name, tensor in destinations.items():
        assert isinstance(tensor, torch.Tensor)
        tensor.normal_()
        if name.endswith("bias"):
            tensor.mul_(0.1)
        elif tensor.ndim == 1:
            middle = SHARPNESS if name.endswith(("q_norm.weight", "k_norm.weight")) else 1.0
            tensor.mul_(0.2).add_(middle)
        elif name not in ("embed_tokens.weight", "visual.pos_embed.weight"):
            tensor.mul_((3.0 if name == "lm_head.weight" else 1.0) / math.sqrt(tensor[0].numel()))
            if name.endswith(("q_proj.weight", "k_proj.weight")):
                tensor.mul_(SHARPNESS)
            elif name.endswith("attn.qkv.weight"):
                tensor[: len(tensor) // 3 * 2].mul_(SHARPNESS)


def make_prompt(family: str, dimensions: Dimensions, parts: Sequence[Part], seed: int) -> Prompt:
    """Random words, and pictures whose neighbouring patches differ much and pixels less."""
    rng = np.random.default_rng(seed)
    rule, known = FAMILIES[family].rule, dimensions.ids
    words = min(known.values()) - 1
    ids: list[int] = []
    media: list[PreparedMedia] = []
    blocks: list[VisualBlock] = []
    for part in parts:
        if isinstance(part, int):
            ids += rng.integers(0, words, part).tolist()
            continue
        rows, columns = part
        side = rule.patch_size
        coarse = rng.integers(0, 192, (2 * rows, 2 * columns, 3), dtype=np.uint8).repeat(side, 0).repeat(side, 1)
        pixels = coarse + rng.integers(0, 64, coarse.shape, dtype=np.uint8)
        ids += [known["vision_start_token_id"], *[known["image_token_id"]] * (rows * columns)]
        span = Span(len(ids) - rows * columns, rows * columns)
        ids.append(known["vision_end_token_id"])
        size = (rows * rule.cell, columns * rule.cell)
        media.append(
            PreparedMedia(
                "image", pixels, size, size, (1, 2 * rows, 2 * columns), span.length, span, Span(0, 1),
                f"{seed}-{span.start}",
            )
        )  # fmt: skip
        blocks.append(VisualBlock(span.start, 1, rows, columns))
    positions, delta = mrope_positions(len(ids), blocks)
    return Prompt(
        model="random", family=family, text="", canonical_ids=tuple(ids), token_ids=tuple(ids), position_ids=positions,
        rope_delta=delta, media=tuple(media), patch_rule=rule, image_token_id=known["image_token_id"],
        video_token_id=known["video_token_id"],
    )  # fmt: skip
