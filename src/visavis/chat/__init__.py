"""Chat messages in any spelling, media in any wrapping, normalised once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from visavis.chat.types import Conversation, Image, Message, PixelLimits, Text, Video, VideoSampling

if TYPE_CHECKING:
    from visavis.chat.fetch import FetchPolicy

__all__ = ["Conversation", "Image", "Message", "PixelLimits", "Text", "Video", "VideoSampling", "normalize"]


def normalize(
    messages: Any,
    *,
    tools: Any = None,
    policy: FetchPolicy | None = None,
    limits: PixelLimits | None = None,
    template_options: dict[str, Any] | None = None,
    base_dir: str | None = None,
) -> Conversation:
    """Any spelling of a chat → Conversation with decoded media. See `visavis.chat.messages`."""
    from visavis.chat.messages import normalize as run

    return run(
        messages, tools=tools, policy=policy, limits=limits, template_options=template_options, base_dir=base_dir
    )
