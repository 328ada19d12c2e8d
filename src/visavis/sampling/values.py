"""Single sampling values from outside: their types and ranges."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from visavis.errors import OptionError, shorten
from visavis.sampling.structured import read_structured

__all__ = ["MAX_LOGPROBS", "check_ranges", "check_token_ids", "coerce"]

MAX_LOGPROBS = 20

_BOUNDS: dict[str, tuple[float, float, str]] = {
    "max_tokens": (1, math.inf, "1 or more"),
    "min_tokens": (0, math.inf, "0 or more"),
    "temperature": (0, 100, "0 (greedy) to 100"),
    "top_p": (0, 1, "0 to 1"),
    "top_k": (-1, math.inf, "1 or more, or 0/-1 for off"),
    "min_p": (0, 1, "0 to 1"),
    "repetition_penalty": (1e-6, 100, "above 0 (1 is off)"),
    "presence_penalty": (-2, 2, "-2 to 2"),
    "frequency_penalty": (-2, 2, "-2 to 2"),
    "seed": (0, 2**63 - 1, "0 to 2^63 - 1"),
    "n": (1, 128, "1 to 128"),
    "logprobs": (0, MAX_LOGPROBS, f"0 to {MAX_LOGPROBS}"),
    "prompt_logprobs": (0, MAX_LOGPROBS, f"0 to {MAX_LOGPROBS}"),
}


def check_ranges(values: Mapping[str, Any], origins: Mapping[str, str]) -> None:
    for name, value in values.items():
        if name in _BOUNDS:
            low, high, words = _BOUNDS[name]
            if not low <= value <= high:  # NaN fails too
                raise OptionError(f"{name} {shorten(value)} ({origins[name]}) is out of range: {words}")
    for token_id, bias in values.get("logit_bias", ()):
        if not -100 <= bias <= 100:
            raise OptionError(f"logit_bias {token_id}:{bias} is out of range: values are -100 to 100")


def check_token_ids(
    values: Mapping[str, Any], origins: Mapping[str, str], eos_token_ids: Sequence[int], vocab_size: int | None
) -> None:
    """Ids that the model does not have, and bans that transformers would leave out."""
    named = {
        "logit_bias": [token_id for token_id, _ in values.get("logit_bias", ())],
        "stop_token_ids": values.get("stop_token_ids", ()),
        "bad_words_ids": [token_id for word in values.get("bad_words_ids", ()) for token_id in word],
    }
    for name, ids in named.items():
        for token_id in ids:
            if token_id < 0 or (vocab_size is not None and token_id >= vocab_size):
                known = "ids begin at 0" if vocab_size is None else f"its ids are 0 to {vocab_size - 1}"
                raise OptionError(f"{name} {token_id} ({origins[name]}) is no token of this model: {known}")
    for word in values.get("bad_words_ids", ()):
        if len(word) == 1 and word[0] in eos_token_ids:
            raise OptionError(
                f"bad_words_ids {word[0]} ({origins['bad_words_ids']}) is the model's end token; "
                "give ignore_eos or min_tokens"
            )


_INTEGERS = {"max_tokens", "min_tokens", "top_k", "seed", "n", "logprobs", "prompt_logprobs"}
_FLOATS = {"temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"}


def coerce(name: str, value: Any, where: str) -> Any:
    """One outside value in its type; None stays None. Raises OptionError."""
    if value is None:
        return None
    try:
        if name in _INTEGERS:
            return _whole(value)
        if name in _FLOATS:
            return _number(value)
        if name in ("stop", "bad_words"):
            return _words(value)
        if name == "stop_token_ids":
            return _ids((value,) if isinstance(value, int) else value)
        if name == "bad_words_ids":
            return _id_sequences(value)
        if name == "structured":
            return read_structured(value)
        if name == "logit_bias":
            return _biases(value)
        if name == "ignore_eos" and not isinstance(value, bool):
            raise ValueError("true or false is needed")
        if name == "special_tokens" and value not in ("structural", "all", "none"):
            raise ValueError("structural, all or none is needed")
    except ValueError as error:  # its text is one of ours and never holds the value
        raise OptionError(f"{where}: {name} {shorten(value)} is not valid: {error}") from None
    return value


def _whole(value: Any) -> int:
    try:
        if isinstance(value, int | str) and not isinstance(value, bool):
            return int(value)
        if isinstance(value, float) and value.is_integer():
            return int(value)
    except ValueError:
        pass
    raise ValueError("a whole number is needed")


def _number(value: Any) -> float:
    try:
        if not isinstance(value, bool):
            return float(value)
    except (TypeError, ValueError):
        pass
    raise ValueError("a number is needed")


def _words(value: Any) -> tuple[str, ...]:
    words = (value,) if isinstance(value, str) else value
    if not isinstance(words, Sequence) or not all(isinstance(w, str) and w for w in words):
        raise ValueError("a non-empty string or a list of them is needed")
    return tuple(words)


def _ids(value: Any) -> tuple[int, ...]:
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        raise ValueError("a list of token ids is needed")
    return tuple(_whole(v) for v in value)


def _id_sequences(value: Any) -> tuple[tuple[int, ...], ...]:
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        raise ValueError("a list of lists of token ids is needed")
    sequences = tuple(_ids(v) for v in value)
    if not all(sequences):
        raise ValueError("a list of token ids in it is empty")
    return sequences


def _biases(value: Any) -> tuple[tuple[int, float], ...]:
    try:
        pairs = [(_whole(k), _number(v)) for k, v in (value.items() if isinstance(value, Mapping) else value)]
    except (TypeError, ValueError):
        raise ValueError("a mapping from token ids to numbers is needed") from None
    if len(dict(pairs)) != len(pairs):
        raise ValueError("a token id occurs twice")
    return tuple(pairs)
