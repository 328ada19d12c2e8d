"""One medium of a message, in any wrapping → `Image` or `Video`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from visavis.chat.fetch import PERMISSIVE, FetchPolicy
from visavis.chat.options import frame_rate, positive_int, video_sampling
from visavis.chat.samples import WHITE, Background
from visavis.chat.sources import Source, open_source
from visavis.chat.types import Image, PixelLimits, Video, VideoDefaults
from visavis.errors import MediaError, MessageError

__all__ = ["Kind", "MediaReader", "is_bare_medium", "naming"]

Kind = Literal["image", "video", "any"]

DEFAULT_LIST_FPS = 2.0
"""Frames per second of a list of frames that came without a rate, as in qwen-vl-utils; `source_fps` is then None."""

_FILE_ONLY = ("nframes", "min_frames", "max_frames", "video_start", "video_end")


@contextmanager
def naming(where: str) -> Iterator[None]:
    """Puts the part's place before the text of what goes wrong inside."""
    try:
        yield
    except (MediaError, MessageError) as error:
        if str(error).startswith("messages["):
            raise
        raise type(error)(f"{where}: {error}") from None


def is_bare_medium(value: object) -> bool:
    """Whether `value` can stand as a medium without a part around it (strings cannot: they are text)."""
    return (
        isinstance(value, bytes | bytearray | memoryview | os.PathLike | np.ndarray)
        or _is_decoded(value)
        or callable(getattr(value, "read", None))
    )


def _is_decoded(value: object) -> bool:
    """A PIL image, told without importing Pillow when nobody has."""
    module = sys.modules.get("PIL.Image")
    return module is not None and isinstance(value, module.Image)


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray | memoryview)


@dataclass(frozen=True, slots=True)
class MediaReader:
    """Reads the media of one request by its policy and defaults."""

    policy: FetchPolicy = PERMISSIVE
    base_dir: str | None = None
    background: Background = WHITE
    video_defaults: VideoDefaults = field(default_factory=VideoDefaults)

    def read(
        self, value: Any, kind: Kind, where: str, options: Mapping[str, Any], limits: PixelLimits
    ) -> Image | Video:
        """`value`: path, URL, data URL, base64, bytes, file object, PIL image, numpy array, or a list of frames.

        `kind` "any" looks at the content. `options` are the part's (see `visavis.chat.options`). Raises MediaError
        and MessageError naming `where`.
        """
        with naming(where):
            if kind == "image" or (kind == "any" and isinstance(value, np.ndarray) and value.ndim != 4):
                return self._still(value, where, limits)
            if isinstance(value, np.ndarray):
                return self._frame_array(value, where, options, limits)
            if _is_list(value):
                return self._frame_list(value, where, options, limits)
            if _is_decoded(value):
                if kind == "video":
                    raise MessageError("a PIL image is no video; give a list of frames")
                return self._still(value, where, limits)
            with open_source(value, self.policy, expected=kind, base_dir=self.base_dir) as source, _of(source):
                if kind == "video" or source.kind.family == "video":
                    return self._video(source, where, options, limits)
                return self._image(source, where, limits)

    def _still(self, value: Any, where: str, limits: PixelLimits) -> Image:
        if isinstance(value, Image):
            return value
        if isinstance(value, np.ndarray):
            return self._array(value, where, limits)
        if _is_decoded(value):
            return self._pil(value, where, limits)
        if _is_list(value):
            raise MessageError("a list is no image; give each image a part of its own")
        with open_source(value, self.policy, expected="image", base_dir=self.base_dir) as source, _of(source):
            return self._image(source, where, limits)

    def _array(self, value: np.ndarray[Any, Any], where: str, limits: PixelLimits) -> Image:
        from visavis.chat.image import decode_array

        pixels = decode_array(value, policy=self.policy, background=self.background)
        return Image(pixels, limits, where, f"array {'×'.join(map(str, value.shape))}")

    def _pil(self, value: Any, where: str, limits: PixelLimits) -> Image:
        from visavis.chat.image import decode_pil

        pixels = decode_pil(value, policy=self.policy, background=self.background)
        name = getattr(value, "filename", "") or f"PIL image {value.width}×{value.height}"
        return Image(pixels, limits, where, os.fsdecode(name))

    def _image(self, source: Source, where: str, limits: PixelLimits) -> Image:
        from visavis.chat.image import check_is_image, decode_bytes

        check_is_image(source.kind)  # before reading a large file that is none
        data = source.read(self.policy.max_bytes)
        pixels = decode_bytes(data, policy=self.policy, background=self.background)
        return Image(pixels, limits, where, source.name)

    def _video(self, source: Source, where: str, options: Mapping[str, Any], limits: PixelLimits) -> Video:
        from visavis.chat.animation import decode_animation
        from visavis.chat.video import decode_video

        if options.get("sample_fps") is not None:
            raise MessageError("sample_fps belongs to lists of frames; for a file say fps")
        decode = decode_animation if source.kind.decoder in ("GIF", "PNG", "WEBP") else decode_video
        video = decode(
            source,
            sampling=video_sampling(options, where),
            defaults=self.video_defaults,
            policy=self.policy,
            background=self.background,
        )
        return replace(video, limits=limits, total_pixels=positive_int(options, "total_pixels", where), where=where)

    def _frame_array(
        self, value: np.ndarray[Any, Any], where: str, options: Mapping[str, Any], limits: PixelLimits
    ) -> Video:
        if value.ndim != 4 or value.shape[3] not in (1, 3, 4) or value.shape[0] < 1:
            shape = " × ".join(map(str, value.shape))
            hint = ""
            if value.ndim == 4 and value.shape[1] in (1, 3, 4):
                hint = "; it looks like channels first: give array.transpose(0, 2, 3, 1)"
            raise MediaError(f"is an array of {shape}; a video is (frames, height, width, 3){hint}")
        return self._frame_list(list(value), where, options, limits, f"array {'×'.join(map(str, value.shape))}")

    def _frame_list(
        self, frames: Sequence[Any], where: str, options: Mapping[str, Any], limits: PixelLimits, source: str = ""
    ) -> Video:
        """Frames as they are, none left out: a list has been sampled by whoever made it."""
        from visavis.chat.video import check_video_pixels

        for name in _FILE_ONLY:
            if options.get(name) is not None:
                raise MessageError(f"{name} is for video files; a list of frames is taken whole, with its rate in fps")
        if not frames:
            raise MediaError("is a list of no frames")
        given = frame_rate(options, "fps", where)
        sample = frame_rate(options, "sample_fps", where)
        if given is not None and sample is not None and given != sample:
            raise MessageError(
                f"fps {given:g} and sample_fps {sample:g} disagree; for a list of frames they mean the same"
            )
        rate = given if given is not None else sample
        stack = np.empty((0, 0, 0, 3), dtype=np.uint8)
        for i, frame in enumerate(frames):
            with naming(f"{where}[{i}]"):
                pixels = self._still(frame, where, limits).pixels
            if i == 0:
                check_video_pixels(len(frames), pixels.shape[0], pixels.shape[1], self.policy)
                stack = np.empty((len(frames), *pixels.shape), dtype=np.uint8)
            if pixels.shape != stack.shape[1:]:
                raise MediaError(
                    f"frame {i} is {pixels.shape[1]}×{pixels.shape[0]}, frame 0 is {stack.shape[2]}×{stack.shape[1]}; "
                    "all frames of a video have one size"
                )
            stack[i] = pixels
        fps = rate if rate is not None else DEFAULT_LIST_FPS
        return Video(
            frames=stack,
            timestamps=tuple(i / fps for i in range(len(frames))),
            fps=fps,
            source_fps=rate,
            frame_indices=tuple(range(len(frames))),
            total_frames=len(frames),
            duration=len(frames) / fps,
            limits=limits,
            total_pixels=positive_int(options, "total_pixels", where),
            where=where,
            source=source or f"list of {len(frames)} frames",
        )


@contextmanager
def _of(source: Source) -> Iterator[None]:
    """Puts the source's name before what is wrong with its content."""
    try:
        yield
    except MediaError as error:
        text = str(error)
        if text.startswith((source.name, "messages[")):
            raise
        raise MediaError(f"{source.name} {text}") from None
