"""The one decoder of videos: PyAV (the `video` extra), the family's sampling rule, upright frames, true times.

A first pass reads packets without decoding them, for the time of every frame; the second decodes only what the wanted
frames need, jumping to keyframes over long stretches. Frames are matched by time stamp, so variable frame rates,
edit lists and reordered frames come out right. Colours are FFmpeg's conversion to RGB (the stream's own matrix and
range); transparency is composited on the background; rotation and mirroring marks are applied; sound is ignored.
"""

from __future__ import annotations

import bisect
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from visavis.chat.fetch import FetchPolicy
from visavis.chat.frames import sample_frames
from visavis.chat.image import WHITE, Background
from visavis.chat.samples import over_background
from visavis.chat.sniff import matroska_size
from visavis.chat.sources import Source
from visavis.chat.timeline import Timeline, decode_timeline, opened, read_timeline, without_undecodable_start
from visavis.chat.types import Video, VideoDefaults, VideoSampling
from visavis.errors import MediaError, MissingExtraError, shorten

__all__ = ["check_video_pixels", "decode_video"]


def decode_video(
    source: Source,
    *,
    sampling: VideoSampling,
    defaults: VideoDefaults,
    policy: FetchPolicy,
    background: Background = WHITE,
) -> Video:
    """The frames of an opened video file that the sampling rule takes (`visavis.chat.frames`).

    `Video.timestamps` are the frames' own, in seconds from the first one; `source_fps` is the container's rate unless
    the stamps contradict it by more than 2 %, then their average. Raises MediaError for what is no video, is broken,
    cut off or over the policy's caps, and MissingExtraError without PyAV.
    """
    kind = source.kind
    if kind.family != "video":
        if kind.name == "empty":
            raise MediaError("is empty (0 bytes)")
        if kind.family == "image":
            raise MediaError(f"is an image ({kind.name}), not a video; give it as an image part")
        raise MediaError(f"is {kind.name}, not a video")
    demuxer = kind.decoder
    whole = matroska_size(source.head) if demuxer == "matroska" else None
    if whole is not None and source.size < whole:  # FFmpeg plays what is there and says nothing
        raise MediaError(f"is cut off: {source.size:,} of its {whole:,} bytes are there")
    with _guarded(kind.name):
        with opened(source, demuxer) as (container, stream):
            _check_frame(stream.codec_context.width, stream.codec_context.height, policy)
            timeline = read_timeline(container, stream, kind.name)
        if timeline is None:
            timeline = decode_timeline(source, demuxer)
        wanted, fps = sample_frames(timeline.times, timeline.rate, sampling, defaults)
        frames = _decode(source, demuxer, timeline, wanted, policy, background)
        if frames is None:
            timeline = without_undecodable_start(timeline, decode_timeline(source, demuxer))
            wanted, fps = sample_frames(timeline.times, timeline.rate, sampling, defaults)
            frames = _decode(source, demuxer, timeline, wanted, policy, background)
        if frames is None:
            raise MediaError("has frames that cannot be decoded")
    return Video(
        frames=frames,
        timestamps=tuple(timeline.times[i] for i in wanted),
        fps=fps,
        source_fps=timeline.rate,
        frame_indices=tuple(wanted),
        total_frames=len(timeline.times),
        duration=timeline.duration,
        source=source.name,
    )


def check_video_pixels(frames: int, height: int, width: int, policy: FetchPolicy) -> None:
    """Raises MediaError when that many frames of that size are over the policy's cap."""
    total = frames * height * width
    if total > policy.max_video_pixels:
        raise MediaError(
            f"would be {frames} frames of {width}×{height} = {total:,} pixels, over the cap of "
            f"{policy.max_video_pixels:,}; lower fps, nframes or max_frames, or make the video smaller"
        )


def _check_frame(width: int, height: int, policy: FetchPolicy) -> None:
    if width * height > policy.max_pixels:
        raise MediaError(
            f"has frames of {width}×{height} = {width * height:,} pixels, over the cap of {policy.max_pixels:,}"
        )


@contextmanager
def _guarded(name: str) -> Iterator[None]:
    """Turns whatever FFmpeg throws at broken data into a MediaError."""
    try:
        yield
    except (MediaError, MissingExtraError):
        raise
    except Exception as error:
        # Some of PyAV's errors are plain ones; errors of our own code are not to hide behind "broken".
        if not isinstance(error, OSError | ValueError | EOFError | IndexError | OverflowError) and (
            not type(error).__module__.startswith("av.")
        ):
            raise
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        reason = shorten(reason, 100).strip("'\"")
        raise MediaError(f"is a broken {name} video: {reason}") from None


def _decode(
    source: Source, demuxer: str, timeline: Timeline, wanted: list[int], policy: FetchPolicy, background: Background
) -> npt.NDArray[np.uint8] | None:
    """uint8 (len(wanted), height, width, 3); None when some of them do not come out of the decoder."""
    frames: npt.NDArray[np.uint8] | None = None
    places: dict[int, list[int]] = {}
    for place, index in enumerate(wanted):
        places.setdefault(index, []).append(place)
    for jumping in (True, False):
        missing = dict(places)
        with opened(source, demuxer) as (container, stream):
            for index, frame in _walk(container, stream, timeline, sorted(places), jumping):
                _check_frame(frame.width, frame.height, policy)
                if frame.is_corrupt:
                    continue
                if frames is None:
                    check_video_pixels(len(wanted), frame.height, frame.width, policy)
                pixels = _to_rgb(frame, background)
                if frames is None:
                    frames = np.empty((len(wanted), *pixels.shape), dtype=np.uint8)
                if pixels.shape != frames.shape[1:]:
                    raise MediaError(
                        f"changes its size from {frames.shape[2]}×{frames.shape[1]} to "
                        f"{pixels.shape[1]}×{pixels.shape[0]} at {timeline.times[index]:.3f} s"
                    )
                frames[missing.pop(index)] = pixels
        if frames is not None and not missing:
            return frames
    return None


def _walk(
    container: Any, stream: Any, timeline: Timeline, wanted: list[int], jumping: bool
) -> Iterator[tuple[int, Any]]:
    """(index, frame) of the wanted frames, in order; those that cannot be found are left out."""
    stamps = timeline.stamps
    if stamps is None:
        ordinals = set(wanted)
        for index, frame in enumerate(container.decode(stream)):
            if index in ordinals:
                yield index, frame
        return
    position = stamps[0] - 1
    frames = container.decode(stream)
    for index in wanted:
        target = stamps[index]
        if position > target:
            continue  # passed over: the caller walks again without jumps
        before = bisect.bisect_right(timeline.keys, target) - 1
        if jumping and before >= 0 and stamps[0] <= position < timeline.keys[before]:
            container.seek(timeline.keys[before], stream=stream)
            frames = container.decode(stream)
        for frame in frames:
            if frame.pts is not None and frame.pts >= target:
                position = frame.pts
                break
        else:
            return
        if position == target:
            yield index, frame


def _to_rgb(frame: Any, background: Background) -> npt.NDArray[np.uint8]:
    """One decoded frame, upright: uint8 (height, width, 3)."""
    layout = frame.format
    if layout.has_palette or any(component.is_alpha for component in layout.components):
        pixels = over_background(frame.to_ndarray(format="rgba"), background)
    else:
        pixels = frame.to_ndarray(format="rgb24")
    matrix = frame.side_data.get("DISPLAYMATRIX")
    return pixels if matrix is None else _apply_display_matrix(pixels, struct.unpack("=9i", bytes(matrix)))


def _apply_display_matrix(pixels: npt.NDArray[np.uint8], matrix: tuple[int, ...]) -> npt.NDArray[np.uint8]:
    """Turns and mirrors by the nearest quarter turn of a display matrix (ISO/IEC 14496-12, 8.3.2): a point (x, y) of
    the stored picture is shown at (a·x + c·y, b·x + d·y), y downwards."""
    a, b, _, c, d = matrix[:5]
    if abs(a) + abs(d) >= abs(b) + abs(c):
        turned, mirror_x, mirror_y = pixels, a < 0, d < 0
    else:
        turned, mirror_x, mirror_y = pixels.transpose(1, 0, 2), c < 0, b < 0
    return turned[:: -1 if mirror_y else 1, :: -1 if mirror_x else 1]
