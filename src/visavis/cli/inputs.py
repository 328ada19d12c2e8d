"""What is asked: from the question and media flags, or from a messages file."""

from __future__ import annotations

import re
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from visavis.cli.media_flags import flag_case, named_by_flags, refuse_overwriting
from visavis.cli.messages_file import RawCase, read_messages_file, samples_file
from visavis.cli.options import pixel_limits
from visavis.cli.parser import words
from visavis.errors import InputError, OptionError, shorten

if TYPE_CHECKING:
    from visavis.chat.types import Conversation
    from visavis.families import Family
    from visavis.prompt import Prompt

__all__ = [
    "RawCase",
    "add_request_options",
    "conversation_of",
    "flag_case",
    "named_by_flags",
    "prompt_of",
    "question_of",
    "raw_cases",
    "read_messages_file",
    "refuse_look_alikes",
    "refuse_overwriting",
    "samples_file",
]

_IMAGE_SUFFIXES = {".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".avif", ".heic"}
_VIDEO_SUFFIXES = {".mp4", ".mov", ".mkv", ".webm", ".avi"}
_MESSAGES_SUFFIXES = {".json", ".jsonl"}
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def add_request_options(parser: ArgumentParser, *, question_flag: bool = False) -> None:
    """The question (`--ask` where `question_flag`), its media, or a messages file."""
    if question_flag:
        parser.add_argument(
            "--ask", dest="question", type=words, metavar="QUESTION", help="one question to all engines"
        )
    else:
        parser.add_argument("question", nargs="*", type=words, metavar="QUESTION", help="in quotes")
    parser.add_argument(
        "--image",
        action="append",
        default=[],
        metavar="FILE",
        help="file, URL, - for stdin; repeatable, order kept",
    )
    parser.add_argument("--video", action="append", default=[], metavar="FILE", help="likewise; repeatable")
    parser.add_argument("--fps", metavar="X", help="frames a second to take of each video (default: the model's)")
    parser.add_argument("--nframes", metavar="N", help="frames to take of each video, instead of --fps")
    parser.add_argument(
        "--system", type=words, metavar="TEXT", help="system prompt (default: what the model's template says)"
    )
    parser.add_argument(
        "--messages", metavar="FILE", help="JSON: messages, conversations or samples; - for stdin; paths relative to it"
    )


def raw_cases(args: Namespace) -> list[RawCase]:
    """What the flags ask, or what the file holds. [] when neither was given. Raises OptionError, MessageError."""
    question = _question(args)
    if args.messages is not None:
        given = [
            flag for flag in ("image", "video", "system", "fps", "nframes") if getattr(args, flag) not in (None, [])
        ]
        if question is not None or given:
            other = f"--{given[0]}" if given else "a question"
            raise OptionError(f"--messages and {other} exclude each other: put everything into the messages file")
        return read_messages_file(args.messages)
    if question is None:
        if args.image or args.video or args.system is not None:
            raise OptionError(f"the question is missing: {_usage(args)}")
        return []
    return [flag_case(args, question)]


def conversation_of(family: Family, case: RawCase, args: Namespace, *, several: bool = False) -> Conversation:
    """Normalised and decoded. With `several` conversations errors begin with the id of the one at fault."""
    from visavis.chat import normalize

    try:
        with named_by_flags(case):
            return normalize(
                case.messages,
                tools=case.tools,
                limits=pixel_limits(args),
                video_defaults=family.video_defaults,
                base_dir=case.base_dir,
            )
    except InputError as error:
        raise _of_case(error, case, several) from None


def prompt_of(family: Family, case: RawCase, args: Namespace, *, several: bool = False) -> tuple[Prompt, Conversation]:
    """Prepared for every engine; with the conversation, whose media are still in their original size."""
    from dataclasses import replace

    from visavis.families.base import chat_source

    conversation = conversation_of(family, case, args, several=several)
    try:
        with named_by_flags(case):
            prompt = family.prepare(conversation)
    except InputError as error:
        raise _of_case(error, case, several) from None
    return replace(prompt, chat=chat_source(conversation, True)), conversation


def question_of(conversation: Conversation) -> str:
    """The last user turn's text, for people."""
    from visavis.chat.types import Text

    for message in reversed(conversation.messages):
        if message.role == "user":
            return " ".join(" ".join(part.text for part in message.parts if isinstance(part, Text)).split())
    return ""


def _question(args: Namespace) -> str | None:
    """The question, or None; what is no question is asked back with the right usage."""
    if isinstance(args.question, str) or args.question is None:
        asked = [] if args.question is None else [args.question]
    else:
        asked = [*args.question, *args.words_left]
    for word in asked:
        refuse_look_alikes(word, args)
    if len(asked) > 1:
        raise OptionError(f"the question is {len(asked)} words to the shell; put it in quotes: {_usage(args)}")
    if not asked:
        return None
    if not asked[0].strip():
        raise OptionError(f"the question is empty: {_usage(args)}")
    return str(asked[0])


def refuse_look_alikes(word: str, args: Namespace) -> None:
    """Raises OptionError for a word that looks like a file, a model or an address, with the flag it belongs to."""
    path = Path(word)
    if any(letter.isspace() for letter in word.strip()) or not word.strip():
        return
    suffix = path.suffix.lower()
    flag = "--video" if suffix in _VIDEO_SUFFIXES else "--messages" if suffix in _MESSAGES_SUFFIXES else "--image"
    is_url = word.lower().startswith(("http://", "https://", "file://", "data:"))
    if is_url or suffix in _IMAGE_SUFFIXES | _VIDEO_SUFFIXES | _MESSAGES_SUFFIXES:
        raise OptionError(
            f"{shorten(word)} looks like a file, not a question; did you mean: {_usage(args, flag, word)}"
        )
    try:
        is_folder, exists = path.is_dir(), path.exists()
    except OSError:  # a name too long for a path
        return
    if is_folder or _HUB_ID.fullmatch(word):
        raise OptionError(
            f"{shorten(word)} looks like a model, not a question; did you mean: {_usage(args, '-m', word)}"
        )
    if exists:
        raise OptionError(f"{shorten(word)} is a file, not a question; did you mean: {_usage(args, '--image', word)}")


def _usage(args: Namespace, flag: str = "--image", value: str = "screen.png") -> str:
    shown = value if len(value) <= 64 else f"{value[:61]}..."
    question = "--ask QUESTION" if args.command == "compare" else "QUESTION"
    if flag == "--messages":
        return f"visavis {args.command} --messages {shown}"
    return f"visavis {args.command} {question.replace('QUESTION', chr(34) + 'what is this?' + chr(34))} {flag} {shown}"


def _of_case(error: InputError, case: RawCase, several: bool) -> InputError:
    from visavis.errors import MissingExtraError

    if not several or isinstance(error, MissingExtraError):
        return error
    return type(error)(f"{case.id}: {error}")
