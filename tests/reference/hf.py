"""The reference: what transformers' own processors and models make of a conversation."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from tests.reference.cases import as_hf_messages
from visavis.chat.types import Conversation, Image, Video


def torchvision_missing() -> str:
    """Why transformers' full Qwen-VL processors cannot be made here; "" when they can."""
    try:
        import torchvision  # noqa: F401
    except Exception as error:  # a broken torchvision fails in many ways
        return f"transformers' Qwen-VL processors need torchvision, which does not import here ({type(error).__name__})"
    return ""


needs_torchvision = pytest.mark.skipif(bool(torchvision_missing()), reason=torchvision_missing() or "present")


@lru_cache(maxsize=8)
def processor(folder: Path) -> Any:
    """AutoProcessor with the Pillow image processor."""
    from transformers import AutoImageProcessor, AutoProcessor

    made = AutoProcessor.from_pretrained(folder)
    made.image_processor = AutoImageProcessor.from_pretrained(folder, backend="pil")
    return made


@lru_cache(maxsize=8)
def model(folder: Path) -> Any:
    from transformers import AutoModelForImageTextToText

    return AutoModelForImageTextToText.from_pretrained(folder).eval()


def process(folder: Path, conversation: Conversation, **options: Any) -> tuple[str, dict[str, Any]]:
    """(rendered text, processor output as torch tensors): sampled frames go in as they are, with their metadata."""
    import torch
    from PIL import Image as PILImage

    made = processor(folder)
    text = made.apply_chat_template(
        as_hf_messages(conversation, lists=True), add_generation_prompt=True, tokenize=False, **options
    )
    images = [PILImage.fromarray(m.pixels) for m in conversation.media if isinstance(m, Image)]
    videos = [m for m in conversation.media if isinstance(m, Video)]
    extra: dict[str, Any] = {}
    if videos:
        extra["videos"] = [torch.from_numpy(v.frames).permute(0, 3, 1, 2) for v in videos]
        extra["video_metadata"] = [
            {
                "total_num_frames": v.total_frames,
                "fps": v.source_fps,
                "frames_indices": list(v.frame_indices),
                "duration": v.duration,
                "height": v.size[0],
                "width": v.size[1],
            }
            for v in videos
        ]
        extra["do_sample_frames"] = False
    return text, dict(made(text=[text], images=images or None, return_tensors="pt", **extra))


def positions(folder: Path, inputs: dict[str, Any]) -> tuple[Any, int]:
    """(3, n) positions by the model's own rule, and how far the first generated token's, by `generate`'s, lies from n:
    it goes on behind the last position."""
    names = ("image_grid_thw", "video_grid_thw", "second_per_grid_ts")
    given = {name: inputs[name] for name in names if name in inputs}
    found, _ = model(folder).model.get_rope_index(
        inputs["input_ids"], mm_token_type_ids=inputs["mm_token_type_ids"], **given
    )
    return found[:, 0].numpy(), int(found[:, 0, -1].max()) + 1 - found.shape[-1]
