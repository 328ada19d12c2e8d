"""When every frame of a video file is shown, mostly without decoding it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Any

from visavis.chat.sources import Source
from visavis.errors import MediaError, MissingExtraError

__all__ = ["Timeline", "decode_timeline", "opened", "read_timeline", "without_undecodable_start"]

_HIDDEN_FRAMES = {"vp8"}
"""Codecs whose packets do not all show a picture."""
_ATTACHED_PICTURE = 0x400  # AV_DISPOSITION_ATTACHED_PIC: cover art, stored as a track of one frame
_RATE_TOLERANCE = Fraction(1, 50)
"""How far the container's frame rate may be from the average of the time stamps before that is believed instead."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """When every frame is shown. `stamps` in `time_base` units, rising; None when the file has none."""

    stamps: list[int] | None
    keys: list[int]  # stamps one can jump to
    times: list[float]  # seconds from the first frame
    rate: float  # frames per second
    duration: float


@contextmanager
def opened(source: Source, demuxer: str) -> Iterator[tuple[Any, Any]]:
    """(container, its video stream), from the start.

    Opened as a file object with the demuxer named: FFmpeg left to guess would follow playlists that name other
    files and URLs.
    """
    try:
        import av
    except ImportError:
        raise MissingExtraError("reading a video file", "video") from None

    source.stream.seek(0)
    with av.open(source.stream, format=demuxer, metadata_errors="replace") as container:
        streams = container.streams.video
        stream = next((s for s in streams if not int(getattr(s, "disposition", 0)) & _ATTACHED_PICTURE), None)
        if stream is None:
            raise MediaError("has no video track")
        if stream.codec_context is None:
            raise MediaError("is in a codec that FFmpeg cannot decode here")
        stream.codec_context.thread_type = "AUTO"
        yield container, stream


def read_timeline(container: Any, stream: Any, name: str) -> Timeline | None:
    """From packets alone; None when they do not tell: without a time each, or with some that show nothing."""
    if stream.codec_context.name in _HIDDEN_FRAMES:
        return None
    stamps: list[int] = []
    keys: list[int] = []
    packets = 0
    latest, last_duration = -(1 << 63), 0
    for packet in container.demux(stream):
        if packet.size == 0:  # the flush at the end
            continue
        packets += 1
        if packet.is_corrupt:
            raise MediaError(f"is damaged: packet {packets - 1} of its video track is incomplete")
        if packet.is_discard:  # cut away by an edit list
            continue
        if packet.pts is None:
            return None
        if packet.pts > latest:
            latest, last_duration = packet.pts, packet.duration or 0
        stamps.append(packet.pts)
        if packet.is_keyframe:
            keys.append(packet.pts)
    if name in ("MP4", "QuickTime") and packets < stream.frames:
        raise MediaError(f"is cut off: {packets} of its {stream.frames} frames are there")
    if not stamps:
        raise MediaError("has no frames")
    unique = sorted(set(stamps))
    if len(unique) != len(stamps):
        return None
    return _timeline(unique, sorted(keys), stream, last_duration)


def decode_timeline(source: Source, demuxer: str) -> Timeline:
    """By decoding every frame: slow, always right."""
    with opened(source, demuxer) as (container, stream):
        stamps = [frame.pts for frame in container.decode(stream)]
        if not stamps:
            raise MediaError("has no frames that can be decoded")
        known = [s for s in stamps if s is not None]
        if len(known) == len(stamps) and all(a < b for a, b in pairwise(known)):
            return _timeline(known, [], stream, 0)
        rate = Fraction(stream.average_rate or stream.guessed_rate or 25)
        times = [float(i / rate) for i in range(len(stamps))]
        return Timeline(None, [], times, float(rate), float(len(stamps) / rate))


def without_undecodable_start(packets: Timeline, decoded: Timeline) -> Timeline:
    """`decoded`, if only frames before its first are lost: a recording cut out of a longer one begins with frames that
    lean on what was cut away, and no player shows them. Raises MediaError for frames lost elsewhere."""
    if packets.stamps is None or decoded.stamps is None:
        return decoded
    begin = decoded.stamps[0]
    lost = sorted({s for s in packets.stamps if s >= begin} - set(decoded.stamps))
    if lost:
        at = packets.times[packets.stamps.index(lost[0])]
        raise MediaError(f"is broken: {len(lost)} frames cannot be decoded, the first at {at:.3f} s")
    return decoded


def _timeline(stamps: list[int], keys: list[int], stream: Any, last_duration: int) -> Timeline:
    base = Fraction(stream.time_base)
    declared = stream.average_rate or stream.guessed_rate
    rate = Fraction(declared) if declared else None
    if len(stamps) > 1:
        measured = (len(stamps) - 1) / ((stamps[-1] - stamps[0]) * base)
        if rate is None or abs(rate - measured) > measured * _RATE_TOLERANCE:
            rate = measured
    rate = rate or Fraction(1)
    times = [float((s - stamps[0]) * base) for s in stamps]
    last = float(last_duration * base) or float(1 / rate)
    return Timeline(stamps, keys, times, float(rate), times[-1] + last)
