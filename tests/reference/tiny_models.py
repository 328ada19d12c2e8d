"""Makers of tiny random Hugging Face folders, one per family, seeded: what parity tests load on both sides.

Weights are drawn so that nothing hides: norm weights are not 1, biases are not 0, and the logits spread by several
units, so greedy near-ties are rare. Every maker takes a folder and returns it, ready for `AutoModel*`,
`AutoProcessor` and visavis. Sizes are keyword arguments; see `Size`.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from tests.reference import tiny_tokenizers as tok

Layout = Literal["new", "old"]

CLIP_MEAN, CLIP_STD = [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]


@dataclass(frozen=True, kw_only=True)
class Size:
    """Sizes and choices of a tiny model. `head_dim` must be a multiple of 16 for the mrope families."""

    seed: int = 0
    hidden: int = 64
    intermediate: int = 96
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    tied: bool = False
    rope_theta: float = 1e6
    max_positions: int = 8192
    vision_depth: int = 3
    vision_hidden: int = 32
    vision_heads: int = 2
    vision_intermediate: int = 48
    window_size: int = 112  # pixels, Qwen2.5-VL
    fullatt_layers: tuple[int, ...] = (1,)  # Qwen2.5-VL
    deepstack_layers: tuple[int, ...] = (0, 1)  # Qwen3-VL; text layers must be at least as many
    position_side: int = 8  # Qwen3-VL: side of the learned position grid
    tokens_per_second: int = 2  # Qwen2.5-VL
    layout: Layout = "new"  # "old": flat config, rope_scaling, torch_dtype, and the first weight-name generation
    shards: int = 1
    dtype: torch.dtype = torch.float32
    template_file: str | None = None  # None: tokenizer_config.json for text, chat_template.jinja for vision
    attention_bias: bool = False  # Qwen3, Llama


def make_qwen2(folder: Path | str, **size: Any) -> Path:
    """Qwen2/Qwen2.5: qkv biases, one-dimensional rope."""
    from transformers import Qwen2Config

    s = Size(**size)
    tokenizer = tok.qwen_tokenizer()
    config = Qwen2Config(**_text(s, tokenizer))
    return _text_folder(Path(folder), s, config, tokenizer, tok.QWEN2_TEMPLATE)


def make_qwen3(folder: Path | str, **size: Any) -> Path:
    """Qwen3: q/k norm, head_dim apart from hidden/heads, thinking template."""
    from transformers import Qwen3Config

    s = Size(**size)
    tokenizer = tok.qwen_tokenizer(thinking=True)
    config = Qwen3Config(**_text(s, tokenizer), head_dim=s.head_dim, attention_bias=s.attention_bias)
    return _text_folder(Path(folder), s, config, tokenizer, tok.QWEN3_TEMPLATE)


def make_llama(folder: Path | str, **size: Any) -> Path:
    """Llama 3: no biases, `llama3` rope scaling, a tokenizer that adds BOS by itself."""
    from transformers import LlamaConfig

    s = Size(**{"rope_theta": 5e5, **size})
    tokenizer = tok.llama3_tokenizer()
    text = _text(s, tokenizer, eos="<|eot_id|>", pad="<|finetune_right_pad_id|>", bos="<|begin_of_text|>")
    text["rope_parameters"] |= {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 256,
    }
    config = LlamaConfig(**text, head_dim=s.head_dim, attention_bias=s.attention_bias)
    return _text_folder(Path(folder), s, config, tokenizer, tok.LLAMA3_TEMPLATE, pad="<|finetune_right_pad_id|>")


def make_qwen2_vl(folder: Path | str, **size: Any) -> Path:
    """Qwen2-VL (OS-Atlas): quick-gelu vision tower, mrope sections."""
    from transformers import Qwen2VLConfig

    s = Size(**size)
    tokenizer = tok.qwen_tokenizer()
    vision = {
        "depth": s.vision_depth,
        "embed_dim": s.vision_hidden,
        "hidden_size": s.hidden,
        "num_heads": s.vision_heads,
        "mlp_ratio": 2,
        "patch_size": 14,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
    }
    config = Qwen2VLConfig(text_config=_mrope_text(s, tokenizer), vision_config=vision, **_vision_ids(s, tokenizer))
    return _vl_folder(Path(folder), s, config, tokenizer, tok.QWEN2_VL_TEMPLATE, "Qwen2VL")


def make_qwen2_5_vl(folder: Path | str, **size: Any) -> Path:
    """Qwen2.5-VL: window attention with a few full layers, video time in seconds."""
    from transformers import Qwen2_5_VLConfig

    s = Size(**size)
    tokenizer = tok.qwen_tokenizer()
    vision = {
        "depth": s.vision_depth,
        "hidden_size": s.vision_hidden,
        "intermediate_size": s.vision_intermediate,
        "out_hidden_size": s.hidden,
        "num_heads": s.vision_heads,
        "patch_size": 14,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "window_size": s.window_size,
        "fullatt_block_indexes": list(s.fullatt_layers),
        "tokens_per_second": s.tokens_per_second,
    }
    config = Qwen2_5_VLConfig(text_config=_mrope_text(s, tokenizer), vision_config=vision, **_vision_ids(s, tokenizer))
    return _vl_folder(Path(folder), s, config, tokenizer, tok.QWEN2_VL_TEMPLATE, "Qwen2_5_VL")


def make_qwen3_vl(folder: Path | str, **size: Any) -> Path:
    """Qwen3-VL: learned positions, deepstack, interleaved mrope, q/k norm."""
    from transformers import Qwen3VLConfig

    s = Size(**{"layers": 3, **size})
    tokenizer = tok.qwen_tokenizer(thinking=True)
    half = s.head_dim // 2
    side = half // 4 + half // 16  # 20 of 64, as in the real models (24, 20, 20)
    text = _text(s, tokenizer) | {"head_dim": s.head_dim, "attention_bias": s.attention_bias}
    text["rope_parameters"] |= {"mrope_section": [half - 2 * side, side, side], "mrope_interleaved": True}
    vision = {
        "depth": s.vision_depth,
        "hidden_size": s.vision_hidden,
        "intermediate_size": s.vision_intermediate,
        "out_hidden_size": s.hidden,
        "num_heads": s.vision_heads,
        "patch_size": 16,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "num_position_embeddings": s.position_side**2,
        "deepstack_visual_indexes": list(s.deepstack_layers),
    }
    config = Qwen3VLConfig(text_config=text, vision_config=vision, **_vision_ids(s, tokenizer))
    return _vl_folder(Path(folder), s, config, tokenizer, tok.QWEN3_VL_TEMPLATE, "Qwen3VL")


FAMILIES: dict[str, Callable[..., Path]] = {
    "qwen2": make_qwen2,
    "qwen3": make_qwen3,
    "llama": make_llama,
    "qwen2_vl": make_qwen2_vl,
    "qwen2_5_vl": make_qwen2_5_vl,
    "qwen3_vl": make_qwen3_vl,
}
VL_FAMILIES = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")


def make(family: str, folder: Path | str, **size: Any) -> Path:
    """Maker by name. The folder is `folder` itself."""
    return FAMILIES[family](folder, **size)


# ---- shared pieces -------------------------------------------------------------------------------------------------


def padded_vocab(tokenizer: Any) -> int:
    """Rows of the embedding: the tokenizer's ids rounded up, as real checkpoints do."""
    return math.ceil((tokenizer.get_vocab_size() + 1) / 64) * 64


def _text(
    s: Size, tokenizer: Any, *, eos: str = "<|im_end|>", pad: str = "<|endoftext|>", bos: str | None = None
) -> dict[str, Any]:
    return {
        "vocab_size": padded_vocab(tokenizer),
        "hidden_size": s.hidden,
        "intermediate_size": s.intermediate,
        "num_hidden_layers": s.layers,
        "num_attention_heads": s.heads,
        "num_key_value_heads": s.kv_heads,
        "max_position_embeddings": s.max_positions,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": s.tied,
        "rope_parameters": {"rope_type": "default", "rope_theta": s.rope_theta},
        "bos_token_id": tokenizer.token_to_id(bos or pad),
        "eos_token_id": tokenizer.token_to_id(eos),
        "pad_token_id": tokenizer.token_to_id(pad),
    }


def _mrope_text(s: Size, tokenizer: Any) -> dict[str, Any]:
    half = s.hidden // s.heads // 2
    text = _text(s, tokenizer)
    text["rope_parameters"] |= {"mrope_section": [half - 2 * (3 * half // 8), 3 * half // 8, 3 * half // 8]}
    return text


def _vision_ids(s: Size, tokenizer: Any) -> dict[str, Any]:
    names = {"image_token_id": "<|image_pad|>", "video_token_id": "<|video_pad|>"}
    names |= {"vision_start_token_id": "<|vision_start|>", "vision_end_token_id": "<|vision_end|>"}
    return {"tie_word_embeddings": s.tied} | {k: tokenizer.token_to_id(v) for k, v in names.items()}


def randomise(model: torch.nn.Module, seed: int) -> None:
    """Draws every parameter anew, in name order, from one generator: same seed, same weights on any machine."""
    generator = torch.Generator().manual_seed(seed)
    tied = getattr(model.config, "tie_word_embeddings", False)
    with torch.no_grad():
        for name, p in sorted(model.named_parameters(), key=lambda item: item[0]):
            noise = torch.randn(p.shape, generator=generator)
            if name.endswith("bias"):
                noise *= 0.1
            elif p.ndim == 1:
                noise = 1 + 0.2 * noise
            elif "embed" in name and "patch" not in name:
                noise *= (2 / math.sqrt(p.shape[-1])) if tied else 1.0
            else:
                gain = 3.0 if name.endswith("lm_head.weight") else 1.0
                noise *= gain / math.sqrt(p[0].numel())
            p.copy_(noise)


def _build(config: Any, s: Size, auto: str) -> Any:
    import transformers

    with torch.device("cpu"):
        model = getattr(transformers, auto).from_config(config)
    randomise(model, s.seed)
    return model.to(s.dtype).eval()


def _save(folder: Path, s: Size, model: Any, *, vision: bool) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    total = sum(p.numel() * p.element_size() for p in {id(p): p for p in model.parameters()}.values())
    limit: int | str = "50GB" if s.shards == 1 else math.ceil(total / s.shards) + 1024
    original = not vision or s.layout == "old"
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    model.save_pretrained(folder, max_shard_size=limit, save_original_format=original)
    if s.layout == "old":
        _to_old_layout(folder / "config.json")


def _to_old_layout(path: Path) -> None:
    """The config as hub checkpoints of 2024 have it: flat text part, `rope_scaling`, `torch_dtype`."""
    config = json.loads(path.read_text(encoding="utf-8"))
    text = config.pop("text_config", {})
    text.pop("model_type", None)
    text.pop("layer_types", None)
    nested = config["model_type"] == "qwen3_vl"
    flat = text if nested else config
    if not nested:
        config = {**text, **{k: v for k, v in config.items() if v is not None}}
        flat = config
    flat.pop("layer_types", None)
    rope = flat.pop("rope_parameters")
    flat["rope_theta"] = rope.pop("rope_theta")
    if "mrope_section" in rope:
        rope["type"] = rope["rope_type"] = "default" if nested else "mrope"
        if not nested:
            rope.pop("rope_type")
        flat["rope_scaling"] = rope
    elif rope.get("rope_type") != "default":
        flat["rope_scaling"] = rope
    config["torch_dtype"] = config.pop("dtype")
    if nested:
        config["text_config"] = text | {"model_type": "qwen3_vl_text"}
    vision = config.get("vision_config")
    if vision is not None:
        vision.pop("rope_parameters", None)
        if not nested:
            vision["in_chans"] = vision.pop("in_channels")
    path.write_text(json.dumps(config, indent=1), encoding="utf-8")


def _generation_config(folder: Path, tokenizer: Any, eos: tuple[str, ...], pad: str) -> None:
    ids = [tokenizer.token_to_id(t) for t in eos]
    content = {"eos_token_id": ids, "pad_token_id": tokenizer.token_to_id(pad)}
    (folder / "generation_config.json").write_text(json.dumps(content), encoding="utf-8")


def _text_folder(folder: Path, s: Size, config: Any, tokenizer: Any, template: str, pad: str = "<|endoftext|>") -> Path:
    model = _build(config, s, "AutoModelForCausalLM")
    _save(folder, s, model, vision=False)
    llama = pad != "<|endoftext|>"
    eos = ("<|eot_id|>", "<|end_of_text|>") if llama else ("<|im_end|>", "<|endoftext|>")
    bos = "<|begin_of_text|>" if llama else None
    tok.save_tokenizer(
        folder,
        tokenizer,
        template,
        eos=eos[0],
        pad=pad,
        bos=bos,
        template_file=s.template_file or "tokenizer_config.json",
    )
    _generation_config(folder, tokenizer, eos, pad)
    return folder


def _vl_folder(folder: Path, s: Size, config: Any, tokenizer: Any, template: str, name: str) -> Path:
    model = _build(config, s, "AutoModelForImageTextToText")
    _save(folder, s, model, vision=True)
    tok.save_tokenizer(
        folder,
        tokenizer,
        template,
        eos="<|im_end|>",
        pad="<|endoftext|>",
        template_file=s.template_file or "chat_template.jinja",
    )
    _generation_config(folder, tokenizer, ("<|im_end|>", "<|endoftext|>"), "<|endoftext|>")
    write_processor_files(folder, name)
    return folder


def write_processor_files(folder: Path, name: str) -> None:
    """`preprocessor_config.json` as hub folders of Qwen2VL, Qwen2_5_VL and Qwen3VL have it, and Qwen3VL's for video."""
    qwen3 = name == "Qwen3VL"
    common: dict[str, Any] = {
        "patch_size": 16 if qwen3 else 14,
        "merge_size": 2,
        "temporal_patch_size": 2,
        "image_mean": [0.5] * 3 if qwen3 else CLIP_MEAN,
        "image_std": [0.5] * 3 if qwen3 else CLIP_STD,
        "processor_class": f"{name}Processor",
    }
    image: dict[str, Any] = {**common, "image_processor_type": "Qwen2VLImageProcessor"}
    if qwen3:
        image["size"] = {"shortest_edge": 65536, "longest_edge": 16777216}
        video = {**common, "size": {"shortest_edge": 4096, "longest_edge": 25165824}}
        video["video_processor_type"] = "Qwen3VLVideoProcessor"
        (folder / "video_preprocessor_config.json").write_text(json.dumps(video), encoding="utf-8")
    else:
        image |= {"min_pixels": 3136, "max_pixels": 12845056}
    (folder / "preprocessor_config.json").write_text(json.dumps(image), encoding="utf-8")
