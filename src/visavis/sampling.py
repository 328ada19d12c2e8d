"""Sampling: what a user asks (`SamplingParams`), what is in force and why (`ResolvedSampling`).

Precedence: request > user config > `generation_config.json` (only when asked for) > neutral (greedy). Every
effective value carries its origin. Engines get all of it, so no engine's own default ever decides anything.

`repetition_penalty` (CTRL, arXiv:1909.05858): the logit of every token that occurs in the prompt or the answer so
far is divided by it when positive, multiplied when negative; image placeholders count as prompt tokens, as in
transformers and vLLM. `presence_penalty` and `frequency_penalty` (OpenAI): subtracted from the logit once, and once
per occurrence, for tokens of the answer so far only. Order: logit_bias, bad words and min_tokens masks, repetition,
presence and frequency, temperature, min_p, top_k, top_p.
"""

from __future__ import annotations

import difflib
import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal

from visavis.errors import ContextLengthError, OptionError, shorten

__all__ = ["DEFAULT_MAX_TOKENS", "ResolvedSampling", "SamplingParams", "SpecialTokens", "resolve"]

SpecialTokens = Literal["structural", "all", "none"]

DEFAULT_MAX_TOKENS = 1024
"""Cap of the answer's length when nobody asked for one and the context leaves more room."""

MAX_LOGPROBS = 20
GREEDY_BELOW = 1e-5
"""Temperatures under this are greedy: dividing logits by less overflows float16 and changes nothing else."""

ALIASES = {"max_new_tokens": "max_tokens", "max_completion_tokens": "max_tokens", "stop_strings": "stop"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """What a request asks for; None means "not said". See `resolve` for what then holds."""

    max_tokens: int | None = None
    min_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    n: int | None = None
    stop: tuple[str, ...] | None = None
    stop_token_ids: tuple[int, ...] | None = None
    ignore_eos: bool | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logit_bias: tuple[tuple[int, float], ...] | None = None
    bad_words: tuple[str, ...] | None = None
    special_tokens: SpecialTokens | None = None

    @classmethod
    def from_mapping(cls, given: Mapping[str, Any], *, where: str = "sampling") -> SamplingParams:
        """From outside data: aliases understood, a single stop string accepted, unknown names refused.

        Raises OptionError naming the option and the nearest known one.
        """
        known = {f.name for f in fields(cls)}
        values: dict[str, Any] = {}
        for name, value in given.items():
            target = ALIASES.get(name, name)
            if target == "do_sample":
                if value is False:
                    values.setdefault("temperature", 0.0)
                continue
            if target not in known:
                near = difflib.get_close_matches(name, [*known, *ALIASES], n=1)
                hint = f"; did you mean {near[0]}?" if near else f"; known: {', '.join(sorted(known))}"
                raise OptionError(f"{where}: unknown sampling option {shorten(name)}{hint}")
            if target in values and values[target] != value and target != "temperature":
                raise OptionError(f"{where}: {name} and another spelling of {target} disagree")
            values[target] = _coerce(target, value, where)
        return cls(**values)

    def asked(self) -> dict[str, Any]:
        """Only what was said."""
        return {f.name: v for f in fields(self) if (v := getattr(self, f.name)) is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedSampling:
    """Every effective value. `origins[name]` says where it came from, `notes` what makes what moot.

    Neutral values: temperature 0 (greedy), top_p 1, top_k 0 (off), min_p 0, penalties 1, 0 and 0.
    """

    max_tokens: int
    min_tokens: int = 0
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int = 0
    n: int = 1
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    eos_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()
    bad_words: tuple[str, ...] = ()
    special_tokens: SpecialTokens = "structural"
    origins: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def end_token_ids(self) -> tuple[int, ...]:
        """Ids that end the answer: the user's stop ids and, unless ignored, the model's EOS ids."""
        return self.stop_token_ids if self.ignore_eos else (*self.eos_token_ids, *self.stop_token_ids)

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready: {name: {"value": …, "origin": …}} and the notes."""
        plain = asdict(self)
        origins = plain.pop("origins")
        notes = plain.pop("notes")
        settings = {name: {"value": value, "origin": origins.get(name, "neutral")} for name, value in plain.items()}
        return {"settings": settings, "notes": list(notes)}


def resolve(
    request: SamplingParams | None = None,
    *,
    prompt_tokens: int,
    max_model_len: int,
    eos_token_ids: Sequence[int] = (),
    user_config: SamplingParams | None = None,
    generation_config: Mapping[str, Any] | None = None,
    draw_seed: bool = True,
) -> ResolvedSampling:
    """One rule for every engine.

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
    _check_ranges(values, origins)

    room = max_model_len - prompt_tokens
    if room < 1:
        raise ContextLengthError(
            f"the prompt has {prompt_tokens} tokens and the context is {max_model_len}: no room for an answer; "
            "shorten the prompt, lower max_pixels or raise max_model_len"
        )
    if "max_tokens" not in values:
        values["max_tokens"] = min(room, DEFAULT_MAX_TOKENS)
        capped = room > DEFAULT_MAX_TOKENS
        origins["max_tokens"] = f"default cap {DEFAULT_MAX_TOKENS}" if capped else "rest of the context"
    elif values["max_tokens"] > room:
        notes.append(f"max_tokens {values['max_tokens']} cut to {room}: the context is {max_model_len} tokens")
        values["max_tokens"] = room
        origins["max_tokens"] += ", cut to the rest of the context"
    if values.get("min_tokens", 0) > values["max_tokens"]:
        raise OptionError(f"min_tokens {values['min_tokens']} is more than max_tokens {values['max_tokens']}")

    _settle_greedy(values, origins, notes)
    if values.get("temperature", 0.0) > 0 and "seed" not in values and draw_seed:
        values["seed"] = secrets.randbits(31)
        origins["seed"] = "drawn at random"
    if eos_token_ids:
        origins["eos_token_ids"] = "model"
    resolved = ResolvedSampling(**values, eos_token_ids=tuple(eos_token_ids), notes=tuple(notes))
    return replace(resolved, origins=origins)


def _settle_greedy(values: dict[str, Any], origins: dict[str, str], notes: list[str]) -> None:
    """Normalises the many spellings of greedy and of "off", and says what became moot."""
    if values.get("top_k", 0) <= 0:
        values["top_k"] = 0
    reason = None
    temperature = values.get("temperature")
    if temperature is None:
        if any(values.get(k, neutral) != neutral for k, neutral in (("top_p", 1.0), ("top_k", 0), ("min_p", 0.0))):
            reason = "temperature was not given (neutral is greedy)"
        temperature = 0.0
    elif temperature < GREEDY_BELOW:
        reason = "temperature 0 is greedy" if temperature == 0 else f"temperature {temperature} is taken as greedy"
        temperature = 0.0
    elif values["top_k"] == 1:
        reason, temperature = "top_k 1 is greedy", 0.0
    elif values.get("top_p", 1.0) == 0.0:
        reason, temperature = "top_p 0 keeps one token, which is greedy", 0.0
    values["temperature"] = temperature
    if temperature > 0:
        return
    moot = [
        f"{name} {values[name]}"
        for name, neutral in (("top_p", 1.0), ("top_k", 0), ("min_p", 0.0), ("seed", None))
        if name in values and values[name] != neutral and name in origins
    ]
    for name in ("top_p", "top_k", "min_p"):
        values.pop(name, None)
    if reason and moot:
        notes.append(f"{reason}: {', '.join(moot)} changes nothing")


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


def _check_ranges(values: Mapping[str, Any], origins: Mapping[str, str]) -> None:
    for name, value in values.items():
        if name in _BOUNDS:
            low, high, words = _BOUNDS[name]
            if not low <= value <= high:  # NaN fails too
                raise OptionError(f"{name} {shorten(value)} ({origins[name]}) is out of range: {words}")
    for token_id, bias in values.get("logit_bias", ()):
        if token_id < 0 or not -100 <= bias <= 100:
            raise OptionError(f"logit_bias {token_id}:{bias} is out of range: ids from 0, values -100 to 100")


def _from_generation_config(config: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
    names = ("temperature", "top_p", "top_k", "min_p")
    found = {k: config[k] for k in ("repetition_penalty",) if config.get(k) is not None}
    if config.get("max_new_tokens"):
        found["max_tokens"] = config["max_new_tokens"]
    sampled = {k: config[k] for k in names if config.get(k) is not None}
    if config.get("do_sample"):
        found |= {"temperature": 1.0} | sampled
    elif sampled:
        shown = ", ".join(f"{k} {v}" for k, v in sampled.items())
        notes.append(f"generation_config.json has {shown} without do_sample: not used, as in transformers")
    return {k: _coerce(k, v, "generation_config.json") for k, v in found.items()}


_INTEGERS = {"max_tokens", "min_tokens", "top_k", "seed", "n", "logprobs", "prompt_logprobs"}
_FLOATS = {"temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"}


def _coerce(name: str, value: Any, where: str) -> Any:
    """Checks the type of one outside value. Raises OptionError."""
    if value is None:
        return None
    try:
        if name in _INTEGERS:
            if isinstance(value, bool) or int(value) != float(value):
                raise ValueError("a whole number is needed")
            return int(value)
        if name in _FLOATS:
            if isinstance(value, bool):
                raise ValueError("a number is needed")
            return float(value)
        if name in ("stop", "bad_words"):
            words = (value,) if isinstance(value, str) else tuple(value)
            if not all(isinstance(w, str) and w for w in words):
                raise ValueError("non-empty strings are needed")
            return words
        if name == "stop_token_ids":
            return tuple(int(v) for v in value)
        if name == "logit_bias":
            pairs = value.items() if isinstance(value, Mapping) else value
            return tuple((int(k), float(v)) for k, v in pairs)
        if name == "ignore_eos":
            if not isinstance(value, bool):
                raise ValueError("true or false is needed")
            return value
        if name == "special_tokens":
            if value not in ("structural", "all", "none"):
                raise ValueError("structural, all or none is needed")
            return value
    except (TypeError, ValueError, OverflowError) as error:
        raise OptionError(f"{where}: {name} {shorten(value)} is not valid: {error}") from None
    return value
