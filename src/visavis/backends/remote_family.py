"""The text side of a model that only a server knows: no template, no tokenizer, no resize of our own."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from visavis.chat.types import Conversation, Image, Text, Video
from visavis.errors import MediaError, OptionError
from visavis.families.base import CountReport, Family
from visavis.families.folder import ModelFolder
from visavis.prompt import PreparedMedia, Prompt, Span

__all__ = ["RemoteFamily"]

UNKNOWN_CONTEXT = 1 << 20
"""Stands for a context length that nobody told us; the server refuses what does not fit."""


class _NoTokenizer:
    """Ids never occur: such a server takes and gives text."""

    vocab_size = 0
    special_ids: frozenset[int] = frozenset()

    def encode(self, text: str, *, allow_special: bool = False) -> list[int]:
        return []

    def decode(self, ids: Sequence[int]) -> str:
        return ""

    def id_to_token(self, token_id: int) -> str | None:
        return None

    def token_to_id(self, token: str) -> int | None:
        return None


class RemoteFamily(Family):
    """Prompts without ids: the conversation and the images as they were decoded."""

    name = "remote"

    def __init__(self, model: str) -> None:
        self.folder = ModelFolder(Path("/nonexistent"), model)
        self.tokenizer = _NoTokenizer()
        self.eos_token_ids = ()
        self.pad_token_id = -1
        self.max_model_len = UNKNOWN_CONTEXT
        self.box_format = "none"
        self.patch_rule = None

    @property
    def vocab_size(self) -> None:
        return None

    @property
    def supports_images(self) -> bool:
        return True

    @property
    def supports_videos(self) -> bool:
        return False

    def prepare(self, conversation: Conversation, *, add_generation_prompt: bool = True) -> Prompt:
        media = tuple(_as_it_is(item) for item in conversation.media)
        text = "\n".join(p.text for m in conversation.messages for p in m.parts if isinstance(p, Text))
        return Prompt(
            model=self.folder.name,
            family=self.name,
            text=text,
            canonical_ids=(),
            token_ids=(),
            position_ids=np.zeros((1, 0), dtype=np.int64),
            media=media,
        )

    def count(self, conversation: Conversation, *, add_generation_prompt: bool = True) -> CountReport:
        raise OptionError(
            f"tokens of {self.folder.name} cannot be counted: only the server has its tokenizer; "
            "give the model's folder or hub id as openai.tokenizer"
        )


def _as_it_is(item: Image | Video) -> PreparedMedia:
    if isinstance(item, Video):
        raise MediaError(f"{item.where}: videos cannot be sent to a chat server")
    limits = item.limits
    if any(v is not None for v in (limits.min_pixels, limits.max_pixels, limits.resized_height, limits.resized_width)):
        raise MediaError(
            f"{item.where}: pixel limits need the model's own resize rule; give its folder or id as openai.tokenizer"
        )
    digest = hashlib.sha256(repr((item.pixels.shape, "image")).encode() + np.ascontiguousarray(item.pixels).tobytes())
    return PreparedMedia(
        kind="image",
        pixels=item.pixels,
        original_size=item.size,
        size=item.size,
        grid=None,
        num_tokens=0,
        span=Span(0, 0),
        canonical_span=Span(0, 0),
        content_hash=digest.hexdigest(),
        where=item.where,
        source=item.source,
    )
