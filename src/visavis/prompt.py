"""`Prompt`: everything a request is, decided before any engine sees it. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

__all__ = ["BoxFormat", "ChatSource", "PatchRule", "PreparedMedia", "Prompt", "Span", "Turn"]

BoxFormat = Literal["qwen2_vl", "qwen2_5_vl", "qwen3_vl", "ui_tars", "none"]

_MEDIA_SHOWN = 3


@dataclass(frozen=True, slots=True)
class PatchRule:
    """How uint8 pixels become the vision tower's patches (`visavis.patches.patchify`)."""

    patch_size: int  # pixels a side
    merge_size: int  # patches a side that become one token
    temporal_patch_size: int  # frames per patch; a still image is repeated
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    rescale: float = 1 / 255

    @property
    def cell(self) -> int:
        """Pixels a side of one visual token."""
        return self.patch_size * self.merge_size


@dataclass(frozen=True, slots=True)
class Span:
    """`length` token positions from `start` on."""

    start: int
    length: int

    @property
    def stop(self) -> int:
        return self.start + self.length


@dataclass(frozen=True, slots=True, eq=False)
class PreparedMedia:
    """One image or video after the one resize.

    `span` counts the visual tokens only in `Prompt.token_ids` (for a video whose family writes timestamps
    between frames, from the first visual token to the last: see `Prompt.visual_mask`); `canonical_span` is the
    place of its placeholder in `Prompt.canonical_ids`.
    """

    kind: Literal["image", "video"]
    pixels: npt.NDArray[np.uint8]  # image (height, width, 3); video (frames, height, width, 3); resized, RGB
    original_size: tuple[int, int]  # (height, width) of the upright original
    size: tuple[int, int]  # (height, width) after the resize
    grid: tuple[int, int, int] | None  # (t, h, w) in patches; None where transformers' own processor decides
    num_tokens: int  # visual tokens, without markers around them
    span: Span
    canonical_span: Span
    content_hash: str  # hex; over pixels, size, kind and timestamps
    fps: float | None = None  # of the sampled frames
    timestamps: tuple[float, ...] | None = None  # seconds, one per sampled frame
    where: str = ""
    source: str = ""

    def __repr__(self) -> str:
        (height, width), (to_height, to_width) = self.original_size, self.size
        frames = f", {len(self.pixels)} frames" if self.kind == "video" else ""
        return f"{self.kind} {width}×{height} → {to_width}×{to_height}{frames}, {self.num_tokens} tokens"


@dataclass(frozen=True, slots=True)
class Turn:
    """One message as it was before the template. `parts`: texts, and numbers of items of `Prompt.media`, in order."""

    role: str
    parts: tuple[str | int, ...]
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: tuple[dict[str, Any], ...] = ()
    reasoning_content: str | None = None


@dataclass(frozen=True, slots=True)
class ChatSource:
    """The conversation a prompt was made from, without pixels: for servers that take messages and no token ids."""

    turns: tuple[Turn, ...]
    tools: tuple[dict[str, Any], ...] = ()
    template_options: dict[str, Any] = field(default_factory=dict)
    add_generation_prompt: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class Prompt:
    """The same input for every engine.

    `canonical_ids` hold one placeholder per media item, `token_ids` one id per visual token.
    `position_ids` is int64 of shape (3, n) (temporal, height, width) for mrope families and (1, n) otherwise;
    generated token k sits at position `n + rope_delta + k` on every axis.
    """

    model: str
    family: str
    text: str  # the rendered template, one placeholder per item
    canonical_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    position_ids: npt.NDArray[np.int64]
    rope_delta: int = 0
    media: tuple[PreparedMedia, ...] = ()
    patch_rule: PatchRule | None = None
    image_token_id: int | None = None
    video_token_id: int | None = None
    box_format: BoxFormat = "none"
    prepare_s: float = 0.0  # seconds spent making this
    processor_inputs: dict[str, npt.NDArray[Any]] = field(default_factory=dict)
    """`generic` family only: what transformers' processor made besides ids (pixel_values and its companions)."""
    chat: ChatSource | None = None
    """Filled by `Family.prepare_messages`; None for prompts made from ids alone."""

    def __repr__(self) -> str:
        shown = [repr(item) for item in self.media[:_MEDIA_SHOWN]]
        if more := len(self.media) - len(shown):
            shown.append(f"{more} more")
        return f"Prompt({'; '.join([f'{self.model}, {self.family}, {len(self)} tokens', *shown])})"

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def num_image_tokens(self) -> int:
        """Visual tokens of images and videos together."""
        return sum(m.num_tokens for m in self.media)

    @property
    def visual_mask(self) -> npt.NDArray[np.bool_]:
        """(n,) True where a token stands for a piece of an image or video."""
        ids = np.asarray(self.token_ids)
        mask = np.zeros(len(ids), dtype=bool)
        for token_id in (self.image_token_id, self.video_token_id):
            if token_id is not None:
                mask |= ids == token_id
        return mask

    @property
    def mm_token_type_ids(self) -> npt.NDArray[np.int64]:
        """(n,) 0 for text, 1 for image, 2 for video tokens, as transformers 5 wants them."""
        ids = np.asarray(self.token_ids)
        types = np.zeros(len(ids), dtype=np.int64)
        if self.image_token_id is not None:
            types[ids == self.image_token_id] = 1
        if self.video_token_id is not None:
            types[ids == self.video_token_id] = 2
        return types

    def for_hf(self) -> dict[str, Any]:
        """Keyword arguments for a transformers model's `generate` (torch tensors, batch of 1)."""
        from visavis.engine_inputs import for_hf

        return for_hf(self)

    def for_vllm(self) -> dict[str, Any]:
        """A vLLM prompt: canonical ids, resized images and the processor options that leave them alone."""
        from visavis.engine_inputs import for_vllm

        return for_vllm(self)

    def for_sglang(self) -> dict[str, Any]:
        """Keyword arguments for SGLang's `Engine.generate`: expanded ids and processor output."""
        from visavis.engine_inputs import for_sglang

        return for_sglang(self)
