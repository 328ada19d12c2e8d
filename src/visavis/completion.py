"""`Completion`, `Delta` and `Timings`: what comes back, the same from every engine."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Literal

from visavis.errors import shorten
from visavis.sampling import ResolvedSampling

if TYPE_CHECKING:
    from visavis.grounding import GroundingResult
    from visavis.prompt import BoxFormat

__all__ = ["Completion", "Delta", "FinishReason", "MediaSize", "Timings", "TokenLogprobs"]

FinishReason = Literal["stop", "length", "abort", "error"]


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probabilities (natural) at one generated position, of the raw distribution (before penalties and
    temperature). `top` holds (token id, logprob) of the most likely tokens, best first."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds. `token_times` are stamped where the engine runs, counted from the request's submission there."""

    prepare_s: float = 0.0
    queue_s: float = 0.0
    token_times: tuple[float, ...] = ()
    total_s: float = 0.0

    @property
    def first_token_s(self) -> float | None:
        """Time to first token from submission (preparation apart)."""
        return self.token_times[0] if self.token_times else None

    @property
    def per_token_s(self) -> float | None:
        """Median time between tokens after the first; None with fewer than two tokens."""
        gaps = [b - a for a, b in zip(self.token_times, self.token_times[1:], strict=False)]
        return median(gaps) if gaps else None

    @property
    def decode_tokens_per_s(self) -> float | None:
        """(tokens − 1) / (last − first token time)."""
        if len(self.token_times) < 2 or self.token_times[-1] <= self.token_times[0]:
            return None
        return (len(self.token_times) - 1) / (self.token_times[-1] - self.token_times[0])


@dataclass(frozen=True, slots=True)
class MediaSize:
    """(height, width) of one image before and after the resize: what boxes need to get back to pixels."""

    original: tuple[int, int]
    resized: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Completion:
    """One answer. `token_ids` are the truth (EOS included when it was generated); `text` is derived from them."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    backend: str
    model: str
    prompt_tokens: int
    image_tokens: int
    sampling: ResolvedSampling
    timings: Timings
    stop_reason: str | int | None = None  # the stop string or stop token id that ended it
    logprobs: tuple[TokenLogprobs, ...] | None = None
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None
    error: str | None = None
    media_sizes: tuple[MediaSize, ...] = ()
    box_format: BoxFormat = "none"
    alternatives: tuple[Completion, ...] = field(default=())  # the other answers when n > 1
    valid: bool | None = None  # whether the text matches `sampling.structured`; None: nothing was asked, or unknown
    reported_tokens: int | None = None  # the answer's tokens as a server counted them that gave no ids

    def __repr__(self) -> str:
        failed = f", error {shorten(self.error)}" if self.error is not None else ""
        others = f", {len(self.alternatives)} more" if self.alternatives else ""
        return (
            f"Completion({shorten(self.text)}, {self.completion_tokens} tokens, {self.finish_reason}, "
            f"{self.backend} {self.model}, {self.prompt_tokens} prompt tokens{others}{failed})"
        )

    @property
    def completion_tokens(self) -> int:
        """How many tokens the answer has."""
        return len(self.token_ids) if self.reported_tokens is None else self.reported_tokens

    def boxes(self, image: int = 0) -> GroundingResult:
        """Boxes and points of the answer in pixels of the upright original of image number `image`; none for a chat
        without images. Raises OptionError for an image the request did not have."""
        from visavis.grounding import GroundingResult, parse

        if not self.media_sizes and image == 0:
            return GroundingResult()
        if not 0 <= image < len(self.media_sizes):
            from visavis.errors import OptionError

            raise OptionError(f"boxes(image={image}): the request had {len(self.media_sizes)} images")
        size = self.media_sizes[image]
        return parse(self.text, self.box_format, original_size=size.original, resized_size=size.resized)


@dataclass(frozen=True, slots=True)
class Delta:
    """A piece of a streamed answer. Joined texts of one `index` equal the whole text, byte for byte.
    The last delta of an index carries the finished `completion`."""

    index: int  # which prompt of the batch
    text: str
    token_ids: tuple[int, ...] = ()
    completion: Completion | None = None
