"""`ChatTemplate`: the model's own chat template, rendered so that nobody's text can forge a control token.

A template's output mixes what the template wrote (`<|im_start|>`, `<|image_pad|>`: control tokens) with what people
wrote (plain text, even where it spells `<|im_end|>`). Messages go to the template as they are, so templates that
inspect them keep working, except that spellings of control tokens in them are broken by a private-use character that
occurs nowhere in the conversation. The output is cut at the unbroken spellings, which are the template's own; then
the breaks are removed and each stretch between two control tokens is encoded as one piece of text. So ids equal
transformers' for every conversation without such spellings, joins over the border of template and user text included.

Which spellings are plain text:

| turn | special tokens (`<|im_end|>`) | other control tokens (`<think>`, `<tool_call>`) |
|---|---|---|
| user, tool; tool schemas and calls, template options | text | text |
| system | text | control: developers describe formats with them |
| assistant | text, except markers of answers (`<|box_start|>` …) | control: the model wrote them |

Templates that look into the text (Qwen3's `'</think>' in content`, `content.startswith('<tool_response>')`) could be
misled by a break inside the spelling. Then the breaks are put beside the spellings instead; if the output still
differs from that for the unbroken text, the first form stays: safe, and at worst laid out as for text the template
does not know.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from visavis.chat.types import Conversation, Image, Message, Text, Video
from visavis.errors import MessageError, OptionError, shorten
from visavis.families.folder import ModelFolder
from visavis.families.jinja_env import compile_template
from visavis.families.marks import Marks, walk
from visavis.families.tokenizer import HFTokenizer, Piece

__all__ = ["ChatTemplate", "Rendered"]

_RESERVED = ("messages", "tools", "documents", "add_generation_prompt")
_PROBE = "visavis-probe"


@dataclass(frozen=True, slots=True)
class Rendered:
    """`text`: the template's output; `pieces`: the same cut at control tokens, ready for `encode_pieces`;
    `safe_text`: `text` with breaks in the spellings that people wrote, `text` itself when there are none."""

    text: str
    pieces: tuple[Piece, ...]
    safe_text: str


class ChatTemplate:
    """Renders conversations. `multimodal`: message contents go in as lists of parts where the template takes lists."""

    def __init__(self, folder: ModelFolder, tokenizer: HFTokenizer, *, multimodal: bool) -> None:
        self._folder = folder
        self._tokenizer = tokenizer
        self._multimodal = multimodal
        self._takes_lists: dict[str, bool] = {}

    # ---- the one call ----------------------------------------------------------------------------------------------

    def render(self, conversation: Conversation, *, add_generation_prompt: bool = True) -> Rendered:
        """The conversation through the template.

        Raises ModelError (no template), MessageError (the template refuses the messages or would drop a part of them)
        and OptionError (tools or template options it does not know).
        """
        options = self._checked_options(conversation)
        self._check_tools(conversation)

        def run(marks: Marks | None) -> str:
            messages = self._messages(conversation, marks)
            tools = [walk(tool, marks.on_data) if marks else tool for tool in conversation.tools]
            given = walk(options, marks.on_data) if marks else options
            return self._run(messages, tools, add_generation_prompt, given)

        text = run(None)
        self._check_nothing_vanished(conversation, text)
        spellings = self._tokenizer.control_spellings()
        marks = Marks(conversation, self._tokenizer)
        if not spellings or not marks.needed:
            return Rendered(text, tuple(self._tokenizer.split(text)), text)
        broken = run(marks)
        if marks.remove(broken) != text:
            beside = marks.beside()
            second = beside.settle(run(beside))
            broken = second if marks.remove(second) == text else broken
        pieces = [marks.remove(p) if isinstance(p, str) else p for p in self._tokenizer.split(broken)]
        return Rendered(marks.remove(broken), tuple(p for p in pieces if p != ""), broken)

    # ---- messages in the template's shape --------------------------------------------------------------------------

    def _messages(self, conversation: Conversation, marks: Marks | None) -> list[dict[str, Any]]:
        return [self._message(m, marks) for m in conversation.messages]

    def _message(self, message: Message, marks: Marks | None) -> dict[str, Any]:
        has_media = any(not isinstance(p, Text) for p in message.parts)
        plain = (lambda text: marks.on_text(text, message.role)) if marks else str
        content: Any
        if has_media or self._lists(message.role):
            content = [
                {"type": "text", "text": plain(p.text)} if isinstance(p, Text) else {"type": _kind(p)}
                for p in message.parts
            ]
        else:
            content = "\n".join(plain(p.text) for p in message.parts if isinstance(p, Text))
        shaped: dict[str, Any] = {"role": message.role, "content": content}
        data = marks.on_data if marks else str
        if message.name is not None:
            shaped["name"] = data(message.name)
        if message.tool_call_id is not None:
            shaped["tool_call_id"] = data(message.tool_call_id)
        if message.reasoning_content is not None:
            shaped["reasoning_content"] = data(message.reasoning_content)
        if message.tool_calls:
            shaped["tool_calls"] = [walk(self._tool_call(call), data) for call in message.tool_calls]
        return shaped

    def _tool_call(self, call: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments as an object, unless the template itself takes strings: OpenAI clients send JSON text."""
        if self._takes_string_arguments:
            return dict(call)
        function = call.get("function")
        inner = dict(function) if isinstance(function, Mapping) else dict(call)
        arguments = inner.get("arguments")
        if isinstance(arguments, str):
            try:
                parsed = json.loads(arguments or "{}")
            except json.JSONDecodeError:
                parsed = arguments
            inner["arguments"] = parsed
        return {**call, "function": inner} if isinstance(function, Mapping) else inner

    @cached_property
    def _takes_string_arguments(self) -> bool:
        sources = self._folder.chat_templates.values()
        return any(re.search(r"arguments\s+is\s+(not\s+)?(string|mapping)", source) for source in sources)

    def _lists(self, role: str) -> bool:
        """Whether contents of this role go in as lists of parts: found out by trying, once per role."""
        if role not in self._takes_lists:
            works = {as_list: self._probe(role, as_list) for as_list in (True, False)}
            preferred = self._multimodal
            self._takes_lists[role] = preferred if works[preferred] or not works[not preferred] else not preferred
        return self._takes_lists[role]

    def _probe(self, role: str, as_list: bool) -> bool:
        """Whether the template shows the text of a turn given as a list of parts, or as a string."""

        def turn(who: str) -> dict[str, Any]:
            return {"role": who, "content": [{"type": "text", "text": _PROBE}] if as_list else _PROBE}

        before = [turn("user")] if role in ("assistant", "tool") else []
        after = [turn("user")] if role == "system" else []
        rest = [*before, *after]
        try:
            shown = self._run([*before, turn(role), *after], [], False, {}).count(_PROBE)
            alone = self._run(rest, [], False, {}).count(_PROBE) if rest else 0
            quoted = self._run([turn(role)], [], False, {}) if not rest else ""
        except (MessageError, OptionError):
            return False
        return shown > alone and f"'{_PROBE}'" not in quoted

    # ---- jinja -----------------------------------------------------------------------------------------------------

    def _run(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any], generation: bool, options: Mapping[str, Any]
    ) -> str:
        templates = self._folder.chat_templates
        source = templates.get("tool_use") if tools else None
        compiled = compile_template(source or templates.get("default") or next(iter(templates.values())))
        try:
            return compiled.template.render(
                messages=messages,
                tools=list(tools) or None,
                documents=None,
                add_generation_prompt=generation,
                **self._tokenizer.special_tokens,
                **options,
            )
        except Exception as error:  # templates are foreign programs: anything may come out of them
            raise MessageError(
                f"the chat template of {self._folder.name} refuses these messages: {shorten(str(error), 200)}"
            ) from None

    def _checked_options(self, conversation: Conversation) -> dict[str, Any]:
        compiled = [compile_template(source) for source in self._folder.chat_templates.values()]
        known = {name for c in compiled for name in c.variables}
        ours = {*_RESERVED, *self._tokenizer.special_tokens}
        for name in conversation.template_options:
            if name in ours:
                raise OptionError(f"template option {name} is set by visavis itself")
            if name not in known:
                free = sorted({name for c in compiled for name in c.options} - ours)
                listed = f"it knows {', '.join(free)}" if free else "it takes no options"
                raise OptionError(f"the chat template of {self._folder.name} has no option {shorten(name)}: {listed}")
        return dict(conversation.template_options)

    def _check_tools(self, conversation: Conversation) -> None:
        """Tools and calls must be something the template shows."""
        sources = self._folder.chat_templates.values()
        if conversation.tools and not any("tools" in compile_template(s).variables for s in sources):
            raise OptionError(f"the chat template of {self._folder.name} takes no tools; leave them out")
        for number, message in enumerate(conversation.messages):
            if message.tool_calls and not any("tool_calls" in source for source in sources):
                raise MessageError(
                    f"messages[{number}]: the chat template of {self._folder.name} shows no tool calls; send text"
                )

    def _check_nothing_vanished(self, conversation: Conversation, text: str) -> None:
        """Texts that people wrote must be in the output (assistant turns may lose their thoughts, by design)."""
        for number, message in enumerate(conversation.messages):
            if message.role == "assistant":
                continue
            for part in message.parts:
                if isinstance(part, Text) and not _shown(part.text.strip(), text):
                    raise MessageError(
                        f"messages[{number}]: the chat template of {self._folder.name} drops this {message.role} text: "
                        f"{shorten(part.text)}; put it into a user message"
                    )


def _kind(part: Image | Video) -> str:
    return "image" if isinstance(part, Image) else "video"


def _shown(wanted: str, output: str) -> bool:
    return wanted in output or json.dumps(wanted, ensure_ascii=False)[1:-1] in output
