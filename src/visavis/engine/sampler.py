"""From logits to tokens, for a whole batch at once, in the order `visavis.sampling` writes down.

A request's random numbers are a function of its seed and the token's index alone, so its answer depends neither on
the batch it runs in nor on a preemption.

`Sampler.sample` only starts work on the device: its result holds the tokens there, ready to be the next step's input.
`PendingTokens.fetch` is the one place that waits for the device, with one transfer.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import TypeAlias

import torch

from visavis.completion import TokenLogprobs
from visavis.engine.draw import Drawer, greedy, greedy_and_totals
from visavis.engine.logprobs import RankedLogprobs, rank, unpack
from visavis.engine.penalties import PenaltyState, is_penalised
from visavis.engine.sampling_batch import SamplingBatch
from visavis.engine.sequence import Sequence
from visavis.engine.structured import allowed_bias

__all__ = ["NOTHING_ALLOWED", "PendingTokens", "Sampled", "Sampler", "is_plain", "to_host", "why_nothing"]

NOTHING_ALLOWED = -1
"""The token of a row in which every token is banned."""


@dataclass(slots=True)
class Sampled:
    token_ids: list[int]  # NOTHING_ALLOWED where bans left no token
    finite: list[bool]  # False: that row's logits held NaN or infinities and its token means nothing
    logprobs: list[TokenLogprobs | None]


@dataclass(frozen=True, slots=True)
class PendingTokens:
    """`token_ids` (rows,) int64 on the device; always ids of the vocabulary, also in rows that failed."""

    token_ids: torch.Tensor
    _totals: torch.Tensor  # (rows,) sums of the raw logits: finite only where all of them are
    _best: torch.Tensor | None  # (rows,) the largest logit after bans; None: there were none
    _logprobs: RankedLogprobs | None
    _batch: SamplingBatch

    def fetch(self) -> Sampled:
        """Waits for the device."""
        columns = [self.token_ids, self._totals] if self._best is None else [self.token_ids, self._totals, self._best]
        packed = None if self._logprobs is None else self._logprobs.packed()
        (ids, totals, *best), ranked = to_host(columns, packed)
        token_ids = [int(i) for i in ids]
        logprobs: list[TokenLogprobs | None] = [None] * len(token_ids)
        if ranked:
            places = self._batch.logprob_places
            found = unpack(ranked, [token_ids[row] for row in places], self._batch.logprob_counts)
            for row, entry in zip(places, found, strict=True):
                logprobs[row] = entry
        if best:
            token_ids = [NOTHING_ALLOWED if b == -math.inf else i for i, b in zip(token_ids, best[0], strict=True)]
        return Sampled(token_ids, [math.isfinite(total) for total in totals], logprobs)


Best: TypeAlias = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


class Sampler:
    def __init__(self, vocab_size: int, device: torch.device, best: Best = greedy_and_totals) -> None:
        """`best`: does what `greedy_and_totals` does."""
        self.vocab_size = vocab_size
        self.best = best
        self.device = device = _with_float64(device)
        self.penalties = PenaltyState(vocab_size, device)
        self._drawer = Drawer(vocab_size, device)
        self._batch: SamplingBatch | None = None

    def forget(self, seq: Sequence) -> None:
        """Drops what is kept of a finished request."""
        self.penalties.release(seq.uid)
        if self._batch is not None and seq in self._batch.seqs:
            self._batch = None

    def takes_largest(self, seqs: Seq[Sequence]) -> bool:
        """Whether `best` is all that these requests' tokens need. As `sample` may be called: between tokens."""
        return self._batch_of(seqs).plain

    def __call__(self, logits: torch.Tensor, seqs: Seq[Sequence]) -> Sampled:
        """As `sample`, and waits for the tokens."""
        return self.sample(logits, seqs).fetch()

    def sample(self, logits: torch.Tensor, seqs: Seq[Sequence]) -> PendingTokens:
        """logits: (rows, vocab) float32, raw, one row per request; may be changed in place.

        Each request must get its token, or end, before the next call.
        """
        logits = logits.to(self.device)
        batch = self._batch_of(seqs)
        if batch.penalties is not None and batch.last_ids is not None:  # those it began with are counted
            self.penalties.count(batch.penalties, batch.last_ids)
        if batch.plain:
            return PendingTokens(*self.best(logits), None, None, batch)
        totals = logits.sum(-1)
        raw = None if batch.logprob_rows is None else logits[batch.logprob_rows].log_softmax(-1)
        self._adjust(logits, batch)
        best = logits.amax(-1) if batch.masks else None
        token_ids = self._choose(logits, batch)
        ranked = None
        if raw is not None:
            ranked = rank(raw, token_ids[batch.logprob_rows], batch.most_logprobs)
        batch.last_ids = token_ids
        batch.steps += 1
        return PendingTokens(token_ids, totals, best, ranked, batch)

    def _batch_of(self, seqs: Seq[Sequence]) -> SamplingBatch:
        """The kept one as long as it is of these requests."""
        if self._batch is None or not self._batch.matches(seqs):
            self._batch = SamplingBatch(seqs, self.vocab_size, self.device, self.penalties)
        return self._batch

    def _adjust(self, logits: torch.Tensor, batch: SamplingBatch) -> None:
        """Biases, bans and penalties, in place."""
        if batch.bias_cells is not None:
            assert batch.biases is not None
            logits.index_put_(batch.bias_cells, batch.biases, accumulate=True)
        for banned in (batch.banned, batch.phrase_ends() if batch.phrases else None):
            if banned is not None:
                logits.index_put_(banned, torch.tensor(-torch.inf, device=self.device))
        if (bans := batch.ends_now()) is not None:
            assert batch.ends is not None
            logits.index_put_(batch.ends, bans, accumulate=True)
        if batch.grammars:
            bias = allowed_bias(batch.grammars, self.vocab_size, self.device)
            if isinstance(batch.grammar_rows, slice):
                logits += bias
            elif batch.grammar_rows is not None:
                logits.index_add_(0, batch.grammar_rows, bias)
        if batch.penalties is not None:
            self.penalties.apply(logits, batch.penalties)

    def _choose(self, logits: torch.Tensor, batch: SamplingBatch) -> torch.Tensor:
        if batch.drawn is None:
            return greedy(logits)
        assert batch.rules is not None
        if batch.rest is None:
            return self._drawer(logits, batch.rules, batch.numbers())
        token_ids = torch.empty(len(batch.seqs), dtype=torch.int64, device=self.device)
        token_ids[batch.drawn] = self._drawer(logits.index_select(0, batch.drawn), batch.rules, batch.numbers())
        token_ids[batch.rest] = greedy(logits.index_select(0, batch.rest))
        return token_ids


Columns: TypeAlias = list[list[float]]


def to_host(columns: Seq[torch.Tensor], packed: torch.Tensor | None = None) -> tuple[Columns, Columns]:
    """columns (rows,) of any type, and packed (n, width) or None, as lists; from a GPU in one transfer."""
    if columns[0].device.type == "cuda":
        return _transfer(columns, packed)
    return [column.tolist() for column in columns], [] if packed is None else packed.tolist()


def _transfer(columns: Seq[torch.Tensor], packed: torch.Tensor | None) -> tuple[Columns, Columns]:
    """float64 holds token ids and float32 exactly."""
    parts = [column.double() for column in columns]
    if packed is not None:
        parts.append(packed.view(-1))
    numbers, rows = torch.cat(parts).tolist(), len(columns[0])
    heads = [numbers[i * rows : (i + 1) * rows] for i in range(len(columns))]
    if packed is None:
        return heads, []
    width = packed.shape[1]
    return heads, [numbers[at : at + width] for at in range(len(columns) * rows, len(numbers), width)]


def _with_float64(device: torch.device) -> torch.device:
    """Where to sample: on the CPU for devices that cannot cumulate probabilities in float64 (Apple's)."""
    return torch.device("cpu") if device.type == "mps" else device


def is_plain(seq: Sequence) -> bool:
    """Whether the next token of a request is the one with the largest raw logit, and nothing else is asked of it."""
    p = seq.sampling
    return (
        p.greedy
        and not (p.logit_bias or p.bad_words_ids or is_penalised(p))
        and p.logprobs is None
        and seq.grammar is None
        and (seq.num_output_tokens >= p.min_tokens or not seq.end_token_ids)
    )


def why_nothing(seq: Sequence) -> str:
    """Why a request got NOTHING_ALLOWED."""
    if seq.grammar is not None and seq.grammar.error is not None:
        return seq.grammar.error
    return "bans leave no token to go on with: loosen bad_words, or what the answer must match"
