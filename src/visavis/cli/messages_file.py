"""The conversations of a messages file (`--messages`), in every form people keep them."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from visavis.errors import MessageError, OptionError, shorten, shorten_path

__all__ = ["RawCase", "read_messages_file", "samples_file"]

_FLAGS = ("max_tokens", "max_completion_tokens", "min_tokens", "temperature", "top_p", "top_k", "min_p", "n", "seed",
          "stop", "repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias", "logprobs")  # fmt: skip
_ELSEWHERE = {
    "model": "give it with -m",
    "system": "make it a message of role system",
    **dict.fromkeys(("image", "images", "video", "videos"), "put it into a message's content"),
    **{name: f"give it as a flag, --{name.replace('_completion', '').replace('_', '-')}" for name in _FLAGS},
}
"""Keys of a conversation that say something to other tools and would change the answer, and where to say it here.
Other keys are notes of whoever made the file."""


@dataclass(frozen=True, slots=True)
class RawCase:
    """One conversation as it was given."""

    id: str
    messages: Any
    base_dir: str | None = None  # relative media paths start here
    expected: dict[str, Any] | None = None
    tools: Any = None
    flags: Mapping[str, str] = field(default_factory=dict)
    """Places in `messages` (`messages[0].content[1]`) → the flags they came from (`--image a.png`)."""


def read_messages_file(path: str) -> list[RawCase]:
    """Conversations of a JSON file: a list of messages, a list of conversations (lists, or objects with `messages`),
    one object with `messages`, or a samples file; JSON Lines too. Raises MessageError naming file and place."""
    file = Path(path).expanduser()
    name, base_dir = ("stdin", None) if path == "-" else (file.name or path, str(file.parent))
    try:
        base_dir = None if base_dir is None else str(Path(base_dir).resolve())
        text = (_stdin() if path == "-" else file.read_bytes()).decode("utf-8-sig")
    except FileNotFoundError:
        raise OptionError(f"--messages {shorten_path(path)}: no such file") from None
    except UnicodeDecodeError as error:
        raise OptionError(
            f"--messages {shorten_path(path)} is not UTF-8 text: {error.reason} at byte {error.start}; save it as UTF-8"
        ) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise OptionError(f"--messages {shorten_path(path)} cannot be read: {reason}") from None
    found = _cases(_parse(text, name, lines=path.endswith(".jsonl")), name, base_dir)
    if not found:
        raise MessageError(f"{name} holds no conversation")
    ids = [case.id for case in found]
    if twice := next((i for i in ids if ids.count(i) > 1), None):
        raise MessageError(f"{name}: two samples have the id {shorten(twice)}")
    return found


def samples_file() -> str:
    """The bundled samples."""
    return str(Path(__file__).parents[1] / "assets" / "samples" / "samples.json")


def _stdin() -> bytes:
    """All of it; bytes, because its encoding is the file's, not the terminal's."""
    binary = getattr(sys.stdin, "buffer", None)
    return sys.stdin.read().encode("utf-8") if binary is None else binary.read()


def _parse(text: str, name: str, *, lines: bool) -> Any:
    if not text.strip():
        raise MessageError(f"{name} is empty; a list of messages or conversations is needed")
    try:
        if lines:
            # not splitlines(): JSON strings may hold U+2028 and the like as they are
            return [_json(line) for line in text.split("\n") if line.strip()]
        return _json(text)
    except RecursionError:
        raise MessageError(f"{name} is not valid JSON: nested too deeply") from None
    except ValueError as error:  # JSONDecodeError is one; so is a number of thousands of digits
        raise MessageError(f"{name} is not valid JSON: {' '.join(str(error).split(';')[0].split())}") from None


def _json(text: str) -> Any:
    return json.loads(text, object_pairs_hook=_object, parse_constant=_refuse_constant)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """As json makes it, but a key given twice is refused: the first value would vanish."""
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"{shorten(next(k for k in keys if keys.count(k) > 1))} is given twice in one object")
    return found


def _refuse_constant(text: str) -> Any:
    raise ValueError(f"{text} is no JSON number")


def _cases(content: Any, name: str, base_dir: str | None) -> list[RawCase]:
    if isinstance(content, dict) and "samples" in content:
        entries = content["samples"]
        if not isinstance(entries, list):
            raise MessageError(f"{name}: samples is {shorten(entries)}, a list is needed")
        return [_case(entry, f"samples[{i}]", str(i + 1), name, base_dir) for i, entry in enumerate(entries)]
    if isinstance(content, dict):
        if "messages" not in content:
            raise MessageError(f"{name}: the object has neither messages nor samples")
        return [_case(content, name, "1", name, base_dir)]
    if not isinstance(content, list):
        raise MessageError(f"{name} holds {shorten(content)}; a list of messages or conversations is needed")
    if content and all(isinstance(entry, dict) and "role" in entry for entry in content):
        return [RawCase("1", content, base_dir)]
    return [_case(entry, f"entry {i}", str(i + 1), name, base_dir) for i, entry in enumerate(content)]


def _case(entry: Any, where: str, default_id: str, name: str, base_dir: str | None) -> RawCase:
    if isinstance(entry, list):
        return RawCase(default_id, entry, base_dir)
    if not isinstance(entry, dict) or "messages" not in entry:
        raise MessageError(
            f"{name}: {where} is {shorten(entry)}; a list of messages or an object with messages is needed"
        )
    if ignored := next((key for key in _ELSEWHERE if entry.get(key) is not None), None):
        raise MessageError(
            f"{name}: {where} has {ignored} beside messages, which is not read there; {_ELSEWHERE[ignored]}"
        )
    expected = _expected(entry.get("expected"), f"{name}: {where}")
    return RawCase(str(entry.get("id", default_id)), entry["messages"], base_dir, expected, entry.get("tools"))


def _expected(value: Any, where: str) -> dict[str, Any] | None:
    if value is None:
        return None
    if not isinstance(value, dict):
        raise MessageError(f"{where}: expected is {shorten(value)}, an object with text or box is needed")
    text, box = value.get("text"), value.get("box")
    if text is not None and not isinstance(text, str):
        raise MessageError(f"{where}: expected.text is {shorten(text)}, text is needed")
    numbers = isinstance(box, list) and len(box) == 4 and all(type(v) in (int, float) for v in box)
    if box is not None and not numbers:
        raise MessageError(f"{where}: expected.box is {shorten(box)}, [x1, y1, x2, y2] in pixels is needed")
    return {"text": text, "box": None if box is None else tuple(float(v) for v in box)}
