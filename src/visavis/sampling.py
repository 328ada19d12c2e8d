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
from dataclasses import asdict, dataclass, field, fields
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
    """What a request asks for; None means "not said". See `resolve` for what then holds.

    Raises OptionError when a value has the wrong type; ranges are checked by `resolve`.
    """

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

    def __post_init__(self) -> None:
        for f in fields(self):
            object.__setattr__(self, f.name, _coerce(f.name, getattr(self, f.name), "sampling"))

    @classmethod
    def from_mapping(cls, given: Mapping[str, Any], *, where: str = "sampling") -> SamplingParams:
        """From outside data: aliases understood, a single stop string accepted, unknown names refused.

        `do_sample`, as transformers users write it: false asks for temperature 0, true for temperature 1 unless a
        temperature is given too. Raises OptionError naming the option and the nearest known one.
        """
        known = {f.name for f in fields(cls)}
        values: dict[str, Any] = {}
        spelled: dict[str, str] = {}
        do_sample = given.get("do_sample")
        for name, value in given.items():
            if name == "do_sample":
                continue
            target = ALIASES.get(name, name)
            if target not in known:
                near = difflib.get_close_matches(str(name), [*known, *ALIASES, "do_sample"], n=1)
                hint = f"; did you mean {near[0]}?" if near else f"; known: {', '.join(sorted(known))}"
                raise OptionError(f"{where}: unknown sampling option {shorten(name)}{hint}")
            if value is None:
                continue
            value = _coerce(target, value, where)
            if target in values and values[target] != value:
                raise OptionError(f"{where}: {spelled[target]} and {name} are one option and disagree")
            values[target], spelled[target] = value, str(name)
        if do_sample is not None:
            _apply_do_sample(values, do_sample, where)
        return cls(**values)

    def asked(self) -> dict[str, Any]:
        """Only what was said."""
        return {f.name: v for f in fields(self) if (v := getattr(self, f.name)) is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedSampling:
    """Every effective value. `origins[name]` says where it came from ("neutral" where it is missing: nobody said
    anything), `notes` what makes what moot and what was cut.

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


def _apply_do_sample(values: dict[str, Any], do_sample: Any, where: str) -> None:
    if not isinstance(do_sample, bool):
        raise OptionError(f"{where}: do_sample {shorten(do_sample)} is not valid: true or false is needed")
    temperature = values.get("temperature")
    if temperature is not None and do_sample != (temperature >= GREEDY_BELOW):
        raise OptionError(
            f"{where}: do_sample {str(do_sample).lower()} and temperature {temperature:g} disagree; "
            "temperature 0 is greedy and anything above it samples, so give the temperature alone"
        )
    values.setdefault("temperature", 1.0 if do_sample else 0.0)


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
    for token_id in values.get("stop_token_ids", ()):
        if token_id < 0:
            raise OptionError(f"stop_token_ids {token_id} ({origins['stop_token_ids']}) is out of range: ids from 0")


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
    return {k: _coerce(k, v, where) for k, v in found.items()}


_INTEGERS = {"max_tokens", "min_tokens", "top_k", "seed", "n", "logprobs", "prompt_logprobs"}
_FLOATS = {"temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"}


def _coerce(name: str, value: Any, where: str) -> Any:
    """One outside value in its type; None stays None. Raises OptionError."""
    if value is None:
        return None
    try:
        if name in _INTEGERS:
            return _whole(value)
        if name in _FLOATS:
            if isinstance(value, bool):
                raise ValueError("a number is needed")
            return float(value)
        if name in ("stop", "bad_words"):
            return _words(value)
        if name == "stop_token_ids":
            ids = (value,) if isinstance(value, int) else value
            if isinstance(ids, str | bytes | Mapping):
                raise ValueError("token ids are needed")
            return tuple(_whole(v) for v in ids)
        if name == "logit_bias":
            return _biases(value)
        if name == "ignore_eos" and not isinstance(value, bool):
            raise ValueError("true or false is needed")
        if name == "special_tokens" and value not in ("structural", "all", "none"):
            raise ValueError("structural, all or none is needed")
    except (TypeError, ValueError, OverflowError) as error:
        raise OptionError(f"{where}: {name} {shorten(value)} is not valid: {error}") from None
    return value


def _whole(value: Any) -> int:
    if isinstance(value, bool) or int(value) != float(value):
        raise ValueError("a whole number is needed")
    return int(value)


def _words(value: Any) -> tuple[str, ...]:
    words = (value,) if isinstance(value, str) else value
    if not isinstance(words, Sequence) or not all(isinstance(w, str) and w for w in words):
        raise ValueError("a non-empty string or a list of them is needed")
    return tuple(words)


def _biases(value: Any) -> tuple[tuple[int, float], ...]:
    pairs = [(_whole(k), float(v)) for k, v in (value.items() if isinstance(value, Mapping) else value)]
    if len(dict(pairs)) != len(pairs):
        raise ValueError("a token id occurs twice")
    return tuple(pairs)
