"""The work a plan is made for: one request's prompt, images and answer, and how many run at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from visavis.errors import ContextLengthError, ModelError, OptionError
from visavis.families.resize import PixelBounds, smart_resize
from visavis.plan.shape import ModelShape

__all__ = [
    "DEFAULT_IMAGE",
    "DEFAULT_MAX_TOKENS",
    "DEFAULT_PROMPT_TOKENS",
    "ImageLoad",
    "Workload",
    "pixel_bounds",
    "workload",
]

DEFAULT_PROMPT_TOKENS = 512
DEFAULT_MAX_TOKENS = 512
DEFAULT_IMAGE = (1080, 1920)
"""(height, width): a full-HD screen, the picture of document 000."""

MARKERS = 2
"""Tokens around an image's visual tokens: <|vision_start|> and <|vision_end|>."""

_DEFAULT_BOUNDS = {
    "qwen2_vl": PixelBounds(56 * 56, 12_845_056),
    "qwen2_5_vl": PixelBounds(56 * 56, 12_845_056),
    "qwen3_vl": PixelBounds(65_536, 16_777_216),
    "qwen3_vl_moe": PixelBounds(65_536, 16_777_216),
}


@dataclass(frozen=True, slots=True)
class ImageLoad:
    """One image after the one resize. Sizes are (height, width)."""

    original: tuple[int, int]
    resized: tuple[int, int]
    tokens: int
    patches: int


@dataclass(frozen=True, slots=True)
class Workload:
    """`concurrency` None: what fits, up to an engine's default limit. `notes`: what was assumed, since nobody said."""

    text_tokens: int
    images: tuple[ImageLoad, ...]
    max_tokens: int
    concurrency: int | None
    bounds: PixelBounds | None  # the model's; None for text models
    notes: tuple[str, ...] = ()

    @property
    def image_tokens(self) -> int:
        return sum(image.tokens for image in self.images)

    @property
    def prompt_tokens(self) -> int:
        return self.text_tokens + sum(image.tokens + MARKERS for image in self.images)

    @property
    def tokens(self) -> int:
        """Prompt and answer of one request."""
        return self.prompt_tokens + self.max_tokens

    @property
    def largest_image(self) -> ImageLoad | None:
        return max(self.images, key=lambda image: image.tokens, default=None)


def workload(
    shape: ModelShape,
    *,
    images: Sequence[tuple[int, int]] | None = None,
    prompt_tokens: int | None = None,
    max_tokens: int | None = None,
    concurrency: int | None = None,
    bounds: PixelBounds | None = None,
    max_model_len: int | None = None,
) -> Workload:
    """Completes what was said with stated assumptions and counts the visual tokens.

    `images` are (height, width) of the originals; None means one full-HD screen for vision models, () none.
    `max_model_len` is the model's context. Raises OptionError for values out of range, MediaError for an image that
    cannot be resized, ModelError for images with a text model, ContextLengthError when the request cannot fit.
    """
    notes = []
    for name, value in (
        ("--prompt-tokens", prompt_tokens),
        ("--max-tokens", max_tokens),
        ("--concurrency", concurrency),
    ):
        if value is not None and value < 1:
            raise OptionError(f"{name} {value} must be 1 or more")
    limit = max_model_len or shape.text.max_positions
    if images is None and shape.vision is not None:
        images = (DEFAULT_IMAGE,)
        notes.append(f"one {DEFAULT_IMAGE[1]}×{DEFAULT_IMAGE[0]} image a request (--image)")
    if images and shape.vision is None:
        raise ModelError(f"--image: model_type {shape.model_type} has no vision tower; leave images out")
    bounds = bounds or _DEFAULT_BOUNDS.get(shape.model_type)
    loads = tuple(_load(shape, size, bounds, i) for i, size in enumerate(images or ()))
    pictures = sum(load.tokens + MARKERS for load in loads)
    if prompt_tokens is None:
        prompt_tokens = min(DEFAULT_PROMPT_TOKENS, max(1, (limit - pictures) // 2))
        notes.append(f"{prompt_tokens} text tokens a prompt (--prompt-tokens)")
    if max_tokens is None:
        max_tokens = min(DEFAULT_MAX_TOKENS, max(1, limit - pictures - prompt_tokens))
        notes.append(f"answers of up to {max_tokens} tokens (--max-tokens)")
    if concurrency is None:
        notes.append("as many requests at once as fit, up to each engine's default limit (--concurrency)")
    work = Workload(prompt_tokens, loads, max_tokens, concurrency, bounds if shape.vision else None, tuple(notes))
    if work.tokens > limit:
        raise ContextLengthError(
            f"one request needs {work.tokens} tokens ({work.image_tokens} of images, {prompt_tokens} of text, "
            f"{max_tokens} of answer) and the model's context is {limit}; send fewer or smaller images or a lower "
            "--max-tokens"
        )
    return work


def _load(shape: ModelShape, size: tuple[int, int], bounds: PixelBounds | None, index: int) -> ImageLoad:
    vision = shape.vision
    assert vision is not None
    assert bounds is not None
    resized = smart_resize(*size, cell=vision.cell, bounds=bounds, where=f"--image number {index + 1}")
    tokens = resized[0] * resized[1] // vision.cell**2
    return ImageLoad(size, resized, tokens, tokens * vision.merge_size**2)


def pixel_bounds(preprocessor: Mapping[str, Any], model_type: str) -> PixelBounds | None:
    """The model's image bounds: `preprocessor_config.json` in either spelling, else the family's defaults."""
    default = _DEFAULT_BOUNDS.get(model_type)
    if default is None:
        return None
    size = preprocessor.get("size")
    size = size if isinstance(size, Mapping) else {}
    low = preprocessor.get("min_pixels") or size.get("shortest_edge") or size.get("min_pixels")
    high = preprocessor.get("max_pixels") or size.get("longest_edge") or size.get("max_pixels")
    return PixelBounds(
        low if isinstance(low, int) and low > 0 else default.min_pixels,
        high if isinstance(high, int) and high > 0 else default.max_pixels,
    )
