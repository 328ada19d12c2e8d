"""Tools offered to the model, and the calls an assistant made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from visavis.chat.parts import as_mapping, text_of
from visavis.errors import MessageError, shorten

__all__ = ["normalize_tool_calls", "normalize_tools"]


def normalize_tools(tools: Any) -> tuple[dict[str, Any], ...]:
    """OpenAI function schemas, each `{"type": "function", "function": {"name": …}}`; a bare function is wrapped.

    Raises MessageError naming `tools[i]`.
    """
    if tools is None:
        return ()
    if not isinstance(tools, Sequence) or isinstance(tools, str | bytes):
        raise MessageError(f"tools: a list of function schemas is needed, not {type(tools).__name__}")
    return tuple(_tool(tool, f"tools[{i}]") for i, tool in enumerate(tools))


def _tool(tool: Any, where: str) -> dict[str, Any]:
    given = as_mapping(tool)
    if given is None:
        raise MessageError(
            f"{where}: {type(tool).__name__} is no function schema; give a dict with name and parameters"
        )
    kind = given.get("type", "function")
    if kind != "function":
        raise MessageError(f"{where}.type: {shorten(kind)} is not supported; only function tools are")
    if "function" in given:
        function = as_mapping(given["function"])
        if function is None:
            raise MessageError(f"{where}.function: a dict is needed, not {type(given['function']).__name__}")
        wrapped = {**given, "function": dict(function)}
        wrapped.setdefault("type", "function")
    else:
        function = {key: value for key, value in given.items() if key != "type"}
        wrapped = {"type": "function", "function": function}
    if not isinstance(function.get("name"), str) or not function["name"]:
        raise MessageError(f"{where}: the function has no name")
    return wrapped


def normalize_tool_calls(message: Mapping[str, Any], where: str) -> tuple[dict[str, Any], ...]:
    """`tool_calls` of an assistant message, or its older form `function_call`.

    Each becomes `{"type": "function", "function": {"name": …, "arguments": …}}` with the `id` it had; arguments stay
    the JSON text or the object they were. Raises MessageError.
    """
    calls = message.get("tool_calls")
    old = message.get("function_call")
    if calls is not None and (not isinstance(calls, Sequence) or isinstance(calls, str | bytes)):
        raise MessageError(f"{where}.tool_calls: a list is needed, not {type(calls).__name__}")
    if old is not None:
        if calls:
            raise MessageError(f"{where}: has tool_calls and function_call at once; give one")
        return (_call({"function": old}, f"{where}.function_call"),)
    return tuple(_call(call, f"{where}.tool_calls[{i}]") for i, call in enumerate(calls or ()))


def _call(call: Any, where: str) -> dict[str, Any]:
    given = as_mapping(call)
    if given is None:
        raise MessageError(f"{where}: {type(call).__name__} is no tool call; give a dict with a function")
    if given.get("type", "function") != "function":
        raise MessageError(f"{where}.type: {shorten(given['type'])} is not supported; only function calls are")
    bare = {key: given[key] for key in ("name", "arguments") if key in given}
    function = as_mapping(given.get("function", bare or None))
    if function is None or not isinstance(function.get("name"), str) or not function["name"]:
        raise MessageError(f"{where}: has no function name")
    arguments = _arguments(function.get("arguments"), f"{where}.function.arguments")
    result: dict[str, Any] = {key: value for key, value in given.items() if key not in ("name", "arguments")}
    result["type"] = "function"
    result["function"] = {**function, "arguments": arguments}
    return result


def _arguments(value: Any, where: str) -> str | dict[str, Any]:
    """As given: templates differ in which form they take, and a model's own broken JSON must not be lost."""
    if value is None:
        return {}
    if isinstance(value, str):
        return text_of(value, where).text
    if not isinstance(value, Mapping):
        raise MessageError(f"{where}: a JSON object or its text is needed, not {type(value).__name__}")
    return dict(value)
