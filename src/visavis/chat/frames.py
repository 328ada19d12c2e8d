"""Which frames of a video are taken: arithmetic only.

The number is `total / source_fps · fps`, held between min_frames and max_frames and never more than there are, then
rounded down to a multiple of `frame_factor`; an explicit `nframes` is rounded to the nearest multiple (a tie to the
even one, Python's `round`). `total` counts the frames between video_start and video_end. With
`spacing="endpoints"` they are `round(linspace(first, last, n))`, as qwen-vl-utils and transformers'
Qwen3VLVideoProcessor pick them; with "stride" `floor(first + i · total / n)`, as its Qwen2VLVideoProcessor does.

A clip too short for one multiple gives all its frames: families repeat the last one to fill a patch in time.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence

import numpy as np

from visavis.chat.types import VideoDefaults, VideoSampling
from visavis.errors import MediaError

__all__ = ["frame_range", "num_frames", "sample_frames", "spread"]


def sample_frames(
    times: Sequence[float], source_fps: float, sampling: VideoSampling, defaults: VideoDefaults
) -> tuple[list[int], float]:
    """(indices to take, frames per second of what is taken) of a video whose frames are shown at `times` (seconds).

    Raises MediaError when the wish cannot be met, with the numbers.
    """
    first, last = frame_range(times, sampling)
    total = last - first + 1
    count = num_frames(total, source_fps, sampling, defaults)
    return spread(first, last, count, defaults), count / total * source_fps


def frame_range(times: Sequence[float], sampling: VideoSampling) -> tuple[int, int]:
    """(first, last) index shown within [video_start, video_end], by the frames' own times."""
    first, last = 0, len(times) - 1
    slack = 1e-6  # times come from fractions: 0.1 must find the frame at 1/10 s
    if sampling.video_start is not None:
        first = bisect.bisect_left(times, sampling.video_start - slack)
    if sampling.video_end is not None:
        last = bisect.bisect_right(times, sampling.video_end + slack) - 1
    if first > last:
        raise MediaError(
            f"no frame is shown between video_start {sampling.video_start or 0:g} s and video_end "
            f"{times[-1] if sampling.video_end is None else sampling.video_end:g} s; "
            f"it has {len(times)} frames, the last at {times[-1]:.3f} s"
        )
    return first, last


def num_frames(total: int, source_fps: float, sampling: VideoSampling, defaults: VideoDefaults) -> int:
    """How many of `total` frames are taken, 1 or more."""
    factor = defaults.frame_factor
    if sampling.nframes is not None:
        count = round(sampling.nframes / factor) * factor
        if count > total:
            raise MediaError(
                f"nframes {sampling.nframes} (as a multiple of {factor}: {count}), but it has {total} frames"
            )
        if count < 1:
            raise MediaError(f"nframes {sampling.nframes} rounds to 0; this model takes multiples of {factor}")
        return count
    fps = sampling.fps if sampling.fps is not None else defaults.fps
    least = sampling.min_frames if sampling.min_frames is not None else defaults.min_frames
    most = sampling.max_frames if sampling.max_frames is not None else defaults.max_frames
    if most < factor:
        raise MediaError(f"max_frames {most} is less than this model takes at a time ({factor})")
    if least > most:
        raise MediaError(f"min_frames {least} is more than max_frames {most}")
    if total < factor:
        return total
    least = math.ceil(least / factor) * factor
    most = math.floor(min(most, total) / factor) * factor
    wanted = min(max(total / source_fps * fps, least), most, total)
    return max(math.floor(wanted / factor), 1) * factor


def spread(first: int, last: int, count: int, defaults: VideoDefaults) -> list[int]:
    """`count` indices spread over first…last."""
    total = last - first + 1
    if defaults.spacing == "stride":
        # Exact. transformers' torch.arange rounds in float32: beyond some 17,000 frames it may take a neighbour.
        return [first + i * total // count for i in range(count)]
    return [int(i) for i in np.linspace(first, last, count).round()]
