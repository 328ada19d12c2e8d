"""Options that stand beside a medium in a message: read, checked, named when wrong."""

from __future__ import annotations

import difflib
import math
import operator
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from visavis.chat.types import PixelLimits, VideoSampling
from visavis.errors import MessageError, shorten

__all__ = [
    "IMAGE_OPTIONS",
    "VIDEO_OPTIONS",
    "merge_limits",
    "pixel_limits",
    "positive_int",
    "positive_number",
    "refuse_unknown",
    "video_sampling",
]

IMAGE_OPTIONS = frozenset({"min_pixels", "max_pixels", "resized_height", "resized_width"})
VIDEO_OPTIONS = IMAGE_OPTIONS | {
    "fps", "nframes", "min_frames", "max_frames", "video_start", "video_end", "total_pixels", "sample_fps",
}  # fmt: skip

_MOST = 10**15  # what follows computes in floats; larger whole numbers would not survive it


def pixel_limits(part: Mapping[str, Any], where: str) -> PixelLimits:
    """`min_pixels`, `max_pixels`, `resized_height`, `resized_width` of a part. Raises MessageError."""
    values = {name: positive_int(part, name, where) for name in sorted(IMAGE_OPTIONS)}
    limits = PixelLimits(**values)
    _check_limits(limits, where)
    return limits


def merge_limits(own: PixelLimits, default: PixelLimits | None, where: str) -> PixelLimits:
    """An item's own wishes, filled from the request's. A fixed size of the item leaves nothing to fill, and an item
    with bounds of its own does not take a fixed size from the request."""
    if default is None or own == default or own.resized_height is not None:
        return own
    if own == PixelLimits():
        return default
    merged = replace(
        own,
        min_pixels=own.min_pixels if own.min_pixels is not None else default.min_pixels,
        max_pixels=own.max_pixels if own.max_pixels is not None else default.max_pixels,
    )
    _check_limits(merged, where)
    return merged


def _check_limits(limits: PixelLimits, where: str) -> None:
    if (limits.resized_height is None) != (limits.resized_width is None):
        given, lacking = ("resized_height", "resized_width")
        if limits.resized_height is None:
            given, lacking = lacking, given
        raise MessageError(f"{where}.{given}: given without {lacking}; give both or neither")
    if limits.min_pixels is not None and limits.max_pixels is not None and limits.min_pixels > limits.max_pixels:
        raise MessageError(f"{where}.min_pixels: {limits.min_pixels} is more than max_pixels {limits.max_pixels}")


def video_sampling(part: Mapping[str, Any], where: str) -> VideoSampling:
    """`fps` (a number or a list of one), `nframes`, `min_frames`, `max_frames`, `video_start`, `video_end`."""
    sampling = VideoSampling(
        fps=frame_rate(part, "fps", where),
        nframes=positive_int(part, "nframes", where),
        min_frames=positive_int(part, "min_frames", where),
        max_frames=positive_int(part, "max_frames", where),
        video_start=positive_number(part, "video_start", where, zero=True),
        video_end=positive_number(part, "video_end", where),
    )
    if sampling.nframes is not None:
        for name in ("fps", "min_frames", "max_frames"):
            if getattr(sampling, name) is not None:
                raise MessageError(f"{where}.nframes: excludes {name}; give one of them")
    least, most = sampling.min_frames, sampling.max_frames
    if least is not None and most is not None and least > most:
        raise MessageError(f"{where}.min_frames: {least} is more than max_frames {most}")
    start, end = sampling.video_start, sampling.video_end
    if start is not None and end is not None and start >= end:
        raise MessageError(f"{where}.video_start: {start:g} s is not before video_end {end:g} s")
    return sampling


def frame_rate(part: Mapping[str, Any], name: str, where: str) -> float | None:
    """A rate as a number or as a list of one: both habits are in use, and one video has one rate."""
    value = part.get(name)
    if isinstance(value, list | tuple):
        if len(value) != 1:
            raise MessageError(f"{where}.{name}: a list of {len(value)} values; one video takes one number")
        return positive_number({name: value[0]}, name, where)
    return positive_number(part, name, where)


def positive_int(part: Mapping[str, Any], name: str, where: str) -> int | None:
    """A whole number of 1 or more; 1003520.0 is one too. Raises MessageError."""
    value = part.get(name)
    if value is None:
        return None
    number: int | None = None
    if not isinstance(value, bool):
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        try:
            number = operator.index(value)
        except TypeError:
            number = None
    if number is None or number < 1:
        raise MessageError(f"{where}.{name}: {shorten(value)} must be a whole number of 1 or more")
    if number > _MOST:
        raise MessageError(f"{where}.{name}: {shorten(value)} is larger than anything it could bound")
    return number


def positive_number(part: Mapping[str, Any], name: str, where: str, *, zero: bool = False) -> float | None:
    """A finite number above 0 (with `zero`: 0 too). Raises MessageError."""
    value = part.get(name)
    if value is None:
        return None
    number = math.nan
    if not isinstance(value, bool | str | bytes):
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError):
            number = math.nan
    if not (math.isfinite(number) and (number > 0 or (zero and number == 0))):
        raise MessageError(f"{where}.{name}: {shorten(value)} must be a number {'of 0 or more' if zero else 'above 0'}")
    return number


def refuse_unknown(part: Mapping[str, Any], known: Collection[str], where: str, what: str) -> None:
    """Raises MessageError for the first key that is not known and says something (is not None)."""
    for key, value in part.items():
        if key in known or value is None:
            continue
        name = key if isinstance(key, str) else repr(key)
        near = difflib.get_close_matches(name, list(known), n=1)
        hint = f"; did you mean {near[0]}?" if near else f"; known here: {', '.join(sorted(known))}"
        raise MessageError(f"{where}: unknown key {shorten(name)} in {what}{hint}")
