"""The one result of a comparison: plain dataclasses, and the same tree as JSON (`as_dict`, schema `SCHEMA`)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

from visavis.compare.pair_result import (
    Agreement,
    Cause,
    Difference,
    PairResult,
    Rerun,
    SettingDifference,
    Side,
)

__all__ = [
    "SCHEMA",
    "Agreement",
    "Answer",
    "BackendResult",
    "BatchResult",
    "Cause",
    "Comparison",
    "Difference",
    "Expected",
    "PairResult",
    "PromptRecord",
    "Rerun",
    "SettingDifference",
    "Side",
    "SkippedBackend",
    "as_dict",
]

SCHEMA = "visavis.compare/2"


@dataclass(frozen=True, slots=True)
class Expected:
    """The true answer of a sample. With `box` (pixels of the upright original) the centre of the answer's first box or
    its point must lie in it; otherwise `text` must be equal, white space around it apart."""

    text: str | None = None
    box: tuple[float, float, float, float] | None = None


@dataclass(frozen=True, slots=True)
class PromptRecord:
    """What was asked: the same for every backend."""

    id: str
    question: str
    prompt_tokens: int
    image_tokens: int
    media: tuple[Mapping[str, Any], ...]  # original and resized (height, width), tokens, content hash
    prepare_s: float
    expected: Expected | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """One prompt, answered once by one backend. Times in seconds from submission, as the engine's process saw them."""

    prompt: str
    round: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: str
    prompt_tokens: int
    queue_s: float
    token_times_s: tuple[float, ...]
    total_s: float
    sampling: Mapping[str, Any]
    boxes: Mapping[str, Any] | None = None
    right: bool | None = None  # None where no true answer is known
    error: str | None = None
    tokens: tuple[str, ...] = ()  # each token spelled, in the first round

    @property
    def first_token_s(self) -> float | None:
        return self.token_times_s[0] if self.token_times_s else None

    @property
    def per_token_s(self) -> float | None:
        """(last − first token time) / (tokens − 1): also right for engines that give several tokens at a time."""
        if len(self.token_times_s) < 2:
            return None
        return (self.token_times_s[-1] - self.token_times_s[0]) / (len(self.token_times_s) - 1)


@dataclass(frozen=True, slots=True)
class BatchResult:
    """All prompts at once: `seconds` from submission to the last token of the last answer."""

    prompts: int
    tokens: int
    seconds: float
    tokens_per_s: float
    same_as_alone: int  # answers with the same tokens as when asked alone
    failed: int = 0
    per_token_s: float | None = None  # median over the answers of each one's median time between its tokens


@dataclass(slots=True)
class BackendResult:
    """One backend's part. Rates count generated tokens from ids; failed answers count nowhere and are listed."""

    backend: str  # its name here: the engine's, or a label of the user's
    engine: str = ""
    own: Mapping[str, Any] = field(default_factory=dict)  # settings that were given for it alone
    version: str = ""
    device: str = ""
    dtype: str = ""
    interpreter: str = ""  # the Python it ran in, where it is another than ours
    phases_s: Mapping[str, float] = field(default_factory=dict)  # of the load, in order
    settings: Mapping[str, Any] = field(default_factory=dict)
    marks: tuple[str, ...] = ()
    load_s: float | None = None  # from the start of its process until ready
    warm_up_s: float | None = None  # the first request, image included
    first_token_s: float | None = None  # median
    first_token_spread_s: tuple[float, float] | None = None  # quartiles
    per_token_s: float | None = None  # median
    per_token_spread_s: tuple[float, float] | None = None
    answer_s: float | None = None  # median time from submission to the last token
    answer_spread_s: tuple[float, float] | None = None
    tokens_per_s: float | None = None  # one prompt at a time, first tokens included
    batch: BatchResult | None = None
    peak_memory_bytes: int | None = None
    peak_device_memory_bytes: int | None = None
    right: int | None = None  # of the prompts with a known true answer, in the first round
    steady: bool = True  # every round gave the same tokens
    answers: list[Answer] = field(default_factory=list)
    prompts: tuple[PromptRecord, ...] = ()  # as it got them, where its settings change them
    error: str | None = None  # it could not be loaded, or its process died

    def first_round(self) -> dict[str, Answer]:
        """Answers of round 1 by prompt id."""
        return {a.prompt: a for a in self.answers if a.round == 1}


@dataclass(frozen=True, slots=True)
class SkippedBackend:
    """A backend that was not asked for by name and cannot run here, or not with this model."""

    backend: str
    reason: str
    install: str  # the command that adds it


@dataclass(slots=True)
class Comparison:
    """Everything one `visavis compare` found."""

    model: str
    visavis_version: str
    machine: Mapping[str, Any]
    started: str  # ISO 8601, UTC
    rounds: int
    requested_sampling: Mapping[str, Any]
    prompts: tuple[PromptRecord, ...]
    backends: list[BackendResult] = field(default_factory=list)
    pairs: list[PairResult] = field(default_factory=list)
    skipped: list[SkippedBackend] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # what limits the comparison, in words
    times: list[str] = field(default_factory=list)  # why the times differ, in words
    command: str = ""  # what repeats it
    verdict: str = ""
    schema: str = SCHEMA

    @property
    def all_same(self) -> bool:
        """Every pair gave the same tokens and the same text on every prompt."""
        return all(not pair.differences for pair in self.pairs)

    @property
    def failed(self) -> bool:
        """A backend, or an answer of one, failed."""
        return any(b.error is not None or any(a.error is not None for a in b.answers) for b in self.backends)


def as_dict(value: Any) -> Any:
    """A result as JSON-ready dicts and lists; floats keep their digits."""
    if is_dataclass(value) and not isinstance(value, type):
        plain = {f.name: as_dict(getattr(value, f.name)) for f in fields(value)}
        if isinstance(value, Answer):
            plain |= {"first_token_s": value.first_token_s, "per_token_s": value.per_token_s}
        if isinstance(value, Side):
            plain |= {
                "probability": _probability(value.logprob),
                "probability_of_other": _probability(value.logprob_of_other),
            }
        if isinstance(value, Comparison):
            plain = {"schema": plain.pop("schema"), "verdict": plain.pop("verdict"), **plain}
        return plain
    if isinstance(value, Mapping):
        return {str(k): as_dict(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [as_dict(v) for v in value]
    if isinstance(value, set | frozenset):
        return sorted(as_dict(v) for v in value)
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return str(value)


def _probability(logprob: float | None) -> float | None:
    return None if logprob is None else math.exp(logprob)
