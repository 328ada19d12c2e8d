"""Published dimensions of real models, as their config.json have them, and a card to plan for."""

from __future__ import annotations

from typing import Any

from visavis.plan import Device

GIB = 1024**3


def card(gib: float, count: int = 1, *, name: str = "card", used: float = 0.0) -> Device:
    """A device of exactly that much memory for programs."""
    return Device("cuda", name, round(gib * GIB), round((gib - used) * GIB), count, (8, 9), "test")


def qwen25_1_5b() -> dict[str, Any]:
    """Qwen2.5-1.5B: document 002's model."""
    return {
        "model_type": "qwen2",
        "hidden_size": 1536,
        "intermediate_size": 8960,
        "num_hidden_layers": 28,
        "num_attention_heads": 12,
        "num_key_value_heads": 2,
        "vocab_size": 151936,
        "tie_word_embeddings": True,
        "max_position_embeddings": 32768,
        "torch_dtype": "bfloat16",
    }


def qwen2_vl_7b() -> dict[str, Any]:
    """Qwen2-VL-7B and OS-Atlas-Base-7B: the flat layout of old checkpoints, whose vision part names two values only."""
    return {
        "model_type": "qwen2_vl",
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "vocab_size": 152064,
        "tie_word_embeddings": False,
        "max_position_embeddings": 32768,
        "torch_dtype": "bfloat16",
        "vision_config": {"hidden_size": 3584, "in_chans": 3},
    }


def qwen3_vl_235b_fp8() -> dict[str, Any]:
    """Qwen3-VL-235B-A22B-Instruct-FP8, document 004's model.

    Text tower: Qwen3-235B-A22B's, as public training scripts list it (zyzshishui/slime, scripts/models/
    qwen3-235B-A22B.sh: 94 layers, 4096 hidden, 64 heads, 4 groups, kv-channels 128, 128 experts of 1536, top 8,
    vocabulary 151936, untied); context 262144. Vision tower: transformers' Qwen3VLMoeVisionConfig, out 4096. FP8: e4m3
    in blocks of 128 × 128, all of `visual`, the routers and lm_head left in bfloat16.
    """
    kept = [f"model.language_model.layers.{i}.mlp.gate" for i in range(94)]
    for i in range(27):
        kept += [f"model.visual.blocks.{i}.{m}" for m in ("attn.qkv", "attn.proj", "mlp.linear_fc1", "mlp.linear_fc2")]
    for at in ("merger", *(f"deepstack_merger_list.{i}" for i in range(3))):
        kept += [f"model.visual.{at}.linear_fc1", f"model.visual.{at}.linear_fc2"]
    return {
        "model_type": "qwen3_vl_moe",
        "tie_word_embeddings": False,
        "text_config": {
            "hidden_size": 4096,
            "intermediate_size": 12288,
            "num_hidden_layers": 94,
            "num_attention_heads": 64,
            "num_key_value_heads": 4,
            "head_dim": 128,
            "vocab_size": 151936,
            "max_position_embeddings": 262144,
            "num_experts": 128,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 1536,
            "dtype": "bfloat16",
        },
        "vision_config": {
            "depth": 27,
            "hidden_size": 1152,
            "intermediate_size": 4304,
            "num_heads": 16,
            "out_hidden_size": 4096,
            "patch_size": 16,
            "num_position_embeddings": 2304,
            "deepstack_visual_indexes": [8, 16, 24],
        },
        "quantization_config": {
            "quant_method": "fp8",
            "fmt": "e4m3",
            "activation_scheme": "dynamic",
            "weight_block_size": [128, 128],
            "modules_to_not_convert": ["lm_head", *kept],
        },
    }
