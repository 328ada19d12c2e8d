"""Animated GIF, PNG and WebP given as a video: Pillow composes their frames as browsers do, and needs no extra."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import numpy as np

from visavis.chat.fetch import FetchPolicy
from visavis.chat.frames import sample_frames
from visavis.chat.image import decode_pil, guarded, open_encoded
from visavis.chat.samples import WHITE, Background
from visavis.chat.sources import Source
from visavis.chat.types import Video, VideoDefaults, VideoSampling
from visavis.chat.video import check_video_pixels
from visavis.errors import MediaError

__all__ = ["decode_animation"]

_UNSAID_MS = 100
"""How long browsers show a frame whose duration is 0."""


def decode_animation(
    source: Source,
    *,
    sampling: VideoSampling,
    defaults: VideoDefaults,
    policy: FetchPolicy,
    background: Background = WHITE,
) -> Video:
    """The frames of an opened animation that the sampling rule takes. Raises MediaError, for a still picture too.

    Frames are `visavis.chat.image`'s; times come from the frames' durations, 0 meaning 0.1 s. `source_fps` is the
    average rate.
    """
    kind = source.kind
    data = source.read(policy.max_video_bytes)

    image: Any = open_encoded(data, kind, policy)
    with guarded(kind.name):
        order = _animated(image)
    if len(order) < 2:
        raise MediaError(f"is a still image ({kind.name}), not a video; give it as an image part")
    durations, size = [], image.size
    for i in order:
        with guarded(kind.name):
            image.seek(i)
            if image.size != size:  # a GIF's frame may reach over the edge, which widens the picture from there on
                raise MediaError(f"changes its size from {size[0]}×{size[1]} to {image.width}×{image.height}")
            image.load()  # WebP tells a frame's duration only then
        durations.append((image.info.get("duration") or _UNSAID_MS) / 1000)
    ends = list(accumulate(durations))
    times = [0.0, *ends[:-1]]
    rate = len(times) / ends[-1]
    wanted, fps = sample_frames(times, rate, sampling, defaults)
    check_video_pixels(len(wanted), image.height, image.width, policy)
    image = open_encoded(data, kind, policy)
    frames = np.empty((len(wanted), image.height, image.width, 3), dtype=np.uint8)
    for place, i in enumerate(wanted):
        with guarded(kind.name):
            image.seek(order[i])
        frames[place] = decode_pil(image, policy=policy, background=background)
    return Video(
        frames=frames,
        timestamps=tuple(times[i] for i in wanted),
        fps=fps,
        source_fps=rate,
        frame_indices=tuple(wanted),
        total_frames=len(times),
        duration=ends[-1],
        source=source.name,
    )


def _animated(image: Any) -> range:
    """Which of the file's frames play: a PNG may begin with a picture for readers that know no animation."""
    return range(1 if image.info.get("default_image") else 0, getattr(image, "n_frames", 1))
