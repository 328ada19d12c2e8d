"""Every size of tiny-screen in one place, and the folder's JSON files made from it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
ASSETS = ROOT / "src" / "visavis" / "assets" / "tiny-screen"
SAMPLES = ROOT / "src" / "visavis" / "assets" / "samples"
RESULTS = Path(__file__).parent / "results"
HELPERS = Path(__file__).parent / "data" / "helpers.safetensors"
RUNS = Path(__file__).parent / "runs"

PATCH, MERGE, TEMPORAL = 14, 2, 2
CELL = PATCH * MERGE
MIN_PIXELS, MAX_PIXELS = 3136, 802816
MEAN = (0.48145466, 0.4578275, 0.40821073)
STD = (0.26862954, 0.26130258, 0.27577711)


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of the model. Heads are 64 wide in text and vision.

    ``theta`` is small and the mrope sections give height and width the middle frequencies: with the usual one million
    the width axis would turn by less than 0.01 rad over a whole screen.
    """

    vocab: int = 2048
    hidden: int = 256
    inter: int = 640
    layers: int = 5
    heads: int = 4
    kv_heads: int = 2
    theta: float = 16.0
    sections: tuple[int, int, int] = (4, 14, 14)
    eps: float = 1e-6
    v_dim: int = 256
    v_layers: int = 5
    v_heads: int = 4
    v_ratio: int = 4

    @property
    def v_hidden(self) -> int:
        return self.v_dim * self.v_ratio


SHAPE = Shape()

TEMPLATE = (
    "{% set image_count = namespace(value=0) %}{% set video_count = namespace(value=0) %}"
    "{% for message in messages %}{% if loop.first and message['role'] != 'system' %}"
    "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n{% endif %}"
    "<|im_start|>{{ message['role'] }}\n{% if message['content'] is string %}{{ message['content'] }}<|im_end|>\n"
    "{% else %}{% for content in message['content'] %}"
    "{% if content['type'] == 'image' or 'image' in content or 'image_url' in content %}"
    "{% set image_count.value = image_count.value + 1 %}"
    "{% if add_vision_id %}Picture {{ image_count.value }}: {% endif %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif content['type'] == 'video' or 'video' in content %}"
    "{% set video_count.value = video_count.value + 1 %}"
    "{% if add_vision_id %}Video {{ video_count.value }}: {% endif %}<|vision_start|><|video_pad|><|vision_end|>"
    "{% elif 'text' in content %}{{ content['text'] }}{% endif %}{% endfor %}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
HEAD = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n<|vision_start|>"
AFTER_IMAGE = "<|vision_end|>"
TURN = "<|im_end|>\n<|im_start|>assistant\n"
END = "<|im_end|>"


def config_json(shape: Shape, ids: dict[str, int]) -> dict[str, object]:
    """The flat config.json that Qwen2-VL checkpoints on the hub have; ``ids`` maps special tokens to ids."""
    return {
        "architectures": ["Qwen2VLForConditionalGeneration"],
        "attention_dropout": 0.0,
        "bos_token_id": ids["<|endoftext|>"],
        "eos_token_id": ids["<|im_end|>"],
        "vision_start_token_id": ids["<|vision_start|>"],
        "vision_end_token_id": ids["<|vision_end|>"],
        "vision_token_id": ids["<|vision_pad|>"],
        "image_token_id": ids["<|image_pad|>"],
        "video_token_id": ids["<|video_pad|>"],
        "hidden_act": "silu",
        "hidden_size": shape.hidden,
        "initializer_range": 0.02,
        "intermediate_size": shape.inter,
        "max_position_embeddings": 4096,
        "max_window_layers": shape.layers,
        "model_type": "qwen2_vl",
        "num_attention_heads": shape.heads,
        "num_hidden_layers": shape.layers,
        "num_key_value_heads": shape.kv_heads,
        "rms_norm_eps": shape.eps,
        "rope_theta": shape.theta,
        "sliding_window": 4096,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "use_sliding_window": False,
        "vision_config": {
            "depth": shape.v_layers,
            "embed_dim": shape.v_dim,
            "mlp_ratio": shape.v_ratio,
            "num_heads": shape.v_heads,
            "in_chans": 3,
            "in_channels": 3,
            "hidden_size": shape.hidden,
            "hidden_act": "quick_gelu",
            "patch_size": PATCH,
            "spatial_merge_size": MERGE,
            "spatial_patch_size": PATCH,
            "temporal_patch_size": TEMPORAL,
            "model_type": "qwen2_vl",
        },
        "rope_scaling": {"type": "mrope", "mrope_section": list(shape.sections)},
        "vocab_size": shape.vocab,
    }
