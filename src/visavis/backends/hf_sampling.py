"""The sampling rules of `visavis.sampling`, applied to transformers' logits row by row.

transformers has one random generator for a whole batch, no presence and frequency penalties, and counts padding as
prompt tokens. So `generate` runs greedy, and this logits processor does everything: it leaves the logits alone where a
row asks for nothing, and where a row samples it draws with random numbers of the row's own and lets only the drawn
token through. A row's tokens therefore depend on its own request and seed, not on its neighbours.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from visavis.completion import TokenLogprobs
from visavis.engine.random_numbers import uniform
from visavis.sampling import ResolvedSampling

__all__ = ["RowSampler", "ranked_logprobs"]


class RowSampler:
    """State of one row: penalties, bans and what was generated."""

    def __init__(
        self,
        sampling: ResolvedSampling,
        prompt_ids: Sequence[int],
        bad_words: Sequence[tuple[int, ...]],
        vocab_size: int,
        device: torch.device,
    ) -> None:
        """`bad_words`: the id sequences of `sampling.bad_words`. Raises ValueError for ids the model lacks."""
        for name, ids in (
            ("logit_bias", [i for i, _ in sampling.logit_bias]),
            ("stop_token_ids", sampling.stop_token_ids),
        ):
            for token_id in ids:
                if token_id >= vocab_size:
                    raise ValueError(f"{name} {token_id} is outside the model's vocabulary of {vocab_size}")
        self.sampling = sampling
        self.generated: list[int] = []
        self._bad_words = tuple(bad_words)
        self._bias: torch.Tensor | None = None
        if sampling.logit_bias:
            self._bias = torch.zeros(vocab_size, device=device)
            for token_id, bias in sampling.logit_bias:
                self._bias[token_id] = bias
        ends = [i for i in dict.fromkeys(sampling.end_token_ids) if i < vocab_size]
        self._ends = torch.tensor(ends, dtype=torch.long, device=device)
        self._seen: torch.Tensor | None = None
        if sampling.repetition_penalty != 1.0:
            self._seen = torch.zeros(vocab_size, dtype=torch.bool, device=device)
            self._seen[torch.tensor(prompt_ids, dtype=torch.long, device=device)] = True
        self._counts: torch.Tensor | None = None
        if sampling.presence_penalty or sampling.frequency_penalty:
            self._counts = torch.zeros(vocab_size, device=device)

    @property
    def idle(self) -> bool:
        """Whether this row is plain greedy for good: the logits are used as they are."""
        s = self.sampling
        return (
            s.greedy and self._bias is None and self._seen is None and self._counts is None and not self._bad_words
        ) and len(self.generated) >= s.min_tokens

    def take(self, token_id: int) -> None:
        """Notes a token of the answer."""
        self.generated.append(token_id)
        if self._seen is not None:
            self._seen[token_id] = True
        if self._counts is not None:
            self._counts[token_id] += 1

    def choose(self, logits: torch.Tensor) -> torch.Tensor:
        """(vocab,) float32 raw logits → logits whose argmax is the next token. Does not change its argument."""
        s = self.sampling
        row = logits.clone()
        if self._bias is not None:
            row += self._bias
        for word in self._bad_words:
            begun = len(word) - 1
            if begun == 0 or (begun <= len(self.generated) and tuple(self.generated[-begun:]) == word[:-1]):
                row[word[-1]] = -torch.inf
        if len(self.generated) < s.min_tokens and len(self._ends):
            row[self._ends] = -torch.inf
        if self._seen is not None:
            penalty = s.repetition_penalty
            row = torch.where(self._seen, torch.where(row > 0, row / penalty, row * penalty), row)
        if self._counts is not None:
            row -= s.presence_penalty * (self._counts > 0) + s.frequency_penalty * self._counts
        return row if s.greedy else self._draw(row)

    def _draw(self, row: torch.Tensor) -> torch.Tensor:
        s = self.sampling
        row = row / s.temperature
        if s.min_p > 0:
            row = row.masked_fill(row < row.max() + math.log(s.min_p), -torch.inf)
        if 0 < s.top_k < len(row):
            row = row.masked_fill(row < row.topk(s.top_k).values[-1], -torch.inf)
        if s.top_p < 1:
            ordered, order = row.sort(descending=True, stable=True)
            probabilities = ordered.softmax(-1, dtype=torch.float64)
            beyond = probabilities.cumsum(-1) - probabilities >= s.top_p  # enough mass lies ahead of it
            beyond[0] = False
            row = row.index_fill(0, order[beyond], -torch.inf)
        # The native engine's draw: one number per seed and position, so equal logits give equal tokens.
        cumulative = row.softmax(-1, dtype=torch.float64).cumsum(-1)
        threshold = uniform(s.seed, len(self.generated)) * cumulative[-1:]
        drawn = torch.searchsorted(cumulative, threshold, right=True).clamp_(max=len(row) - 1)
        return torch.full_like(row, -torch.inf).index_fill(0, drawn, 0.0)


def ranked_logprobs(logprobs: torch.Tensor, token_id: int, top: int) -> TokenLogprobs:
    """(vocab,) log-probabilities → those of the token and of the `top` most likely ones."""
    best = logprobs.topk(min(top, len(logprobs))) if top else None
    ranked = tuple(zip(best.indices.tolist(), best.values.tolist(), strict=True)) if best is not None else ()
    return TokenLogprobs(token_id, float(logprobs[token_id]), ranked)
