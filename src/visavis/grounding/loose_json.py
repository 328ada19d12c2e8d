"""Objects out of text that is nearly JSON: in prose or code fences, with Python's quotes and literals, trailing commas,
unescaped quotes inside strings, broken off anywhere. One pass; every object that closes is given, inner ones first."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

__all__ = ["LooseObject", "scan_objects"]

_CLOSES = {"}": "{", "]": "["}
_WORDS = {"True": "true", "False": "false", "None": "null"}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}
# What may follow the quote that ends a string. Anything else means the quote belongs to the string: "5" disk".
_AFTER_STRING = re.compile(r"""\s*(?:[:}\]]|,\s*(?:["'{\[\d-]|[}\]]|$)|$)""")


@dataclass(frozen=True, slots=True)
class LooseObject:
    """One `{…}` of the text. `value` is None when it could not be read, and `error` says why."""

    span: tuple[int, int]
    value: dict[str, Any] | None
    has_inner: bool  # it contains other objects
    error: str = ""


@dataclass(slots=True)
class _Open:
    bracket: str
    start: int
    pieces_before: int
    has_inner: bool = False
    last_inner_end: int = 0


@dataclass(slots=True)
class _Scanner:
    text: str
    stack: list[_Open] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)  # the same text as strict JSON
    open_object: int | None = None  # where the innermost object that never closes begins
    complete: bool = True

    def objects(self) -> Iterator[LooseObject]:
        text, i = self.text, 0
        while i < len(text):
            char = text[i]
            if char in "{[":
                self.stack.append(_Open(char, i, len(self.pieces)))
                self.pieces.append(char)
            elif char in "}]":
                yield from self._close(char, i)
            elif not self.stack:
                pass  # prose
            elif char in "\"'":
                i = self._string(i)
                continue
            elif char.isalpha():
                word = re.compile(r"\w+").match(text, i)
                assert word is not None  # char is a letter
                self.pieces.append(_WORDS.get(word[0], word[0]))
                i = word.end()
                continue
            else:
                self.pieces.append(char)
            i += 1
        self._finish()

    def _close(self, char: str, at: int) -> Iterator[LooseObject]:
        if not any(entry.bracket == _CLOSES[char] for entry in self.stack):
            return  # closes nothing
        while self.stack[-1].bracket != _CLOSES[char]:
            left_open = self.stack.pop()
            del self.pieces[left_open.pieces_before :]
            if left_open.bracket == "{" and not left_open.has_inner:
                yield LooseObject((left_open.start, at), None, False, f"broken JSON: a {char} where }} was due")
        entry = self.stack.pop()
        if "".join(self.pieces[-2:]).rstrip().endswith(","):  # a trailing comma
            while self.pieces and self.pieces[-1].strip() in ("", ","):
                self.pieces.pop()
        self.pieces.append(char)
        if char != "}":
            return
        source = "".join(self.pieces[entry.pieces_before :])
        try:
            value = json.loads(source)
            error = ""
        except (ValueError, RecursionError) as problem:
            value, error = None, f"broken JSON: {str(problem).split(': line')[0]}"
        for outer in self.stack:
            outer.has_inner, outer.last_inner_end = True, at + 1
        yield LooseObject((entry.start, at + 1), value, entry.has_inner, error)

    def _string(self, start: int) -> int:
        """Copies the string that begins at `start` as a strict one; returns where it ends."""
        text, quote, chars, i = self.text, self.text[start], [], start + 1
        while i < len(text):
            char = text[i]
            if char == "\\" and i + 1 < len(text):
                code = re.compile(r"u([0-9a-fA-F]{4})").match(text, i + 1)
                if code is not None:
                    chars.append(chr(int(code[1], 16)))
                    i = code.end()
                else:
                    chars.append(_ESCAPES.get(text[i + 1], text[i + 1]))
                    i += 2
                continue
            if char == quote and _AFTER_STRING.match(text, i + 1):
                self.pieces.append(json.dumps("".join(chars)))
                return i + 1
            chars.append(char)
            i += 1
        return len(text)

    def _finish(self) -> None:
        self.complete = not self.stack
        for entry in reversed(self.stack):
            if entry.bracket == "{":
                if entry.start >= max((e.last_inner_end for e in self.stack), default=0):
                    self.open_object = entry.start
                return


def scan_objects(text: str) -> tuple[list[LooseObject], bool, int | None]:
    """The objects of `text` in the order they close; whether every bracket closes; and, when the text breaks off
    inside an object, where that one begins."""
    scanner = _Scanner(text)
    found = list(scanner.objects())
    return found, scanner.complete, scanner.open_object
