"""Qwen2.5-VL: arXiv:2502.13923."""

from __future__ import annotations

from typing import ClassVar

from visavis.chat.types import Video
from visavis.families.media_plan import MediaPlan
from visavis.families.qwen_vl import QwenVLFamily
from visavis.families.tokenizer import Piece
from visavis.prompt import BoxFormat

__all__ = ["Qwen2_5_VLFamily"]

_TOKENS_PER_SECOND = 4  # transformers' value for configs without one


class Qwen2_5_VLFamily(QwenVLFamily):  # noqa: N801 (the family's own name)
    """As Qwen2-VL, but boxes are JSON in pixels of the resized image, and a video's time axis counts seconds."""

    name: ClassVar[str] = "qwen2_5_vl"
    default_box_format: BoxFormat = "qwen2_5_vl"

    def _video_pieces(self, plan: MediaPlan) -> list[Piece]:
        return [self.video_token_id] * plan.tokens

    def _video_interval(self, video: Video) -> float:
        per_second = self.folder.vision_config.get("tokens_per_second", _TOKENS_PER_SECOND)
        return float(per_second * (self.patch_rule.temporal_patch_size / video.fps))
