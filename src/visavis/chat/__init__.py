"""Chat messages in any spelling, media in any wrapping, normalised once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from visavis.chat.types import (
    Conversation,
    Image,
    Message,
    PixelLimits,
    Text,
    Video,
    VideoDefaults,
    VideoSampling,
)

if TYPE_CHECKING:
    from visavis.chat.fetch import PERMISSIVE, STRICT, FetchPolicy

__all__ = [
    "PERMISSIVE",
    "STRICT",
    "Conversation",
    "FetchPolicy",
    "Image",
    "Message",
    "PixelLimits",
    "Text",
    "Video",
    "VideoDefaults",
    "VideoSampling",
    "normalize",
]


def normalize(messages: Any, **options: Any) -> Conversation:
    """Any spelling of a chat → Conversation with decoded media.

    Options: `tools`, `policy`, `limits` or `min_pixels` and `max_pixels`, `video_defaults`, `template_options`,
    `base_dir`, `background`: see `visavis.chat.messages.normalize`.
    """
    from visavis.chat.messages import normalize as run

    return run(messages, **options)


def __getattr__(name: str) -> Any:
    if name in ("FetchPolicy", "PERMISSIVE", "STRICT"):
        from visavis.chat import fetch

        return getattr(fetch, name)
    raise AttributeError(f"module 'visavis.chat' has no attribute {name!r}")
