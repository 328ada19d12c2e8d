"""What the requests of a batch ask of the sampler, as tensors: made once, used as long as the batch stays the same."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import NamedTuple

import torch

from visavis.engine.draw import DrawRules
from visavis.engine.penalties import PenaltyState
from visavis.engine.random_numbers import uniforms
from visavis.engine.sequence import Sequence
from visavis.sampling import ResolvedSampling

__all__ = ["SamplingBatch"]

AHEAD = 64  # tokens for which random numbers are made at once


class Cells(NamedTuple):
    """Single logits of a batch: their rows and token ids, (n,) int64 on the device."""

    rows: torch.Tensor
    tokens: torch.Tensor


class SamplingBatch:
    """`plain`: greedy rows that nothing changes, so that only the largest logit of each matters.

    Everything that moves from step to step follows `steps`, the tokens each request got since the batch was made; the
    only reader of the requests' newest tokens on the host is `phrase_ends` (bad words of several tokens) and the
    grammars, so `needs_host_tokens` says whether a step may be started before the last one's tokens are known there.
    """

    def __init__(self, seqs: Seq[Sequence], vocab_size: int, device: torch.device, penalties: PenaltyState) -> None:
        params = [seq.sampling for seq in seqs]
        self.seqs = list(seqs)
        self.steps = 0
        self.last_ids: torch.Tensor | None = None  # what the last step drew, on the device
        self._device = device
        self._vocab_size = vocab_size
        self._first_length = len(seqs[0].token_ids) if seqs else 0
        lengths = [seq.num_output_tokens for seq in seqs]

        self.penalties = penalties.prepare(seqs)
        biases = [(row, token, bias) for row, p in enumerate(params) for token, bias in p.logit_bias]
        self.bias_cells = self._cells([(row, token) for row, token, _ in biases])
        self.biases = torch.tensor([bias for _, _, bias in biases], device=device) if biases else None
        words = [(row, word) for row, p in enumerate(params) for word in p.bad_words_ids]
        self.banned = self._cells([(row, word[0]) for row, word in words if len(word) == 1])
        self.phrases = [(row, word) for row, word in words if len(word) > 1]
        self._set_min_tokens(params, lengths)

        grammars = [(row, seq) for row, seq in enumerate(seqs) if seq.grammar is not None]
        self.grammar_rows = self._rows([row for row, _ in grammars], len(seqs))
        self.grammars = [seq.grammar for _, seq in grammars if seq.grammar is not None]
        self.masks = bool(words or grammars or self.ends is not None)
        self.needs_host_tokens = bool(self.phrases or grammars)

        self._set_draws(params, lengths)
        ranked = [row for row, p in enumerate(params) if p.logprobs is not None]
        self.logprob_rows = self._rows(ranked, len(seqs))
        self.logprob_counts = [params[row].logprobs or 0 for row in ranked]
        self.logprob_places = ranked
        self.most_logprobs = max(self.logprob_counts, default=0)
        changed = biases or self.masks or self.penalties is not None
        self.plain = not (changed or ranked or self.drawn is not None)

    def matches(self, seqs: Seq[Sequence]) -> bool:
        """Whether these are still the requests of this batch, each one token further than at the last step."""
        if list(seqs) != self.seqs or 0 < self._ends_until <= self.steps:  # the bans are over: it may be plain now
            return False
        return self.plain or not seqs or len(seqs[0].token_ids) == self._first_length + self.steps

    def numbers(self) -> torch.Tensor:
        """(drawn rows,) float64: the random numbers of this step."""
        place = self.steps % AHEAD
        if place == 0:
            ahead = self._drawn_lengths[:, None] + torch.arange(self.steps, self.steps + AHEAD, device=self._device)
            seeds = self._seeds[:, None].expand_as(ahead)
            self._numbers = uniforms(seeds.reshape(-1), ahead.reshape(-1)).view(-1, AHEAD)
        return self._numbers[:, place]

    def ends_now(self) -> torch.Tensor | None:
        """What to add to the logits at `ends`: -inf where the answer is shorter than its min_tokens; None at none."""
        if self.ends is None or self.steps >= self._ends_until:
            return None
        return torch.where(self._end_steps > self.steps, -torch.inf, 0.0)

    def phrase_ends(self) -> Cells | None:
        """The last tokens of bad words whose other tokens the text ends with, prompt included."""
        found = []
        for row, word in self.phrases:
            ids = self.seqs[row].token_ids
            if len(ids) >= len(word) - 1 and tuple(ids[1 - len(word) :]) == word[:-1]:
                found.append((row, word[-1]))
        return self._cells(found)

    # ---- building --------------------------------------------------------------------------------------------------

    def _set_min_tokens(self, params: Seq[ResolvedSampling], lengths: Seq[int]) -> None:
        cells: list[tuple[int, int]] = []
        steps: list[int] = []  # how many more steps each one is banned for
        for row, (p, length) in enumerate(zip(params, lengths, strict=True)):
            if length < p.min_tokens:
                ends = [token for token in sorted(set(p.end_token_ids)) if token < self._vocab_size]
                cells += [(row, token) for token in ends]
                steps += [p.min_tokens - length] * len(ends)
        self.ends = self._cells(cells)
        self._end_steps = torch.tensor(steps, device=self._device)
        self._ends_until = max(steps, default=0)

    def _set_draws(self, params: Seq[ResolvedSampling], lengths: Seq[int]) -> None:
        """`drawn`: the rows that are sampled; `rest`: the greedy ones beside them. None: none, or (empty) all."""
        drawn = [row for row, p in enumerate(params) if not p.greedy]
        self.drawn: torch.Tensor | None = None
        self.rest: torch.Tensor | None = None
        self.rules: DrawRules | None = None
        if not drawn:
            return
        mine = [params[row] for row in drawn]
        vocab = self._vocab_size
        top_k = [p.top_k if 0 < p.top_k < vocab else vocab for p in mine]
        self.rules = DrawRules(
            temperature=self._column([p.temperature for p in mine], torch.float32),
            min_p=self._column([p.min_p for p in mine], torch.float32) if any(p.min_p for p in mine) else None,
            top_k=self._column(top_k, torch.int64) if min(top_k) < vocab else None,
            top_p=self._column([p.top_p if p.top_p < 1 else 2.0 for p in mine], torch.float64)
            if any(p.top_p < 1 for p in mine)
            else None,
            max_top_k=max((k for k in top_k if k < vocab), default=0),
            only_within_top_k=all(k < vocab for k, p in zip(top_k, mine, strict=True) if p.top_p < 1),
        )
        self.drawn = torch.tensor(drawn, device=self._device)
        self.all_drawn = len(drawn) == len(params)
        if not self.all_drawn:
            chosen = set(drawn)
            self.rest = torch.tensor([row for row in range(len(params)) if row not in chosen], device=self._device)
        self._seeds = torch.tensor([p.seed for p in mine], device=self._device)
        self._drawn_lengths = torch.tensor([lengths[row] for row in drawn], device=self._device)

    def _cells(self, pairs: Seq[tuple[int, int]]) -> Cells | None:
        if not pairs:
            return None
        rows, tokens = torch.tensor(pairs, device=self._device).T
        return Cells(rows, tokens)

    def _rows(self, rows: Seq[int], of: int) -> torch.Tensor | slice | None:
        """To index with: None for no row, a slice for all of them."""
        if not rows:
            return None
        return slice(None) if len(rows) == of else torch.tensor(rows, device=self._device)

    def _column(self, values: Seq[float], dtype: torch.dtype) -> torch.Tensor:
        return torch.tensor(values, device=self._device, dtype=dtype)[:, None]
