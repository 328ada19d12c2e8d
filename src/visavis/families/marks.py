"""Breaks in the spellings of control tokens that people wrote (see `visavis.families.template`)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any

from visavis.chat.types import Conversation, Text
from visavis.families.tokenizer import HFTokenizer

__all__ = ["ANSWER_MARKERS", "Marks", "walk"]

ANSWER_MARKERS = frozenset(
    f"<|{name}_{end}|>" for name in ("object_ref", "box", "quad", "point") for end in ("start", "end")
)
"""Special tokens that models write into their answers; in assistant turns they are what they were when generated."""


class Marks:
    """Breaks in spellings of control tokens: which texts get them, and how they go in and out."""

    def __init__(self, conversation: Conversation, tokenizer: HFTokenizer, outside: bool = False) -> None:
        self._conversation = conversation
        self._tokenizer = tokenizer
        self._outside = outside
        self._pattern = tokenizer.control_pattern
        self._special = frozenset(tokenizer.control_spellings(special=True))
        used = set().union(*map(set, strings(conversation)), "")
        free = (chr(code) for code in range(0xF0000, 0xFFFFE) if chr(code) not in used)
        self._inside, self._before, self._after = next(free), next(free), next(free)
        spellings = tokenizer.control_spellings()
        self._heads = frozenset(s[:k] for s in spellings for k in range(1, len(s)))
        self._tails = frozenset(s[k:] for s in spellings for k in range(1, len(s)))
        self._reach = max(map(len, spellings), default=0)

    def beside(self) -> Marks:
        """The same, with the breaks beside the spellings instead of inside."""
        return Marks(self._conversation, self._tokenizer, outside=True)

    @cached_property
    def needed(self) -> bool:
        """Whether any text needs a break."""
        for message in self._conversation.messages:
            for part in message.parts:
                if isinstance(part, Text) and self.on_text(part.text, message.role) != part.text:
                    return True
        return any(self.on_data(s) != s for s in strings(self._conversation, texts=False))

    def on_text(self, text: str, role: str) -> str:
        """`text` of a turn with its forbidden spellings broken."""
        if role == "assistant":
            return self._broken(text, lambda spelled: spelled in self._special and spelled not in ANSWER_MARKERS)
        if role == "system":
            return self._broken(text, lambda spelled: spelled in self._special)
        return self.on_data(text)

    def on_data(self, text: str) -> str:
        """A string of tools, tool calls, names, thinking or template options, every spelling broken."""
        return self._broken(text, lambda spelled: True)

    def remove(self, text: str) -> str:
        return text.replace(self._inside, "").replace(self._before, "").replace(self._after, "")

    def settle(self, rendered: str) -> str:
        """The output of a template that got breaks beside spellings, with the breaks moved inside them."""
        spelled = f"(?:{self._pattern.pattern})"
        found = re.compile(f"{self._before}({spelled})|({spelled}){self._after}|[{self._before}{self._after}]")

        def inside(match: re.Match[str]) -> str:
            token = match.group(1) or match.group(2) or ""
            return token[:1] + self._inside + token[1:]

        return found.sub(inside, rendered)

    def _broken(self, text: str, forbidden: Callable[[str], bool]) -> str:
        def mark(match: re.Match[str]) -> str:
            token = match.group()
            if not forbidden(token):
                return token
            if not self._outside:
                return token[:1] + self._inside + token[1:]
            return token + self._after if match.start() == 0 else self._before + token

        broken = self._pattern.sub(mark, text)
        # Two texts side by side must not join into a control token either.
        reach = range(1, self._reach)
        if any(text[-k:] in self._heads for k in reach):
            broken += self._inside
        if any(text[:k] in self._tails for k in reach):
            broken = self._inside + broken
        return broken


def strings(conversation: Conversation, *, texts: bool = True) -> Iterator[str]:
    """Every string of a conversation that reaches the template."""
    for message in conversation.messages:
        if texts:
            yield from (p.text for p in message.parts if isinstance(p, Text))
        yield from (s for s in (message.name, message.tool_call_id, message.reasoning_content) if s is not None)
        yield from _leaves(message.tool_calls)
    yield from _leaves(conversation.tools)
    yield from _leaves(conversation.template_options)


def _leaves(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _leaves(key)
            yield from _leaves(inner)
    elif isinstance(value, Iterable):
        for inner in value:
            yield from _leaves(inner)


def walk(value: Any, change: Callable[[str], str]) -> Any:
    """A copy with every string, keys included, changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {walk(key, change): walk(inner, change) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [walk(inner, change) for inner in value]
    return value
