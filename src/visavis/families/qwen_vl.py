"""What the Qwen-VL families share: plan each item's size, write its tokens, resize, place it on the rope."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import ClassVar

import numpy as np

from visavis.chat.types import Conversation, Image, PixelLimits, Video, VideoDefaults
from visavis.errors import MediaError, MessageError, ModelError
from visavis.families.base import CountReport, MediaCount
from visavis.families.budget import BudgetItem, fitting_max_pixels
from visavis.families.common import FolderFamily, media_hash
from visavis.families.folder import ModelFolder
from visavis.families.media_plan import MediaPlan, asked_size, check_total, pixels_of
from visavis.families.positions import VisualBlock, mrope_positions
from visavis.families.resize import PixelBounds, frame_share, resize_all, smart_resize
from visavis.families.tokenizer import Piece
from visavis.families.vision_config import read_video_defaults, read_vision_settings
from visavis.prompt import PatchRule, PreparedMedia, Prompt, Span

__all__ = ["QwenVLFamily"]


@dataclass(frozen=True, slots=True)
class _Layout:
    """A conversation written out in ids, no pixel touched yet."""

    text: str
    canonical_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    plans: tuple[MediaPlan, ...]


class QwenVLFamily(FolderFamily):
    """Qwen2-VL's way, which the others change in places."""

    name: ClassVar[str]
    image_token: ClassVar[str] = "<|image_pad|>"
    video_token: ClassVar[str] = "<|video_pad|>"
    default_patch_size: ClassVar[int] = 14
    # What transformers' processors take when the folder is silent.
    default_image_bounds: ClassVar[PixelBounds] = PixelBounds(56 * 56, 28 * 28 * 1280)
    default_video_bounds: ClassVar[PixelBounds] = PixelBounds(128 * 28 * 28, 28 * 28 * 768)
    default_video_tokens: ClassVar[int] = 128000
    # qwen-vl-utils' rule, which these models are published with: transformers' processor for them takes all frames.
    default_video_sampling: ClassVar[VideoDefaults] = VideoDefaults()
    patch_rule: PatchRule

    def __init__(self, folder: ModelFolder, *, box_format: str | None = None) -> None:
        super().__init__(folder, box_format=box_format)
        self.settings = read_vision_settings(
            folder,
            patch_size=self.default_patch_size,
            image_default=self.default_image_bounds,
            video_default=self.default_video_bounds,
            video_tokens_default=self.default_video_tokens,
        )
        self.video_defaults = read_video_defaults(folder, self.default_video_sampling)
        self.patch_rule = self.settings.rule
        self.image_token_id = self._token_id("image_token_id", self.image_token)
        self.video_token_id = self._token_id("video_token_id", self.video_token)

    @property
    def supports_images(self) -> bool:
        return True

    @property
    def supports_videos(self) -> bool:
        return True

    def _token_id(self, key: str, spelling: str) -> int:
        token_id = self.tokenizer.token_to_id(spelling)
        declared = self.folder.config.get(key, token_id)
        if token_id is None or declared != token_id:
            raise ModelError(
                f"{self.folder.name}: {key} is {declared} in config.json and {spelling} is {token_id} in the tokenizer"
            )
        return token_id

    # ---- the two calls ---------------------------------------------------------------------------------------------

    def prepare(self, conversation: Conversation, *, add_generation_prompt: bool = True) -> Prompt:
        """Raises MessageError, MediaError (aspect ratio), ContextLengthError."""
        start = time.perf_counter()
        layout = self._lay_out(conversation, add_generation_prompt)
        total = len(layout.token_ids)
        text = total - sum(p.tokens for p in layout.plans)
        items = [self._budget_item(p.kind, asked_size(p.item), len(pixels_of(p.item)), p.tokens) for p in layout.plans]
        self._check_fits(
            total,
            [self._report(p) for p in layout.plans],
            lambda room: fitting_max_pixels(items, room - text, self.patch_rule.cell),
        )
        media = self._media(layout)
        positions, delta = mrope_positions(len(layout.token_ids), self._blocks(layout))
        return Prompt(
            model=self.folder.name,
            family=self.name,
            text=layout.text,
            canonical_ids=layout.canonical_ids,
            token_ids=layout.token_ids,
            position_ids=positions,
            rope_delta=delta,
            media=media,
            patch_rule=self.patch_rule,
            image_token_id=self.image_token_id,
            video_token_id=self.video_token_id,
            box_format=self.box_format,
            prepare_s=time.perf_counter() - start,
        )

    def count(self, conversation: Conversation, *, add_generation_prompt: bool = True) -> CountReport:
        """The numbers of `prepare` from sizes alone; a prompt too long is reported, not refused."""
        layout = self._lay_out(conversation, add_generation_prompt)
        media = tuple(self._report(p) for p in layout.plans)
        total = len(layout.token_ids)
        text = total - sum(m.tokens for m in media)
        return CountReport(self.folder.name, self.name, total, text, media, self.max_model_len)

    def fitting_max_pixels(self, prompt: Prompt, room: int) -> int | None:
        """See `Family.fitting_max_pixels`; sizes fixed by `resized_height` are taken as bounds."""
        items = [self._budget_item(m.kind, m.original_size, len(m.pixels), m.num_tokens) for m in prompt.media]
        return fitting_max_pixels(items, room - len(prompt) + prompt.num_image_tokens, self.patch_rule.cell)

    def _budget_item(self, kind: str, size: tuple[int, int], frames: int, tokens: int) -> BudgetItem:
        """`frames` counts for videos only."""
        cell, temporal = self.patch_rule.cell, self.patch_rule.temporal_patch_size

        def at(max_pixels: int) -> int:
            limits = PixelLimits(max_pixels=max_pixels)
            if kind == "image":
                bounds, steps = self.settings.image_bounds.within(limits, kind), 1
            else:
                bounds, steps = self._frame_bounds(frames).within(limits, kind), -(-frames // temporal)
            height, width = smart_resize(*size, cell=cell, bounds=bounds)
            return steps * (height // cell) * (width // cell)

        return BudgetItem(tokens, at)

    # ---- what families change --------------------------------------------------------------------------------------

    @abstractmethod
    def _video_pieces(self, plan: MediaPlan) -> list[Piece]:
        """What stands in the expanded prompt for a video's placeholder."""

    def _video_size(self, video: Video) -> tuple[int, int]:
        """(height, width) of a frame after the resize: each frame is bounded like an image."""
        bounds = self._frame_bounds(len(video.frames)).within(video.limits, video.where)
        total = video.total_pixels if video.total_pixels is not None else self._default_total_pixels()
        if total is not None:
            bounds = frame_share(bounds, total, len(video.frames), self.patch_rule.temporal_patch_size)
        return smart_resize(*asked_size(video), cell=self.patch_rule.cell, bounds=bounds, where=video.where)

    def _default_total_pixels(self) -> int | None:
        """Of all frames of a video, where the folder caps them (transformers' `cap_pixels_per_frame`)."""
        tokens = self.settings.video_tokens
        return None if tokens is None else int(tokens * self.patch_rule.cell**2 * 0.9)

    def _frame_bounds(self, frames: int) -> PixelBounds:
        """Of one of so many frames, where the message does not say."""
        return self.settings.video_bounds

    def _video_interval(self, video: Video) -> float:
        """Step of the time axis from one temporal patch to the next."""
        return 1.0

    def _video_blocks(self, plan: MediaPlan, starts: Sequence[int]) -> Iterable[VisualBlock]:
        """The rope blocks of a video whose visual tokens sit at `starts`."""
        merge = self.patch_rule.merge_size
        t, h, w = plan.grid
        interval = self._video_interval(plan.item) if isinstance(plan.item, Video) else 1.0
        yield VisualBlock(starts[0], t, h // merge, w // merge, interval)

    # ---- steps -----------------------------------------------------------------------------------------------------

    def plan(self, item: Image | Video) -> MediaPlan:
        """Size, grid and tokens of an item. Raises MediaError."""
        rule = self.patch_rule
        if isinstance(item, Image):
            bounds = self.settings.image_bounds.within(item.limits, item.where)
            size = smart_resize(*asked_size(item), cell=rule.cell, bounds=bounds, where=item.where)
            steps = 1
        else:
            if len(item.frames) == 0:
                raise MediaError(f"{item.where or 'video'}: the video has no frames")
            size = self._video_size(item)
            steps = -(-len(item.frames) // rule.temporal_patch_size)
        height, width = size[0] // rule.patch_size, size[1] // rule.patch_size
        return MediaPlan(item, size, (steps, height, width), height * width // rule.merge_size**2)

    def _lay_out(self, conversation: Conversation, add_generation_prompt: bool) -> _Layout:
        rendered = self.template.render(conversation, add_generation_prompt=add_generation_prompt)
        plans = tuple(self.plan(item) for item in conversation.media)
        check_total(plans)
        images = iter([p for p in plans if p.kind == "image"])
        videos = iter([p for p in plans if p.kind == "video"])
        self._check_placeholders(rendered.pieces, plans)
        expanded: list[Piece] = []
        for piece in rendered.pieces:
            if piece == self.image_token_id:
                expanded += [self.image_token_id] * next(images).tokens
            elif piece == self.video_token_id:
                expanded += self._video_pieces(next(videos))
            else:
                expanded.append(piece)
        return _Layout(
            rendered.text,
            tuple(self.tokenizer.encode_pieces(rendered.pieces)),
            tuple(self.tokenizer.encode_pieces(expanded)),
            plans,
        )

    def _check_placeholders(self, pieces: Sequence[Piece], plans: Sequence[MediaPlan]) -> None:
        """The template must have written one placeholder for each item."""
        for kind, token_id in (("image", self.image_token_id), ("video", self.video_token_id)):
            written, given = pieces.count(token_id), sum(p.kind == kind for p in plans)
            if written != given:
                raise MessageError(
                    f"the messages have {given} {kind}s, but the chat template of {self.folder.name} wrote {written} "
                    f"placeholders for them (a template may show media in user turns only)"
                )

    def _media(self, layout: _Layout) -> tuple[PreparedMedia, ...]:
        pixels = resize_all([(pixels_of(p.item), p.size) for p in layout.plans])
        visual = self._places(layout.token_ids, layout.plans, [p.tokens for p in layout.plans])
        canonical = self._places(layout.canonical_ids, layout.plans, [1] * len(layout.plans))
        media: list[PreparedMedia] = []
        for plan, array, places, (place,) in zip(layout.plans, pixels, visual, canonical, strict=True):
            video = plan.item if isinstance(plan.item, Video) else None
            timestamps = video.timestamps if video else None
            media.append(
                PreparedMedia(
                    kind="video" if video else "image",
                    pixels=array,
                    original_size=plan.item.size,
                    size=plan.size,
                    grid=plan.grid,
                    num_tokens=plan.tokens,
                    span=Span(places[0], places[-1] - places[0] + 1),
                    canonical_span=Span(place, 1),
                    content_hash=media_hash(plan.kind, array, timestamps),
                    fps=video.fps if video else None,
                    timestamps=timestamps,
                    where=plan.item.where,
                    source=plan.item.source,
                )
            )
        return tuple(media)

    def _blocks(self, layout: _Layout) -> list[VisualBlock]:
        merge = self.patch_rule.merge_size
        visual = self._places(layout.token_ids, layout.plans, [p.tokens for p in layout.plans])
        blocks: list[VisualBlock] = []
        for plan, places in zip(layout.plans, visual, strict=True):
            if plan.kind == "image":
                blocks.append(VisualBlock(places[0], 1, plan.grid[1] // merge, plan.grid[2] // merge))
            else:
                blocks += self._video_blocks(plan, places[:: plan.tokens_per_frame])
        return sorted(blocks, key=lambda block: block.start)

    def _places(self, ids: Sequence[int], plans: Sequence[MediaPlan], counts: Sequence[int]) -> list[list[int]]:
        """Where each item's placeholders stand in `ids`, `counts[i]` of them for item i: images and videos are each
        in order."""
        array = np.asarray(ids)
        free = {
            "image": iter(np.flatnonzero(array == self.image_token_id).tolist()),
            "video": iter(np.flatnonzero(array == self.video_token_id).tolist()),
        }
        return [list(islice(free[plan.kind], count)) for plan, count in zip(plans, counts, strict=True)]

    def _report(self, plan: MediaPlan) -> MediaCount:
        item = plan.item
        frames = len(item.frames) if isinstance(item, Video) else 1
        return MediaCount(plan.kind, item.where, item.source, item.size, plan.size, frames, plan.tokens)
