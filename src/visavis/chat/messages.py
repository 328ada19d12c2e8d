"""`normalize`: a chat in any spelling → one `Conversation`. What it accepts is listed in `docs/messages.md`."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping, Sequence
from typing import Any

from visavis.chat.fetch import PERMISSIVE, FetchPolicy
from visavis.chat.media import MediaReader, is_bare_medium
from visavis.chat.options import pixel_limits, refuse_unknown
from visavis.chat.parts import PartReader, as_mapping, is_part, text_of
from visavis.chat.samples import WHITE, Background
from visavis.chat.tools import normalize_tool_calls, normalize_tools
from visavis.chat.types import Conversation, Image, Message, Part, PixelLimits, Role, Text, Video, VideoDefaults
from visavis.errors import MessageError, OptionError, shorten

__all__ = ["normalize"]

_ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}
_READ = frozenset(
    {
        "role",
        "content",
        "name",
        "tool_call_id",
        "tool_calls",
        "function_call",
        "refusal",
        "reasoning_content",
        "reasoning",
    }
)
_HARMLESS = frozenset({"id", "annotations", "status", "created_at", "cache_control"})
"""Metadata that answers carry and people send back; without effect."""


def normalize(
    messages: Any,
    *,
    tools: Any = None,
    policy: FetchPolicy | None = None,
    limits: PixelLimits | None = None,
    min_pixels: int | None = None,
    max_pixels: int | None = None,
    video_defaults: VideoDefaults | None = None,
    template_options: Mapping[str, Any] | None = None,
    base_dir: str | os.PathLike[str] | None = None,
    background: Background = WHITE,
) -> Conversation:
    """Understands a chat and decodes its media; nothing in it is dropped, what cannot be kept is refused by name.

    `messages`: a question, one message, a list of messages, the content of one user message, or a Conversation.
    `policy`: who may read what (PERMISSIVE). `limits`, or `min_pixels` and `max_pixels`: pixel bounds for images and
    video frames without their own. `video_defaults`: the model family's sampling rule. `base_dir`: where relative
    paths start. `background`: what shows through transparent pixels. Raises MessageError and MediaError naming the
    part, e.g. `messages[0].content[1].max_pixels`, and OptionError for options of this call.
    """
    if isinstance(messages, Conversation):
        tools = messages.tools if tools is None else tools
        template_options = {**messages.template_options, **(template_options or {})}
        messages = messages.messages
    media = MediaReader(
        policy=policy or PERMISSIVE,
        base_dir=os.fspath(base_dir) if base_dir is not None else None,
        background=_background(background),
        video_defaults=video_defaults or VideoDefaults(),
    )
    reader = PartReader(media, _request_limits(limits, min_pixels, max_pixels))
    return Conversation(
        messages=tuple(_message(m, f"messages[{i}]", reader) for i, m in enumerate(_as_list(messages))),
        tools=normalize_tools(tools),
        template_options=_template_options(template_options),
    )


def _as_list(messages: Any) -> Sequence[Any]:
    """The messages; content that stands alone becomes one user message."""
    if isinstance(messages, str | Text | Image | Video) or is_bare_medium(messages):
        return [{"role": "user", "content": messages}]
    if isinstance(messages, Message):
        return [messages]
    single = as_mapping(messages)
    if single is not None:
        if is_part(single):
            return [{"role": "user", "content": [single]}]
        if "messages" in single and "role" not in single:
            raise MessageError('messages: is a whole request; give its "messages" list alone')
        return [single]
    if not isinstance(messages, Sequence):
        raise MessageError(
            f"messages: {type(messages).__name__} is no chat; give text, a message or a list of messages"
        )
    if not messages:
        raise MessageError("messages: is an empty list; there is nothing to answer")
    are_content = [_is_content(item) for item in messages]
    if all(are_content):
        return [{"role": "user", "content": messages}]
    if any(are_content):
        i = are_content.index(True)
        raise MessageError(f"messages[{i}]: is content among messages; give it a role")
    return messages


def _is_content(item: Any) -> bool:
    if isinstance(item, str | Text | Image | Video) or is_bare_medium(item):
        return True
    fields = as_mapping(item)
    return fields is not None and is_part(fields)


def _message(message: Any, where: str, reader: PartReader) -> Message:
    if isinstance(message, Message):
        fields: Mapping[str, Any] = {
            "role": message.role,
            "content": list(message.parts),
            "name": message.name,
            "tool_call_id": message.tool_call_id,
            "tool_calls": message.tool_calls,
            "reasoning_content": message.reasoning_content,
        }
    else:
        found = as_mapping(message)
        if found is None:
            if isinstance(message, Sequence):
                raise MessageError(f"{where}: is a list; a batch of chats is prepared one chat at a time")
            raise MessageError(f"{where}: {type(message).__name__} is no message; give a dict with role and content")
        fields = found
    role = _role(fields, where)
    known = _READ | _HARMLESS
    if fields.get("type") == "message":  # the Responses API marks its items so
        known |= {"type"}
    refuse_unknown(fields, known, where, "a message")
    if role != "assistant":
        for key in ("tool_calls", "function_call", "refusal", "reasoning_content", "reasoning"):
            if fields.get(key):
                raise MessageError(f"{where}.{key}: belongs to assistant messages, and the role is {fields['role']}")
    parts = _content(fields, role, where, reader)
    if fields.get("refusal") is not None:
        parts += (text_of(fields["refusal"], f"{where}.refusal"),)
    return Message(
        role=role,
        parts=parts,
        name=_string(fields, "name", where),
        tool_call_id=_string(fields, "tool_call_id", where),
        tool_calls=normalize_tool_calls(fields, where),
        reasoning_content=_reasoning(fields, where),
    )


def _role(fields: Mapping[str, Any], where: str) -> Role:
    if "role" not in fields:
        raise MessageError(f"{where}: has no role; give one of {', '.join(_ROLES)}")
    role = fields["role"]
    if isinstance(role, str) and role in _ROLES:
        return _ROLES[role]
    near = difflib.get_close_matches(str(role).lower(), list(_ROLES), n=1)
    hint = f"; did you mean {near[0]}?" if near else f"; known: {', '.join(_ROLES)}"
    raise MessageError(f"{where}.role: unknown role {shorten(role)}{hint}")


def _content(fields: Mapping[str, Any], role: Role, where: str, reader: PartReader) -> tuple[Part, ...]:
    if "content" not in fields:
        if role == "assistant":
            return ()
        raise MessageError(f'{where}: has no content; give text or a list of parts ("" for nothing)')
    content = fields["content"]
    where = f"{where}.content"
    if content is None:
        return ()
    if isinstance(content, Sequence) and not isinstance(content, str | bytes | bytearray | memoryview):
        return tuple(reader.read(item, f"{where}[{j}]") for j, item in enumerate(content))
    return (reader.read(content, where),)


def _reasoning(fields: Mapping[str, Any], where: str) -> str | None:
    """An assistant's thinking, under either of the names servers give it."""
    new, old = _string(fields, "reasoning", where), _string(fields, "reasoning_content", where)
    if new is not None and old is not None and new != old:
        raise MessageError(f"{where}: reasoning and reasoning_content disagree; give one")
    return old if old is not None else new


def _string(fields: Mapping[str, Any], key: str, where: str) -> str | None:
    value = fields.get(key)
    return None if value is None else text_of(value, f"{where}.{key}").text


def _request_limits(limits: PixelLimits | None, min_pixels: int | None, max_pixels: int | None) -> PixelLimits | None:
    if min_pixels is not None or max_pixels is not None:
        if limits is not None:
            raise OptionError("give limits, or min_pixels and max_pixels, not both")
        limits = PixelLimits(min_pixels=min_pixels, max_pixels=max_pixels)
    if limits is None:
        return None
    names = ("min_pixels", "max_pixels", "resized_height", "resized_width")
    try:
        return pixel_limits({name: getattr(limits, name) for name in names}, "limits")
    except MessageError as error:
        raise OptionError(str(error)) from None


def _background(background: Any) -> Background:
    if isinstance(background, Sequence) and len(background) == 3 and all(_is_byte(v) for v in background):
        red, green, blue = background
        return red, green, blue
    raise OptionError(f"background {shorten(background)} must be three numbers of 0 to 255 (red, green, blue)")


def _is_byte(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 255


def _template_options(options: Any) -> dict[str, Any]:
    if options is None:
        return {}
    if not isinstance(options, Mapping) or not all(isinstance(key, str) for key in options):
        raise OptionError(f"template_options: a dict with names as keys is needed, not {shorten(options)}")
    return dict(options)
