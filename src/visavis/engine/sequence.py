"""`Sequence`: one request inside the engine, from arrival to its last token."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from visavis.completion import TokenLogprobs
from visavis.prompt import Prompt
from visavis.sampling import ResolvedSampling

if TYPE_CHECKING:
    from visavis.engine.structured import GrammarState

__all__ = ["Sequence", "SequenceStatus"]


class SequenceStatus(Enum):
    WAITING = auto()
    RUNNING = auto()
    FINISHED = auto()


@dataclass(slots=True, eq=False)
class Sequence:
    """`token_ids` are prompt and answer together; the first `num_computed_tokens` have their keys and values in the
    blocks of `block_table`. `uid` is unique in the engine's life, `request_id` is the caller's."""

    uid: int
    request_id: str
    prompt: Prompt
    sampling: ResolvedSampling
    token_ids: list[int]
    visual_positions: tuple[npt.NDArray[np.int64], ...]  # per media item: where its tokens are in the prompt
    num_prompt_tokens: int = 0
    num_computed_tokens: int = 0
    block_table: list[int] = field(default_factory=list)
    status: SequenceStatus = SequenceStatus.WAITING
    arrival_time: float = field(default_factory=time.perf_counter)
    priority: int = 0  # lower numbers go first
    queue_s: float | None = None  # arrival to the first step it took part in
    end_token_ids: frozenset[int] = frozenset()
    patches: dict[int, torch.Tensor] = field(default_factory=dict)  # of media items, where made before their turn
    block_hashes: list[bytes] = field(default_factory=list)  # names of its first full blocks, as far as worked out
    num_cached_tokens: int | None = None  # found in the prefix cache when it was first admitted
    has_shared: bool = False  # some of its blocks were computed by others, or before it was preempted
    trusts_cache: bool = True
    grammar: GrammarState | None = None  # what the answer must match, and how far it has come
    prompt_logprobs: list[TokenLogprobs | None] = field(default_factory=list)  # of the prompt's first tokens

    def __post_init__(self) -> None:
        self.num_prompt_tokens = len(self.token_ids)
        self.end_token_ids = frozenset(self.sampling.end_token_ids)
        if self.sampling.prompt_logprobs is not None:
            self.prompt_logprobs.append(None)  # nothing stands before the first token

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def needs_prompt_logits(self) -> bool:
        """Whether tokens of the prompt must be computed for their log-probabilities, cached or not."""
        return self.sampling.prompt_logprobs is not None and len(self.prompt_logprobs) < self.num_prompt_tokens

    @property
    def num_uncomputed_tokens(self) -> int:
        return len(self.token_ids) - self.num_computed_tokens

    @property
    def is_decoding(self) -> bool:
        """True when all that is left to compute is the newest generated token."""
        return self.num_computed_tokens >= self.num_prompt_tokens and self.num_uncomputed_tokens == 1

    @property
    def next_position(self) -> int:
        """Rotary position of the newest token, the same on every axis; for generated tokens only."""
        return len(self.token_ids) - 1 + self.prompt.rope_delta

    def positions(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        """(axes, stop - start) rotary positions of a range of tokens, prompt and generated."""
        prompt_part = self.prompt.position_ids[:, start : min(stop, self.num_prompt_tokens)]
        if stop <= self.num_prompt_tokens:
            return prompt_part
        first = max(start, self.num_prompt_tokens)
        generated = np.arange(first, stop, dtype=np.int64) + self.prompt.rope_delta
        return np.concatenate([prompt_part, np.broadcast_to(generated, (prompt_part.shape[0], generated.size))], axis=1)
