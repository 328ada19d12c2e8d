"""argparse with errors of one line, nearest names for typos, and defaults shown in --help."""

from __future__ import annotations

import argparse
import difflib
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from visavis.errors import OptionError, shorten

__all__ = ["Formatter", "Parser", "positive", "words"]

_LONG_DASHES = ("\u2010", "\u2011", "\u2012", "\u2013", "\u2014", "\u2015", "\u2212")
_DASHES = "-" + "".join(_LONG_DASHES)


class Formatter(argparse.HelpFormatter):
    """Appends "(default: …)" where there is one to show; keeps the line breaks of descriptions."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=30)

    def _get_help_string(self, action: argparse.Action) -> str | None:
        text = action.help or ""
        silent: tuple[Any, ...] = (None, False, argparse.SUPPRESS, [])
        if action.default in silent or "(default" in text or not action.option_strings:
            return text
        return f"{text} (default: %(default)s)"

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n".join(indent + line for line in text.splitlines())


class Parser(argparse.ArgumentParser):
    """Raises OptionError instead of printing usage and ending the process."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("formatter_class", Formatter)
        kwargs["allow_abbrev"] = False
        super().__init__(*args, **kwargs)

    def error(self, message: str) -> NoReturn:
        raise OptionError(f"{message}; see {self.prog} --help")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            known = [str(c) for c in action.choices]
            what = action.option_strings[0] if action.option_strings else (action.metavar or action.dest)
            if isinstance(action, argparse._SubParsersAction):
                self.explain_word(str(value))
                what = self.prog.partition(" ")[2] or "command"
            raise OptionError(f"{what}: {shorten(value)} is unknown; {_suggestion(str(value), known)}")

    def explain_word(self, word: str) -> None:
        """Raises OptionError where more can be said of a word in a subcommand's place than that it is unknown: commands
        replace it."""

    def parse_all(self, argv: Sequence[str] | None) -> argparse.Namespace:
        """As `parse_args`, with the nearest flag named for a mistyped one.

        Words that belong to no option come back in `args.words_left`, for the command to explain.
        """
        _refuse_long_dashes(self, sys.argv[1:] if argv is None else argv)
        args, left = self.parse_known_args(argv)
        for word in left:
            if word.startswith("-") and len(word) > 1 and not _is_number(word):
                chosen = getattr(args, "parser", self)
                flags = [f for a in chosen._actions for f in a.option_strings if f.startswith("--")]
                flag = word.split("=", 1)[0]
                raise OptionError(f"unknown option {shorten(flag)}; {_suggestion(flag, flags, chosen.prog)}")
        args.words_left = left
        args.argv = list(sys.argv[1:] if argv is None else argv)  # for results that say what repeats them
        return args


def words(text: str) -> str:
    """An argparse type for text (not for paths): what the shell gave as UTF-8 is read so in every locale."""
    try:
        text.encode()
        return text
    except UnicodeEncodeError:  # Python could not decode it in this locale and kept its bytes
        try:
            return os.fsencode(text).decode("utf-8")
        except UnicodeError:
            return text


def positive(text: str) -> int:
    """An argparse type: a whole number from 1 on."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{shorten(text)} is not a whole number from 1 on")
    return value


def _refuse_long_dashes(parser: argparse.ArgumentParser, argv: Sequence[str]) -> None:
    """Text copied from a web page has – or — where -- was typed; it would be taken for words of the question."""
    for word in argv:
        flag = "--" + word.split("=", 1)[0].lstrip(_DASHES)
        if word.startswith(_LONG_DASHES) and flag in _all_flags(parser):
            raise OptionError(f"{shorten(word)} begins with a long dash, not with hyphens; did you mean {flag}?")


def _all_flags(parser: argparse.ArgumentParser) -> set[str]:
    found: set[str] = set()
    for action in parser._actions:
        found.update(action.option_strings)
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                found |= _all_flags(command)
    return found


def _suggestion(given: str, known: Sequence[str], prog: str = "") -> str:
    begun = [name for name in known if len(given) > 3 and name.startswith(given)]  # --temp: abbreviations are no flags
    near = begun or difflib.get_close_matches(given, known, n=1, cutoff=0.6)
    if near:
        return f"did you mean {near[0]}?"
    return f"see {prog} --help" if prog else f"known: {', '.join(known)}"


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True
