"""What two backends' answers side by side showed: agreement, differences, their causes, the re-runs that tell them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from visavis.compare.agreement import Kind

__all__ = [
    "Agreement",
    "Cause",
    "CauseKind",
    "Difference",
    "How",
    "PairResult",
    "Part",
    "Rerun",
    "SettingDifference",
    "Side",
]

CauseKind = Literal[
    "prompt ids",
    "pixels",
    "sampling",
    "length",
    "special tokens",
    "precision",
    "engine option",
    "near tie",
    "real disagreement",
    "unknown",
    "failed",
]
Part = Literal["all", "tokens", "text", "some"]
"""Of a difference: what a cause explains. `some`: another answer, not yet the first's."""
How = Literal["alone", "jointly", "seen", "not tested"]
"""`alone`, `jointly`: a re-run with the setting (the settings) made equal gave equal answers. `seen`: it shows in the
answers themselves. `not tested`: the settings differ and no re-run was made."""


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a first difference. `token_id` None: its answer had ended."""

    token_id: int | None
    token: str | None
    logprob: float | None = None  # of its own token
    logprob_of_other: float | None = None  # of the other side's token; None when not among its best


@dataclass(frozen=True, slots=True)
class SettingDifference:
    """A setting in which the two requests to one prompt differ: effective values, each with its origin."""

    prompt: str
    name: str
    kind: CauseKind  # the class of difference it can make
    first: Any
    second: Any
    origin_first: str = ""
    origin_second: str = ""


@dataclass(frozen=True, slots=True)
class Rerun:
    """The second backend asked again with `equalised` set as for the first; how its answer then compares with the
    first's. `changed`: with its own answer as it was."""

    prompt: str
    equalised: tuple[str, ...]
    same_tokens: bool = False
    same_text: bool = False
    position: int | None = None  # of the first difference that is left
    edit_distance: int | None = None
    changed: bool = False
    drawn: bool = False  # its tokens were drawn at random, the first's were not: being equal would be luck
    text: str = ""
    error: str | None = None

    @property
    def proves(self) -> bool:
        """Whether it may be held against the first's answer."""
        return self.error is None and not self.drawn


@dataclass(frozen=True, slots=True)
class Cause:
    """What (a part of) a difference is put down to. `settings`: those that explain it together."""

    kind: CauseKind
    how: How
    text: str  # the finding in words, evidence included
    settings: tuple[str, ...] = ()
    part: Part = "all"


@dataclass(frozen=True, slots=True)
class Difference:
    """Where two answers to one prompt part. `position` counts tokens from 0."""

    prompt: str
    kind: Kind
    why: str
    position: int | None = None
    before: str = ""  # the text both agree on
    first: Side | None = None
    second: Side | None = None
    margin: float | None = None  # nats
    causes: tuple[Cause, ...] = ()


@dataclass(frozen=True, slots=True)
class Agreement:
    """One prompt's two answers, measured. `share_before`: part of the longer answer's tokens before the first
    difference (None without ids). Boxes: the first of each answer, in pixels of the upright original."""

    prompt: str
    same_tokens: bool | None  # None: one of the engines gives no ids
    same_text: bool
    position: int | None
    share_before: float | None
    edit_distance: int  # characters
    box_iou: float | None = None
    center_distance: float | None = None  # pixels


@dataclass(frozen=True, slots=True)
class PairResult:
    """Agreement of two backends. `same` of `total` prompts got the very same tokens, `same_text` the very same text.

    `without_ids` names the one of them that gives text and no token ids: then `same` says nothing and text is all."""

    first: str
    second: str
    same: int
    total: int
    differences: tuple[Difference, ...] = ()
    same_text: int = 0
    agreement: tuple[Agreement, ...] = ()
    settings: tuple[SettingDifference, ...] = ()
    reruns: tuple[Rerun, ...] = ()
    findings: tuple[str, ...] = ()  # what the re-runs say over all prompts, in words
    without_ids: str = ""

    def count(self, kind: Kind) -> int:
        return sum(d.kind == kind for d in self.differences)

    def causes(self) -> Mapping[tuple[CauseKind, How, tuple[str, ...]], list[str]]:
        """Prompts by cause, the most frequent cause first."""
        found: dict[tuple[CauseKind, How, tuple[str, ...]], list[str]] = {}
        for difference in self.differences:
            for cause in difference.causes:
                found.setdefault((cause.kind, cause.how, cause.settings), []).append(difference.prompt)
        return dict(sorted(found.items(), key=lambda item: -len(item[1])))
