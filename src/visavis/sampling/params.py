"""`SamplingParams`, what a request asks for, and `ResolvedSampling`, what is in force."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

from visavis.errors import OptionError, shorten
from visavis.sampling.structured import SPELLINGS, StructuredOutput
from visavis.sampling.values import coerce

__all__ = ["ALL_FIELDS", "GREEDY_BELOW", "ResolvedSampling", "SamplingParams", "SpecialTokens"]

SpecialTokens = Literal["structural", "all", "none"]

GREEDY_BELOW = 1e-5
"""Temperatures under this are greedy: dividing logits by less overflows float16 and changes nothing else."""

ALIASES = {
    "max_new_tokens": "max_tokens",
    "max_completion_tokens": "max_tokens",
    "stop_strings": "stop",
    "structured_outputs": "structured",
    "response_format": "structured",
}

_KINDS: dict[str, str] = {kind: kind for kind in ("json_schema", "regex", "choice", "grammar")}
_KINDS |= {f"guided_{name}": kind for name, kind in SPELLINGS.items() if name != "json_schema"}
"""Names under which one kind of structured output may be given by itself."""


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
    bad_words_ids: tuple[tuple[int, ...], ...] | None = None
    special_tokens: SpecialTokens | None = None
    structured: StructuredOutput | None = None

    def __post_init__(self) -> None:
        for f in fields(self):
            object.__setattr__(self, f.name, coerce(f.name, getattr(self, f.name), "sampling"))

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
            if name in _KINDS:
                target, value = "structured", None if value is None else {_KINDS[name]: value}
            if target not in known:
                near = difflib.get_close_matches(str(name), [*known, *ALIASES, *_KINDS, "do_sample"], n=1)
                hint = f"; did you mean {near[0]}?" if near else f"; known: {', '.join(sorted(known))}"
                raise OptionError(f"{where}: unknown sampling option {shorten(name)}{hint}")
            if value is None:
                continue
            value = coerce(target, value, where)
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
    bad_words_ids: tuple[tuple[int, ...], ...] = ()  # those given, and the spellings of `bad_words`
    special_tokens: SpecialTokens = "structural"
    structured: StructuredOutput | None = None
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


ALL_FIELDS = frozenset(f.name for f in fields(ResolvedSampling)) - {"origins", "notes"}
"""Everything an engine may be asked to honour; what one cannot do is taken away from this in its backend."""


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
