"""Makers of tiny random folders of families that run through transformers' own processors: LLaVA and Idefics3."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.reference import tiny_tokenizers as tok
from tests.reference.tiny_models import CLIP_MEAN, CLIP_STD, Size, _build, _generation_config, _save, padded_vocab

LLAVA_SPECIAL = ("<unk>", "<s>", "</s>", "<pad>", "<image>")
IDEFICS3_SPECIAL = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<fake_token_around_image>", "<image>", "<end_of_utterance>",
    "<global-img>", *(f"<row_{r}_col_{c}>" for r in range(1, 7) for c in range(1, 7)),
)  # fmt: skip


KINDS, ENDS = ("image", "slice", "image_id"), ("start", "end")
MINICPMV_SPECIAL = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|image_pad|>", "<|video_pad|>",
    *(f"<{slash}{kind}>" for kind in KINDS for slash in ("", "/")),
)  # fmt: skip
MINICPMV_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<|image_pad|>{% elif part['type'] == 'text' %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def _llama_text(s: Size, tokenizer: Any, bos: str, eos: str, pad: str) -> dict[str, Any]:
    return {
        "model_type": "llama",
        "vocab_size": padded_vocab(tokenizer),
        "hidden_size": s.hidden,
        "intermediate_size": s.intermediate,
        "num_hidden_layers": s.layers,
        "num_attention_heads": s.heads,
        "num_key_value_heads": s.kv_heads,
        "max_position_embeddings": s.max_positions,
        "bos_token_id": tokenizer.token_to_id(bos),
        "eos_token_id": tokenizer.token_to_id(eos),
        "pad_token_id": tokenizer.token_to_id(pad),
    }


def make_llava(folder: Path | str, **size: Any) -> Path:
    """LLaVA 1.5: CLIP at a fixed square, every image the same number of tokens, BOS added by the tokenizer."""
    from transformers import LlavaConfig

    s, folder = Size(**size), Path(folder)
    tokenizer = tok.build_tokenizer(LLAVA_SPECIAL, bos="<s>")
    side, patch = 56, 14
    config = LlavaConfig(
        text_config=_llama_text(s, tokenizer, "<s>", "</s>", "<pad>"),
        vision_config={
            "model_type": "clip_vision_model",
            "hidden_size": s.vision_hidden,
            "intermediate_size": s.vision_intermediate,
            "num_hidden_layers": s.vision_depth,
            "num_attention_heads": s.vision_heads,
            "image_size": side,
            "patch_size": patch,
            "projection_dim": s.vision_hidden,
        },
        image_token_index=tokenizer.token_to_id("<image>"),
        vision_feature_select_strategy="default",
        image_seq_length=(side // patch) ** 2,
    )
    _save(folder, s, _build(config, s, "AutoModelForImageTextToText"), vision=True)
    _write(folder, tokenizer, tok.LLAVA_TEMPLATE, bos="<s>", eos="</s>", pad="<pad>")
    image = {
        "image_processor_type": "CLIPImageProcessor",
        "size": {"shortest_edge": side},
        "crop_size": {"height": side, "width": side},
        "do_resize": True,
        "do_center_crop": True,
        "do_rescale": True,
        "do_normalize": True,
        "do_convert_rgb": True,
        "resample": 3,
        "rescale_factor": 1 / 255,
        "image_mean": CLIP_MEAN,
        "image_std": CLIP_STD,
    }
    processor = {
        "processor_class": "LlavaProcessor",
        "patch_size": patch,
        "num_additional_image_tokens": 1,
        "vision_feature_select_strategy": "default",
        "image_token": "<image>",
    }
    _json(folder / "preprocessor_config.json", image | {"processor_class": "LlavaProcessor"})
    _json(folder / "processor_config.json", processor)
    return folder


def make_idefics3(folder: Path | str, **size: Any) -> Path:
    """Idefics3: images cut into tiles, each with markers and its place written before it."""
    return _tiled(Path(folder), "Idefics3", **size)


def make_smolvlm(folder: Path | str, **size: Any) -> Path:
    """SmolVLM: Idefics3's ways under names of its own, and a processor for videos, which takes frames."""
    made = _tiled(Path(folder), "SmolVLM", **size)
    video = {"video_processor_type": "SmolVLMVideoProcessor", "do_convert_rgb": True}
    _json(made / "video_preprocessor_config.json", video)
    return made


def _tiled(folder: Path, kind: str, **size: Any) -> Path:
    import transformers

    s = Size(**size)
    tokenizer = tok.build_tokenizer(IDEFICS3_SPECIAL)
    side, patch, scale = 32, 8, 2
    config = getattr(transformers, f"{kind}Config")(
        text_config=_llama_text(s, tokenizer, "<|im_start|>", "<end_of_utterance>", "<|endoftext|>"),
        vision_config={
            "hidden_size": s.vision_hidden,
            "intermediate_size": s.vision_intermediate,
            "num_hidden_layers": s.vision_depth,
            "num_attention_heads": s.vision_heads,
            "image_size": side,
            "patch_size": patch,
        },
        scale_factor=scale,
        image_token_id=tokenizer.token_to_id("<image>"),
        pad_token_id=tokenizer.token_to_id("<|endoftext|>"),
        tie_word_embeddings=False,
    )
    _save(folder, s, _build(config, s, "AutoModelForImageTextToText"), vision=True)
    _write(folder, tokenizer, tok.IDEFICS3_TEMPLATE, bos="<|im_start|>", eos="<end_of_utterance>", pad="<|endoftext|>")
    image = {
        "image_processor_type": f"{kind}ImageProcessor",
        "size": {"longest_edge": 2 * side},
        "max_image_size": {"longest_edge": side},
        "do_image_splitting": True,
        "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3,
        "resample": 1,
        "processor_class": f"{kind}Processor",
    }
    _json(folder / "preprocessor_config.json", image)
    processor = {"processor_class": f"{kind}Processor", "image_seq_len": (side // patch) ** 2 // scale**2}
    _json(folder / "processor_config.json", processor)
    return folder


def make_minicpmv(folder: Path | str, **size: Any) -> Path:
    """MiniCPM-V 4.6: images in slices, each numbered in the text; a Qwen3.5 decoder with a linear
    layer, then one with attention."""
    from transformers import MiniCPMV4_6Config

    s, folder = Size(**size), Path(folder)
    tokenizer = tok.build_tokenizer(MINICPMV_SPECIAL)
    text = _llama_text(s, tokenizer, "<|im_start|>", "<|im_end|>", "<|endoftext|>")
    text |= {"model_type": "qwen3_5_text", "head_dim": 32, "layer_types": ["linear_attention", "full_attention"]}
    text |= {f"linear_{name}_head_dim": 128 for name in ("key", "value")}
    text |= {f"linear_num_{name}_heads": 2 for name in ("key", "value")}
    rope = {"rope_type": "default", "rope_theta": s.rope_theta, "partial_rotary_factor": 0.5}
    text["rope_parameters"] = rope | {"mrope_section": [4, 2, 2], "mrope_interleaved": True}
    config = MiniCPMV4_6Config(
        text_config=text,
        vision_config={
            "hidden_size": s.vision_hidden,
            "intermediate_size": s.vision_intermediate,
            "num_hidden_layers": s.vision_depth,
            "num_attention_heads": s.vision_heads,
            "image_size": 56,
            "patch_size": 14,
        },
        insert_layer_id=1,
        image_size=112,
        image_token_id=tokenizer.token_to_id("<|image_pad|>"),
        video_token_id=tokenizer.token_to_id("<|video_pad|>"),
    )
    _save(folder, s, _build(config, s, "AutoModelForImageTextToText"), vision=True)
    names = {
        "image_token": "<|image_pad|>",
        "video_token": "<|video_pad|>",
        **{f"{kind}_{end}_token": f"<{'' if end == 'start' else '/'}{kind}>" for kind in KINDS for end in ENDS},
    }
    extra = {"extra_special_tokens": names, "model_specific_special_tokens": names}
    _write(folder, tokenizer, MINICPMV_TEMPLATE, bos=None, eos="<|im_end|>", pad="<|endoftext|>", extra=extra)
    image = {
        "image_processor_type": "MiniCPMV4_6ImageProcessor",
        "scale_resolution": 112,
        "patch_size": 14,
        "max_slice_nums": 4,
        "processor_class": "MiniCPMV4_6Processor",
    }
    _json(folder / "preprocessor_config.json", image)
    video = {**image, "video_processor_type": "MiniCPMV4_6VideoProcessor"}
    del video["image_processor_type"]
    _json(folder / "video_preprocessor_config.json", video)
    _json(folder / "processor_config.json", {"processor_class": "MiniCPMV4_6Processor"})
    return folder


def _write(
    folder: Path, tokenizer: Any, template: str, *, bos: str | None, eos: str, pad: str, extra: Any = None
) -> None:
    place = "chat_template.jinja"
    tok.save_tokenizer(folder, tokenizer, template, bos=bos, eos=eos, pad=pad, template_file=place, extra=extra)
    _generation_config(folder, tokenizer, (eos,), pad)


def _json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content), encoding="utf-8")


FAMILIES: dict[str, Callable[..., Path]] = {
    "llava": make_llava,
    "idefics3": make_idefics3,
    "smolvlm": make_smolvlm,
    "minicpmv": make_minicpmv,
}
