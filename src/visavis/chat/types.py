"""The few types every spelling of a chat is normalised into (see `messages.normalize`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = [
    "Conversation",
    "Image",
    "Message",
    "Part",
    "PixelLimits",
    "Role",
    "Text",
    "Video",
    "VideoDefaults",
    "VideoSampling",
]

Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True, slots=True)
class PixelLimits:
    """Per-item size wishes, in pixels, as qwen-vl-utils users write them. None: the model's default."""

    min_pixels: int | None = None
    max_pixels: int | None = None
    resized_height: int | None = None
    resized_width: int | None = None


@dataclass(frozen=True, slots=True)
class VideoSampling:
    """How frames are picked from a video file. `fps` and `nframes` exclude each other. Times in seconds."""

    fps: float | None = None
    nframes: int | None = None
    min_frames: int | None = None
    max_frames: int | None = None
    video_start: float | None = None
    video_end: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class VideoDefaults:
    """A model family's rule for picking frames where the message does not say (see `visavis.chat.frames`).

    The field's defaults are qwen-vl-utils'. transformers' `Qwen2VLVideoProcessor` is `spacing="stride"`, its
    `Qwen3VLVideoProcessor` is `frame_factor=1`.
    """

    fps: float = 2.0
    min_frames: int = 4
    max_frames: int = 768
    frame_factor: int = 2  # the number of frames becomes a multiple of it
    spacing: Literal["endpoints", "stride"] = "endpoints"  # last frame included, or one frame at each stride's start


@dataclass(frozen=True, slots=True)
class Text:
    text: str


@dataclass(frozen=True, slots=True, eq=False)
class Image:
    """A decoded image: upright, RGB, alpha composited."""

    pixels: npt.NDArray[np.uint8]  # (height, width, 3)
    limits: PixelLimits = PixelLimits()
    where: str = ""  # e.g. "messages[0].content[1]"
    source: str = ""  # file name or URL without payload, for people

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) in pixels, upright."""
        return self.pixels.shape[0], self.pixels.shape[1]


@dataclass(frozen=True, slots=True, eq=False)
class Video:
    """A decoded video: the frames of the file (or list) that were sampled, and when each was shown."""

    frames: npt.NDArray[np.uint8]  # (num_frames, height, width, 3)
    timestamps: tuple[float, ...]  # seconds from the start of the file, one per frame
    fps: float  # rate of `frames` after sampling, frames per second
    source_fps: float | None = None  # the file's own rate; None for frame lists without one
    frame_indices: tuple[int, ...] = ()  # which frames of the source were taken
    total_frames: int | None = None  # frames in the source
    duration: float | None = None  # of the source, seconds
    limits: PixelLimits = PixelLimits()
    total_pixels: int | None = None
    where: str = ""
    source: str = ""

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) of a frame in pixels."""
        return self.frames.shape[1], self.frames.shape[2]


Part: TypeAlias = Text | Image | Video


@dataclass(frozen=True, slots=True)
class Message:
    """One turn. `parts` keep the caller's order. Tool turns and tool calls keep their fields."""

    role: Role
    parts: tuple[Part, ...]
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: tuple[dict[str, Any], ...] = ()  # OpenAI shape; `arguments` JSON text or an object, as given
    reasoning_content: str | None = None  # an assistant's thinking, for templates that render it


@dataclass(frozen=True, slots=True)
class Conversation:
    """A whole normalised chat with the tools offered to the model (OpenAI function schemas)."""

    messages: tuple[Message, ...]
    tools: tuple[dict[str, Any], ...] = ()
    template_options: dict[str, Any] = field(default_factory=dict)  # e.g. enable_thinking=False for Qwen3

    @property
    def media(self) -> tuple[Image | Video, ...]:
        """Every image and video in the order of the text."""
        return tuple(p for m in self.messages for p in m.parts if not isinstance(p, Text))
