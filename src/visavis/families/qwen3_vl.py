"""Qwen3-VL: arXiv:2511.21631."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

from visavis.chat.types import Video, VideoDefaults
from visavis.families.folder import ModelFolder
from visavis.families.media_plan import MediaPlan, asked_size
from visavis.families.positions import VisualBlock
from visavis.families.qwen_vl import QwenVLFamily
from visavis.families.resize import PixelBounds, smart_resize_video
from visavis.families.tokenizer import Piece
from visavis.prompt import BoxFormat

__all__ = ["Qwen3VLFamily"]


class Qwen3VLFamily(QwenVLFamily):
    """Cells of 32 pixels; a video is written frame by frame, each between vision markers behind its time as text, and
    its pixels are bounded over all frames together.

    The frames stand inside the markers that the template wrote around the placeholder, as in transformers since 5.10
    and in vLLM when it runs with that; earlier ones let the frames take the place of those markers, too.
    """

    name: ClassVar[str] = "qwen3_vl"
    default_box_format: BoxFormat = "qwen3_vl"
    default_patch_size: ClassVar[int] = 16
    default_video_bounds: ClassVar[PixelBounds] = PixelBounds(128 * 32 * 32, 32 * 32 * 768)
    default_video_tokens: ClassVar[int] = 768
    default_video_sampling: ClassVar[VideoDefaults] = VideoDefaults(frame_factor=1)

    def __init__(self, folder: ModelFolder, *, box_format: str | None = None) -> None:
        super().__init__(folder, box_format=box_format)
        self.vision_start_id = self._token_id("vision_start_token_id", "<|vision_start|>")
        self.vision_end_id = self._token_id("vision_end_token_id", "<|vision_end|>")

    def _video_size(self, video: Video) -> tuple[int, int]:
        """By the folder's bounds over all frames; a message's own `min_pixels`, `max_pixels` and `total_pixels` are
        qwen-vl-utils', which bound each frame (total_pixels by an even share)."""
        limits, frames = video.limits, len(video.frames)
        if (limits.min_pixels, limits.max_pixels, video.total_pixels) != (None, None, None):
            return super()._video_size(video)
        bounds = self.settings.video_bounds.within(limits, video.where)
        if self.settings.video_tokens is not None:
            bounds = self._capped(bounds, frames, self.settings.video_tokens)
        return smart_resize_video(
            frames,
            *asked_size(video),
            cell=self.patch_rule.cell,
            temporal=self.patch_rule.temporal_patch_size,
            bounds=bounds,
            where=video.where,
        )

    def _default_total_pixels(self) -> int | None:
        return None  # this family's cap is of a frame

    def _frame_bounds(self, frames: int) -> PixelBounds:
        whole = self.settings.video_bounds
        return PixelBounds(max(1, whole.min_pixels // frames), max(1, whole.max_pixels // frames))

    def _capped(self, bounds: PixelBounds, frames: int, tokens: int) -> PixelBounds:
        """No frame larger than `tokens` cells or its even share (transformers' `cap_pixels_per_frame`)."""
        share = min(tokens * self.patch_rule.cell**2, bounds.max_pixels // frames)
        return PixelBounds(bounds.min_pixels, max(share, int(bounds.min_pixels * 1.05)) * frames)

    def _video_pieces(self, plan: MediaPlan) -> list[Piece]:
        pieces: list[Piece] = []
        for seconds in self._frame_times(plan):
            pieces += [f"<{seconds:.1f} seconds>", self.vision_start_id]
            pieces += [self.video_token_id] * plan.tokens_per_frame
            pieces.append(self.vision_end_id)
        return pieces

    def _frame_times(self, plan: MediaPlan) -> list[float]:
        """Seconds of each temporal patch: the mean of its first and last frame."""
        times = list(plan.item.timestamps) if isinstance(plan.item, Video) else []
        temporal = self.patch_rule.temporal_patch_size
        times += times[-1:] * (-len(times) % temporal)
        return [(times[i] + times[i + temporal - 1]) / 2 for i in range(0, len(times), temporal)]

    def _video_blocks(self, plan: MediaPlan, starts: Sequence[int]) -> Iterable[VisualBlock]:
        merge = self.patch_rule.merge_size
        for start in starts:
            yield VisualBlock(start, 1, plan.grid[1] // merge, plan.grid[2] // merge)
