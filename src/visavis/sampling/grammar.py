"""`StructuredOutput` compiled by llguidance (extra `structured`, MIT licence): a schema, an expression, texts to choose
from or a grammar becomes a matcher. It is imported when first needed.

Whitespace between the parts of JSON is bounded (`JSON_WHITESPACE`), so that no answer can go on in blanks for ever.
"""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING, Any

from visavis.errors import MissingExtraError, OptionError, shorten
from visavis.sampling.structured import StructuredOutput

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

__all__ = ["accepts", "check", "compile_grammar", "first_line", "library"]

JSON_WHITESPACE = r"( |\n[ \t]{0,24})?"
"""Between two parts of JSON: nothing, a space, or a line break with an indentation."""


def check(structured: StructuredOutput) -> None:
    """Raises OptionError for a schema, expression or grammar that makes no sense, and MissingExtraError."""
    compile_grammar(structured, _byte_tokenizer())


def accepts(structured: StructuredOutput, text: str) -> bool | None:
    """Whether a whole text matches; None where only the library could tell and it is not installed.

    Of JSON it is the content that counts, not blanks or escapes; its members must come in the schema's order.
    """
    if structured.kind == "choice":
        return text in structured.value
    if structured.kind == "json_schema":
        try:
            text = json.dumps(json.loads(text), ensure_ascii=False)
        except (ValueError, RecursionError):
            return False
    try:
        tokenizer = _byte_tokenizer()
    except MissingExtraError:
        return None
    return _consumes(compile_grammar(structured, tokenizer), text)


def _consumes(matcher: LLMatcher, text: str) -> bool:
    """Whether a matcher over bytes takes all of a text and may end there."""
    data = list(text.encode("utf-8", "surrogatepass"))
    return matcher.try_consume_tokens(data) == len(data) and matcher.is_accepting()


def compile_grammar(structured: StructuredOutput, tokenizer: LLTokenizer) -> LLMatcher:
    """A matcher at its beginning. Raises OptionError naming the kind and what the library says of it."""
    kind, value = structured
    matchers = library().LLMatcher
    if kind == "json_schema":
        grammar = matchers.grammar_from_json_schema(value, overrides={"whitespace_pattern": JSON_WHITESPACE})
    elif kind == "regex":
        grammar = matchers.grammar_from_regex(value)
    elif kind == "choice":
        quoted = " | ".join(json.dumps(text, ensure_ascii=False) for text in value)
        grammar = matchers.grammar_from_lark(f"start: {quoted}")
    else:
        grammar = matchers.grammar_from_lark(value)
    matcher = matchers(tokenizer, grammar, log_level=0)
    if matcher.is_error():
        raise OptionError(f"structured: {kind} {shorten(value)} cannot be used: {first_line(matcher.get_error())}")
    return matcher


@cache
def library() -> Any:
    """llguidance. Raises MissingExtraError."""
    try:
        import llguidance
    except ImportError:
        raise MissingExtraError("structured output (json_schema, regex, choice, grammar)", "structured") from None
    return llguidance


@cache
def _byte_tokenizer() -> LLTokenizer:
    """Of single bytes, for texts whatever their tokens."""
    return library().LLTokenizer("byte")


def first_line(error: str) -> str:
    """What the library says, without the drawing of where it is."""
    lines = [line.strip() for line in error.splitlines()]
    told = [line for line in lines if line.startswith("error:")] or [line for line in lines if line]
    return shorten(told[0].removeprefix("error: "), 160).strip("'\"") if told else ""
