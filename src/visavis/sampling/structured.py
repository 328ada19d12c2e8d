"""`StructuredOutput`: what an answer must match, as it is asked for."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

__all__ = ["SPELLINGS", "StructuredKind", "StructuredOutput", "read_structured"]

StructuredKind: TypeAlias = Literal["json_schema", "regex", "choice", "grammar"]

SPELLINGS: dict[str, StructuredKind] = {
    "json_schema": "json_schema",
    "json": "json_schema",
    "regex": "regex",
    "choice": "choice",
    "grammar": "grammar",
}
"""Names of the kinds, ours and those of vLLM's `structured_outputs`."""


class StructuredOutput(NamedTuple):
    """`value`: the schema as JSON text, the regular expression (in Rust's syntax), the texts to choose from, or the
    grammar (in Lark's syntax, with a rule `start`). It can be written as JSON as it is."""

    kind: StructuredKind
    value: str | tuple[str, ...]


def read_structured(value: Any) -> StructuredOutput | None:
    """From outside data: a mapping of one kind to its value, or OpenAI's `response_format`. None: nothing is asked.

    Only the form is checked; whether a schema or an expression makes sense, the library that compiles it tells. Raises
    ValueError with words that do not hold the value.
    """
    if isinstance(value, StructuredOutput):
        return value
    if not isinstance(value, Mapping):
        raise ValueError("a mapping with one of json_schema, regex, choice or grammar is needed")
    if "type" in value:
        return _response_format(value)
    given = {name: content for name, content in value.items() if content is not None}
    unknown = [name for name in given if name not in SPELLINGS]
    if len(given) != 1 or unknown:
        raise ValueError("exactly one of json_schema, regex, choice or grammar is needed")
    ((name, content),) = given.items()
    return _checked(SPELLINGS[name], content)


def _response_format(value: Mapping[Any, Any]) -> StructuredOutput | None:
    kind = value["type"]
    if kind == "text":
        return None
    if kind == "json_object":
        return _checked("json_schema", {"type": "object"})
    if kind == "json_schema":
        part = value.get("json_schema")
        schema = part.get("schema") if isinstance(part, Mapping) else None
        if schema is None:
            raise ValueError("its json_schema has no schema")
        return _checked("json_schema", schema)
    raise ValueError("its type is not text, json_object or json_schema")


def _checked(kind: StructuredKind, content: Any) -> StructuredOutput:
    if kind == "json_schema":
        return StructuredOutput(kind, _encodable(_schema_text(content)))
    if kind == "choice":
        if isinstance(content, str) or not isinstance(content, Sequence):
            raise ValueError("choice needs a list of texts")
        if not content or not all(isinstance(text, str) and text for text in content):
            raise ValueError("choice needs one text or more, none of them empty")
        return StructuredOutput(kind, tuple(dict.fromkeys(map(_encodable, content))))
    if not isinstance(content, str) or not content.strip():
        raise ValueError(f"{kind} needs a text that is not empty")
    return StructuredOutput(kind, _encodable(content))


def _schema_text(content: Any) -> str:
    try:
        schema = json.loads(content) if isinstance(content, str) else content
        text = json.dumps(schema, ensure_ascii=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError):
        raise ValueError("json_schema is no JSON") from None
    if not isinstance(schema, Mapping | bool):
        raise ValueError("json_schema must be a JSON object")
    return text


def _encodable(text: str) -> str:
    if any("\ud800" <= c <= "\udfff" for c in text):
        raise ValueError("it holds half of a character (a lone surrogate)")
    return text
