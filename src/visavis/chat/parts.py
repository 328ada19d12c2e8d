"""One piece of a message's content, in any spelling → `Text`, `Image` or `Video`."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from visavis.chat.media import Kind, MediaReader, is_bare_medium
from visavis.chat.options import IMAGE_OPTIONS, VIDEO_OPTIONS, merge_limits, pixel_limits, refuse_unknown
from visavis.chat.types import Image, Part, PixelLimits, Text, Video
from visavis.errors import MessageError, shorten

__all__ = ["PartReader", "as_mapping", "is_part", "text_of"]

_TEXT_KEYS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
_KINDS: dict[str, Kind] = {
    "image": "image",
    "image_url": "image",
    "input_image": "image",
    "image_pil": "image",
    "video": "video",
    "video_url": "video",
    "input_video": "video",
    "file": "any",
    "input_file": "any",
}
_TYPES = frozenset(_TEXT_KEYS) | frozenset(_KINDS)

_WRAPPINGS = frozenset({"url", "path", "base64", "b64_json", "data", "bytes", "source", "file_data", "file_url"})
_OWN_KEYS: dict[Kind, frozenset[str]] = {
    "image": frozenset({"image", "image_url", "input_image", "image_pil"}),
    "video": frozenset({"video", "video_url", "input_video", "frames"}),
    "any": frozenset({"file", "input_file"}),
}
_OPTIONS: dict[Kind, frozenset[str]] = {"image": IMAGE_OPTIONS, "video": VIDEO_OPTIONS, "any": VIDEO_OPTIONS}
_VIDEO_ONLY = VIDEO_OPTIONS - IMAGE_OPTIONS

_HARMLESS = frozenset(
    {"type", "detail", "cache_control", "uuid", "id", "name", "filename", "mime_type", "media_type", "format"}
)
"""Accepted and without effect: billing and caching hints, and declarations that the content itself overrules."""
_HARMLESS_IN_TEXT = frozenset({"type", "cache_control", "annotations", "logprobs", "id"})
_DETAILS = ("auto", "high", "original")
_ELSEWHERE = {
    "audio": "audio is not supported",
    "audio_url": "audio is not supported",
    "input_audio": "audio is not supported",
    "image_embeds": "precomputed embeddings are not supported; give the picture",
    "tool_use": "give tool calls in the message's tool_calls",
    "tool_call": "give tool calls in the message's tool_calls",
    "tool_result": "give tool results in a message of role tool",
    "thinking": "give an assistant's thinking in the message's reasoning_content",
    "reasoning": "give an assistant's thinking in the message's reasoning_content",
}


def as_mapping(value: object) -> Mapping[str, Any] | None:
    """A mapping, or the fields of a pydantic-like object (OpenAI's among them); None for anything else."""
    if isinstance(value, Mapping):
        return value
    dump: Callable[[], Any] | None = getattr(value, "model_dump", None)
    if callable(dump) and not isinstance(value, type):
        fields = dump()
        return fields if isinstance(fields, Mapping) else None
    return None


def is_part(value: Mapping[str, Any]) -> bool:
    """Whether a mapping is a content part rather than a message: it has no role, and says what it holds."""
    if "role" in value:
        return False
    return value.get("type") in _TYPES or any(
        key in value for key in ("text", *_OWN_KEYS["image"], *_OWN_KEYS["video"])
    )


def text_of(value: object, where: str) -> Text:
    """Raises MessageError unless `value` is a string that can be written as UTF-8."""
    if not isinstance(value, str):
        raise MessageError(f"{where}: {type(value).__name__} {shorten(value)} is not text")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise MessageError(
            f"{where}: half a surrogate pair (U+{ord(value[error.start]):04X}) at character {error.start}; "
            "the text was cut inside a character or read with the wrong encoding"
        ) from None
    return Text(value)


@dataclass(frozen=True, slots=True)
class PartReader:
    """Reads content parts. `limits` are the request's, for items without their own."""

    media: MediaReader
    limits: PixelLimits | None = None

    def read(self, value: object, where: str) -> Part:
        """Raises MessageError and MediaError naming `where`."""
        if isinstance(value, str):
            return text_of(value, where)
        if isinstance(value, Text):
            return text_of(value.text, where)
        if isinstance(value, Image | Video):
            return self._own(value, where)
        if is_bare_medium(value):
            return self.media.read(value, "any", where, {}, self.limits or PixelLimits())
        part = as_mapping(value)
        if part is None:
            raise MessageError(
                f"{where}: {type(value).__name__} is no content; give text, a part such as "
                '{"type": "image", "image": …}, a PIL image, a numpy array, bytes or a pathlib.Path'
            )
        kind = self._type(part, where)
        return self._text(part, kind, where) if kind in _TEXT_KEYS else self._medium(part, kind, where)

    def _own(self, value: Image | Video, where: str) -> Part:
        pixels = value.pixels if isinstance(value, Image) else value.frames
        dims = 3 if isinstance(value, Image) else 4
        if not (isinstance(pixels, np.ndarray) and pixels.dtype == np.uint8 and pixels.ndim == dims):
            raise MessageError(f"{where}: {type(value).__name__} wants a uint8 array of {dims} dimensions")
        if pixels.shape[-1] != 3 or pixels.size == 0:
            raise MessageError(f"{where}: {type(value).__name__} wants RGB pixels, not shape {pixels.shape}")
        if isinstance(value, Video) and len(value.timestamps) != len(value.frames):
            raise MessageError(
                f"{where}: Video with {len(value.frames)} frames and {len(value.timestamps)} timestamps; one each"
            )
        return replace(value, where=where, limits=merge_limits(value.limits, self.limits, where))

    def _type(self, part: Mapping[str, Any], where: str) -> str:
        """The declared type, or the one its keys tell."""
        if part.get("type") is None:
            found = sorted(
                key for key in ("text", *_OWN_KEYS["image"], *_OWN_KEYS["video"]) if part.get(key) is not None
            )
            kinds = {"text" if key == "text" else "image" if key in _OWN_KEYS["image"] else "video" for key in found}
            if len(kinds) == 1:
                return kinds.pop()
            if kinds:
                raise MessageError(f"{where}: has {' and '.join(found)} at once; give each a part of its own")
            raise MessageError(f"{where}: a part without type, text, image or video (keys: {_keys(part)})")
        declared = part["type"]
        if isinstance(declared, str) and declared in _TYPES:
            return declared
        if isinstance(declared, str) and declared in _ELSEWHERE:
            raise MessageError(f"{where}: part of type {declared}: {_ELSEWHERE[declared]}")
        near = difflib.get_close_matches(str(declared).lower(), sorted(_TYPES), n=1)
        hint = f"; did you mean {near[0]}?" if near else f"; known: {', '.join(sorted(_TYPES))}"
        raise MessageError(f"{where}: unknown part type {shorten(declared)}{hint}")

    def _text(self, part: Mapping[str, Any], kind: str, where: str) -> Text:
        key = _TEXT_KEYS[kind]
        refuse_unknown(part, _HARMLESS_IN_TEXT | {key}, where, f"a part of type {kind}")
        if key not in part:
            raise MessageError(f"{where}: a part of type {kind} without {key}")
        return text_of(part[key], f"{where}.{key}")

    def _medium(self, part: Mapping[str, Any], declared: str, where: str) -> Image | Video:
        kind = _KINDS[declared]
        value, name, options = self._payload(part, kind, declared, where)
        limits = pixel_limits(options, where)
        medium = self.media.read(value, kind, f"{where}.{name}", options, merge_limits(limits, self.limits, where))
        if isinstance(medium, Image):
            lost = sorted(key for key in _VIDEO_ONLY if options.get(key) is not None)
            if lost:
                raise MessageError(f"{where}.{lost[0]}: is for videos, and this is an image")
        return replace(medium, where=where)

    def _payload(
        self, part: Mapping[str, Any], kind: Kind, declared: str, where: str
    ) -> tuple[Any, str, Mapping[str, Any]]:
        """(what holds the medium, its key, options of the part and of the wrapping around the medium)."""
        _check_detail(part, where)
        keys = _OWN_KEYS[kind] | _WRAPPINGS
        if kind == "image" and any(part.get(key) is not None for key in _VIDEO_ONLY):
            wrong = min(key for key in _VIDEO_ONLY if part.get(key) is not None)
            raise MessageError(f"{where}.{wrong}: is for videos, and this is a part of type {declared}")
        refuse_unknown(part, keys | _OPTIONS[kind] | _HARMLESS | {"file_id"}, where, f"a part of type {declared}")
        given = sorted(key for key in keys if part.get(key) is not None)
        if len(given) == 2 and "bytes" in given and "path" in given:
            given = ["bytes"]  # as the datasets library writes them: the path is only the name
        if part.get("file_id") is not None:
            raise MessageError(f"{where}.file_id: names a file in a vendor's store; send the content itself")
        if not given:
            what = "image" if kind == "image" else "video" if kind == "video" else "file"
            raise MessageError(f"{where}: a part of type {declared} that holds no {what}")
        if len(given) > 1:
            raise MessageError(f"{where}: holds {' and '.join(given)} at once; give each a part of its own")
        key = given[0]
        value = part[key]
        options = {name: part[name] for name in _OPTIONS[kind] if part.get(name) is not None}
        wrapped = None if is_bare_medium(value) else as_mapping(value)
        if wrapped is None:
            return value, key, options
        value, inner, more = self._payload(wrapped, kind, declared, f"{where}.{key}")
        for name in more.keys() & options.keys():
            if more[name] != options[name]:
                raise MessageError(
                    f"{where}.{name}: given twice, as {shorten(options[name])} and {shorten(more[name])}"
                )
        return value, f"{key}.{inner}", {**options, **more}


def _check_detail(part: Mapping[str, Any], where: str) -> None:
    detail = part.get("detail")
    if detail is None or detail in _DETAILS:
        return
    if detail == "low":
        raise MessageError(f"{where}.detail: low has no fixed meaning for these models; give max_pixels instead")
    raise MessageError(f"{where}.detail: {shorten(detail)} is not one of {', '.join(_DETAILS)}")


def _keys(part: Mapping[str, Any]) -> str:
    return shorten(", ".join(map(str, part))) if part else "none"
