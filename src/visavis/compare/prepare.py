"""A conversation's prompt under settings of one backend's own: pixel limits and a system prompt."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import TYPE_CHECKING

from visavis.chat.types import Conversation, Message, Part, PixelLimits, Text
from visavis.families.base import chat_source
from visavis.prompt import Prompt

if TYPE_CHECKING:
    from visavis.families import Family

__all__ = ["preparer", "with_limits", "with_system"]


def preparer(family: Family, conversation: Conversation) -> Callable[[PixelLimits | None, str | None], Prompt]:
    """What a `Case` needs to be prepared again."""

    def prepare(pixels: PixelLimits | None, system: str | None) -> Prompt:
        changed = conversation if pixels is None else with_limits(conversation, pixels)
        changed = changed if system is None else with_system(changed, system)
        return replace(family.prepare(changed), chat=chat_source(changed, True))

    return prepare


def with_limits(conversation: Conversation, pixels: PixelLimits) -> Conversation:
    """Every image and video under `pixels`, which wins over what stands beside the item itself."""
    asked = {f.name: v for f in fields(pixels) if (v := getattr(pixels, f.name)) is not None}
    if "resized_height" not in asked:
        asked |= {"resized_height": None, "resized_width": None}  # a fixed size would leave the limits no say

    def limited(part: Part) -> Part:
        return part if isinstance(part, Text) else replace(part, limits=replace(part.limits, **asked))

    messages = tuple(replace(m, parts=tuple(limited(p) for p in m.parts)) for m in conversation.messages)
    return replace(conversation, messages=messages)


def with_system(conversation: Conversation, system: str) -> Conversation:
    """With this system prompt instead of what the conversation begins with."""
    others = tuple(m for m in conversation.messages if m.role != "system")
    return replace(conversation, messages=(Message("system", (Text(system),)), *others))
