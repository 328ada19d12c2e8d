"""Images and videos given as flags: as a chat, and in errors by the flag the user typed."""

from __future__ import annotations

import re
import sys
from argparse import Namespace
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from visavis.cli.messages_file import RawCase
from visavis.errors import MAX_SHOWN, InputError, MissingExtraError, OptionError, shorten, shorten_path

__all__ = ["files_of", "flag_case", "named_by_flags", "refuse_overwriting"]

STDIN = "-"
MOST_STDIN_BYTES = 4 * 2**30
LONGEST_PATH = 4096
LONGEST_SHOWN = 200


def flag_case(args: Namespace, question: str | None) -> RawCase:
    """System prompt, images and videos in their order, then the question."""
    if (args.fps is not None or args.nframes is not None) and not args.video:
        raise OptionError("--fps and --nframes are for videos; add --video FILE")
    if [*args.image, *args.video].count(STDIN) > 1:
        raise OptionError("- is stdin, which can be read once: give one --image - or --video -")
    content: list[dict[str, Any]] = [{"type": "image", "image": _read(source, "--image")} for source in args.image]
    content += [_video_part(source, args) for source in args.video]
    if question is not None:
        content.append({"type": "text", "text": question})
    # an empty system prompt is one: without it the template would put in its own
    system = [] if args.system is None else [{"role": "system", "content": args.system}]
    given = [*(("image", source) for source in args.image), *(("video", source) for source in args.video)]
    flags = {
        f"messages[{len(system)}].content[{i}]": f"--{kind} {_shown(source)}" for i, (kind, source) in enumerate(given)
    }
    return RawCase("question", [*system, {"role": "user", "content": content}], flags=flags)


@contextmanager
def named_by_flags(case: RawCase) -> Iterator[None]:
    """Errors about what came from a flag name the flag and its value, not the place in messages the user never saw."""
    try:
        yield
    except InputError as error:
        text = str(error)
        for place, flag in case.flags.items():
            value = flag.split(" ", 1)[1]
            text = re.sub(rf"{re.escape(place)}\.(fps|nframes)\b", r"--\1", text)
            text = re.sub(rf"{re.escape(place)}(\.(image|video))?(?![.\w\[])", flag.replace("\\", "\\\\"), text)
            # "--image x: x is …" and "--image x: 'x': …" say it twice
            for again, once in ((f"{value!r}: ", ": "), (f"{value}: ", ": "), (f"{value} ", " "), ("bytes ", " ")):
                text = text.replace(f"{flag}: {again}", f"{flag}{once}")
        if text == str(error) or isinstance(error, MissingExtraError):
            raise
        raise type(error)(text) from None


def files_of(case: RawCase) -> set[Path]:
    """The files that the messages name, by their real paths."""
    base = Path.cwd() if case.base_dir is None else Path(case.base_dir)
    found = set()
    for text in _strings(case.messages):
        path = unquote(text[7:]) if text.startswith("file://") else text
        try:
            real = (base / Path(path).expanduser()).resolve()
            if real.is_file():
                found.add(real)
        except (OSError, ValueError, RuntimeError):  # it is no path
            continue
    return found


def refuse_overwriting(flag: str, asked: str, cases: Iterable[RawCase], others: Iterable[str | None] = ()) -> None:
    """Raises OptionError where the file that a flag asks for is one that the command reads, by whatever name or link:
    a picture or video of the `cases`, or one of the `others`."""
    target = Path(asked).expanduser()
    read = [file for case in cases for file in files_of(case)]
    read += [Path(other).expanduser() for other in others if other not in (None, STDIN)]
    for file in read:
        try:
            same = file.resolve() == target.resolve() or file.samefile(target)
        except (OSError, ValueError, RuntimeError):  # there is none, so nothing is overwritten
            continue
        if same:
            raise OptionError(f"{flag} {shorten_path(asked)} would overwrite what is read here; name another file")


def _strings(value: Any) -> Iterator[str]:
    """Every string that may be a path; texts are none."""
    if isinstance(value, str) and len(value) < LONGEST_PATH:
        yield value
    elif isinstance(value, dict):
        for name, part in value.items():
            if name != "text":
                yield from _strings(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _strings(part)


def _read(source: str, flag: str) -> str | bytes:
    """What a flag names; the bytes on stdin for `-`."""
    if source != STDIN:
        return source
    if sys.stdin.isatty():
        raise OptionError(f"{flag} - reads from stdin, which is the terminal; give it a file: … {flag} - < FILE")
    data: bytes = sys.stdin.buffer.read(MOST_STDIN_BYTES + 1)
    if not data:
        raise OptionError(f"{flag} - reads from stdin, and nothing came on it")
    return data


def _shown(source: str) -> str:
    """Paths and addresses as they were typed; of a payload only its beginning."""
    return source if len(source) <= LONGEST_SHOWN else f"{source[:MAX_SHOWN]}…"


def _video_part(source: str, args: Namespace) -> dict[str, Any]:
    part: dict[str, Any] = {"type": "video", "video": _read(source, "--video")}
    for name, kind in (("fps", float), ("nframes", int)):
        text = getattr(args, name)
        if text is not None:
            try:
                part[name] = kind(text)
            except ValueError:
                raise OptionError(f"--{name} {shorten(text)} is not a number") from None
    return part
