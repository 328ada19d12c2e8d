"""Qwen2-VL and its fine-tunes (OS-Atlas): arXiv:2409.12191."""

from __future__ import annotations

from typing import ClassVar

from visavis.families.media_plan import MediaPlan
from visavis.families.qwen_vl import QwenVLFamily
from visavis.families.tokenizer import Piece
from visavis.prompt import BoxFormat

__all__ = ["Qwen2VLFamily"]


class Qwen2VLFamily(QwenVLFamily):
    """Cells of 28 pixels, boxes between markers in thousandths of the original, every frame bounded like an image."""

    name: ClassVar[str] = "qwen2_vl"
    default_box_format: BoxFormat = "qwen2_vl"

    def _video_pieces(self, plan: MediaPlan) -> list[Piece]:
        return [self.video_token_id] * plan.tokens
