"""`resolve`: one rule for what is in force, for every engine."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from visavis.errors import ContextLengthError, OptionError, shorten
from visavis.sampling.bad_words import spellings
from visavis.sampling.params import GREEDY_BELOW, ResolvedSampling, SamplingParams
from visavis.sampling.values import check_ranges, check_token_ids, coerce

__all__ = ["DEFAULT_MAX_TOKENS", "resolve"]

DEFAULT_MAX_TOKENS = 1024
"""Cap of the answer's length when nobody asked for one and the context leaves more room."""


def resolve(
    request: SamplingParams | None = None,
    *,
    prompt_tokens: int,
    max_model_len: int,
    eos_token_ids: Sequence[int] = (),
    user_config: SamplingParams | None = None,
    generation_config: Mapping[str, Any] | None = None,
    draw_seed: bool = True,
    vocab_size: int | None = None,
    encode: Callable[[str], Sequence[int]] | None = None,
) -> ResolvedSampling:
    """One rule for every engine.

    `vocab_size` is the model's, None where only a server knows it; `encode` turns the text of `bad_words` into ids.

    `generation_config` is the model folder's file and is only given when the user asked for it; its sampling values
    count, as in transformers, only where it says `do_sample: true`. Raises OptionError for values out of range and
    ContextLengthError when the prompt leaves no room for one token.
    """
    notes: list[str] = []
    layers: list[tuple[str, dict[str, Any]]] = []
    if generation_config:
        layers.append(("generation_config.json", _from_generation_config(generation_config, notes)))
    if user_config:
        layers.append(("user config", user_config.asked()))
    if request:
        layers.append(("request", request.asked()))
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for origin, layer in layers:
        for name, value in layer.items():
            values[name] = value
            origins[name] = origin
    check_ranges(values, origins)
    check_token_ids(values, origins, eos_token_ids, vocab_size)
    if "bad_words" in values and encode is not None:
        spelled = [ids for ids in spellings(encode, values["bad_words"]) if ids not in values.get("bad_words_ids", ())]
        values["bad_words_ids"] = (*values.get("bad_words_ids", ()), *spelled)
        origins.setdefault("bad_words_ids", f"bad_words ({origins['bad_words']})")

    room = max_model_len - prompt_tokens
    if room < 1:
        raise ContextLengthError(
            f"the prompt has {prompt_tokens} tokens and the context is {max_model_len}: no room for an answer; "
            "shorten the prompt, lower max_pixels or raise max_model_len"
        )
    if "max_tokens" not in values:
        cap = max(DEFAULT_MAX_TOKENS, values.get("min_tokens", 0))
        values["max_tokens"] = min(room, cap)
        raised = f"default cap {DEFAULT_MAX_TOKENS}" + (", raised to min_tokens" if cap > DEFAULT_MAX_TOKENS else "")
        origins["max_tokens"] = raised if room > cap else "rest of the context"
    elif values["max_tokens"] > room:
        notes.append(f"max_tokens {values['max_tokens']} cut to {room}: the context is {max_model_len} tokens")
        values["max_tokens"] = room
        origins["max_tokens"] += ", cut to the rest of the context"
    if values.get("min_tokens", 0) > values["max_tokens"]:
        raise OptionError(
            f"min_tokens {values['min_tokens']} ({origins['min_tokens']}) is more than max_tokens "
            f"{values['max_tokens']} ({origins['max_tokens']})"
        )

    _settle_greedy(values, origins, notes)
    if values["temperature"] > 0 and "seed" not in values and draw_seed:
        values["seed"] = secrets.randbits(31)
        origins["seed"] = "drawn at random"
    if eos_token_ids:
        origins["eos_token_ids"] = "model"
    return ResolvedSampling(**values, eos_token_ids=tuple(eos_token_ids), origins=origins, notes=tuple(notes))


_SHAPING: dict[str, float] = {"top_p": 1.0, "top_k": 0, "min_p": 0.0}
"""Neutral values of what only shapes a distribution that is sampled from."""


def _settle_greedy(values: dict[str, Any], origins: dict[str, str], notes: list[str]) -> None:
    """Normalises the many spellings of greedy and of "off", and says what became moot."""
    if values.get("top_k", 0) <= 0:
        values["top_k"] = 0
    asked = {name: values[name] for name in ("temperature", *_SHAPING, "seed") if name in origins}
    temperature = values.get("temperature")
    cause = None  # the option that makes the answer greedy; None: nobody asked for anything else
    if temperature is None:
        reason = "temperature was not given, and neutral is greedy"
    elif temperature < GREEDY_BELOW:
        cause, reason = "temperature", f"temperature {temperature:g} is greedy"
    elif values["top_k"] == 1:
        cause, reason = "top_k", "top_k 1 keeps one token, which is greedy"
    elif values.get("top_p") == 0.0:
        cause, reason = "top_p", "top_p 0 keeps one token, which is greedy"
    elif values.get("min_p") == 1.0:
        cause, reason = "min_p", "min_p 1 keeps one token, which is greedy"
    else:
        return
    values["temperature"] = 0.0
    if cause not in (None, "temperature"):
        origins["temperature"] = f"{cause} {_shown(asked[cause])} ({origins[cause]})"
    moot = [f"{name} {_shown(asked[name])}" for name in asked if name != cause and asked[name] != _SHAPING.get(name)]
    for name, neutral in _SHAPING.items():
        values[name] = neutral
        if asked.get(name, neutral) != neutral:
            origins[name] = "neutral, as the answer is greedy"
    if moot:
        notes.append(f"{reason}: {', '.join(moot)} changes nothing")
    if values.get("n", 1) > 1:
        notes.append(f"{reason}: all {values['n']} answers will be the same")


def _shown(value: float) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


_UNSUPPORTED_IN_FOLDER: dict[str, Any] = {
    "num_beams": 1,
    "no_repeat_ngram_size": 0,
    "typical_p": 1.0,
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
    "encoder_repetition_penalty": 1.0,
    "length_penalty": 1.0,
    "top_h": None,
    "penalty_alpha": None,
    "guidance_scale": None,
    "suppress_tokens": None,
    "begin_suppress_tokens": None,
    "bad_words_ids": None,
    "sequence_bias": None,
    "forced_bos_token_id": None,
    "forced_eos_token_id": None,
}
"""What a `generation_config.json` may ask for and no engine here does, with the value that asks for nothing."""


def _from_generation_config(config: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
    where = "generation_config.json"
    found = {}
    if config.get("repetition_penalty") is not None:
        found["repetition_penalty"] = config["repetition_penalty"]
    if config.get("max_new_tokens"):
        found["max_tokens"] = config["max_new_tokens"]
    if config.get("min_new_tokens"):
        found["min_tokens"] = config["min_new_tokens"]
    sampled = {k: config[k] for k in ("temperature", *_SHAPING) if config.get(k) is not None}
    if config.get("do_sample"):
        found |= {"temperature": 1.0} | sampled
    elif sampled:
        shown = ", ".join(f"{k} {v}" for k, v in sampled.items())
        notes.append(f"{where} has {shown} without do_sample: not used, as in transformers")
    for name, nothing in _UNSUPPORTED_IN_FOLDER.items():
        value = config.get(name)
        if value is not None and value != nothing and value != []:
            notes.append(f"{where} has {name} {shorten(value, 24)}: not supported, not used")
    return {k: coerce(k, v, where) for k, v in found.items()}
