"""From logits to tokens, for a whole batch at once, in the order `visavis.sampling` writes down.

A request's random numbers are a function of its seed and the token's index alone, so its answer depends neither on
the batch it runs in nor on a preemption.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import torch

from visavis.completion import TokenLogprobs
from visavis.engine.penalties import PenaltyState
from visavis.engine.sequence import Sequence
from visavis.sampling import ResolvedSampling

__all__ = ["Sampled", "Sampler", "uniform"]

HONOURED = frozenset(
    [
        "max_tokens",
        "min_tokens",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "repetition_penalty",
        "presence_penalty",
        "frequency_penalty",
        "seed",
        "stop",
        "stop_token_ids",
        "eos_token_ids",
        "ignore_eos",
        "logprobs",
        "logit_bias",
        "special_tokens",
    ]
)
"""Fields of ResolvedSampling the engine can honour (`stop` and `special_tokens` act on text, above the engine)."""


@dataclass(slots=True)
class Sampled:
    token_ids: list[int]
    finite: list[bool]  # False: that row's logits held NaN or infinities and its token means nothing
    logprobs: list[TokenLogprobs | None]


class Sampler:
    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self.device = device
        self.penalties = PenaltyState(vocab_size, device)

    def forget(self, seq: Sequence) -> None:
        """Drops what is kept of a finished request."""
        self.penalties.release(seq.uid)

    def __call__(self, logits: torch.Tensor, seqs: Seq[Sequence]) -> Sampled:
        """logits: (rows, vocab) float32, raw, one row per request; may be changed in place."""
        # A sum over a row is finite only if all of it is: raw logits stay far below float32's range.
        finite = [math.isfinite(total) for total in logits.sum(-1).tolist()]
        params = [seq.sampling for seq in seqs]
        raw = logits.clone() if any(p.logprobs is not None for p in params) else logits
        logits = self._adjust(logits, seqs, params)
        if all(p.greedy for p in params):
            token_ids = logits.argmax(-1).tolist()
        else:
            token_ids = self._draw(logits, seqs, params)
        return Sampled(token_ids, finite, _logprobs(raw, token_ids, params))

    # ---- what changes logits before the draw -----------------------------------------------------------------------

    def _adjust(self, logits: torch.Tensor, seqs: Seq[Sequence], params: Seq[ResolvedSampling]) -> torch.Tensor:
        biases = [(row, token, bias) for row, p in enumerate(params) for token, bias in p.logit_bias]
        if biases:
            rows, tokens, values = zip(*biases, strict=True)
            index = (torch.tensor(rows, device=self.device), torch.tensor(tokens, device=self.device))
            logits.index_put_(index, torch.tensor(values, device=self.device), accumulate=True)
        banned = [
            (row, token)
            for row, seq in enumerate(seqs)
            if seq.num_output_tokens < seq.sampling.min_tokens
            for token in seq.end_token_ids
            if token < logits.shape[1]
        ]
        if banned:
            rows, tokens = zip(*banned, strict=True)
            index = (torch.tensor(rows, device=self.device), torch.tensor(tokens, device=self.device))
            logits.index_put_(index, torch.tensor(float("-inf"), device=self.device))
        return self.penalties.apply(logits, seqs)

    # ---- the draw --------------------------------------------------------------------------------------------------

    def _draw(self, logits: torch.Tensor, seqs: Seq[Sequence], params: Seq[ResolvedSampling]) -> list[int]:
        temperature = self._column([p.temperature or 1.0 for p in params])
        logits = logits / temperature
        logits = self._filter(logits, params)
        # float64: the running sum over 150,000 tokens must not lose the small ones.
        cumulative = torch.softmax(logits, dim=-1, dtype=torch.float64).cumsum(-1)
        u = [uniform(p.seed, seq.num_output_tokens) for seq, p in zip(seqs, params, strict=True)]
        threshold = torch.tensor(u, device=self.device, dtype=torch.float64)[:, None] * cumulative[:, -1:]
        drawn = torch.searchsorted(cumulative, threshold, right=True).squeeze(-1)
        drawn.clamp_(max=logits.shape[1] - 1)
        greedy = torch.tensor([p.greedy for p in params], device=self.device)
        return list(torch.where(greedy, logits.argmax(-1), drawn).tolist())

    def _filter(self, logits: torch.Tensor, params: Seq[ResolvedSampling]) -> torch.Tensor:
        """min_p, then top_k, then top_p over what is left; tokens as likely as the last one kept stay (top_k)."""
        if any(p.min_p > 0 for p in params):
            floor = logits.amax(-1, keepdim=True) + self._column(
                [math.log(p.min_p) if p.min_p else -math.inf for p in params]
            )
            logits = logits.masked_fill(logits < floor, float("-inf"))
        use_top_k = any(p.top_k for p in params)
        use_top_p = any(p.top_p < 1 for p in params)
        if not use_top_k and not use_top_p:
            return logits
        vocab = logits.shape[1]
        ordered, order = logits.sort(dim=-1, descending=True, stable=True)
        if use_top_k:
            last = torch.tensor([min(p.top_k or vocab, vocab) - 1 for p in params], device=self.device)
            ordered = ordered.masked_fill(ordered < ordered.gather(-1, last[:, None]), float("-inf"))
        if use_top_p:
            probs = torch.softmax(ordered, dim=-1, dtype=torch.float64)
            before = probs.cumsum(-1) - probs
            top_p = self._column([p.top_p if p.top_p < 1 else 2.0 for p in params])
            beyond = before >= top_p
            beyond[:, 0] = False
            ordered = ordered.masked_fill(beyond, float("-inf"))
        return torch.empty_like(logits).scatter_(-1, order, ordered)

    def _column(self, values: list[float]) -> torch.Tensor:
        return torch.tensor(values, device=self.device)[:, None]


def uniform(seed: int, index: int) -> float:
    """The number in [0, 1) with which the token at `index` of an answer is drawn: splitmix64 (Steele et al., 2014)
    of seed and index."""
    mask = (1 << 64) - 1
    state = _mix64((seed * 0x9E3779B97F4A7C15 + 0x632BE59BD9B4E019) & mask)
    state = _mix64((state + (index + 1) * 0x9E3779B97F4A7C15) & mask)
    return (state >> 11) * 2.0**-53


def _mix64(z: int) -> int:
    mask = (1 << 64) - 1
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return z ^ (z >> 31)


def _logprobs(raw: torch.Tensor, token_ids: list[int], params: Seq[ResolvedSampling]) -> list[TokenLogprobs | None]:
    """Of the raw distribution: before biases, penalties, temperature and filters."""
    result: list[TokenLogprobs | None] = [None] * len(token_ids)
    rows = [row for row, p in enumerate(params) if p.logprobs is not None]
    if not rows:
        return result
    logprobs = torch.log_softmax(raw[rows], dim=-1)
    chosen = logprobs.gather(-1, torch.tensor([[token_ids[r]] for r in rows], device=raw.device)).squeeze(-1).tolist()
    most = max(params[r].logprobs or 0 for r in rows)
    values, tokens = (t.tolist() for t in logprobs.topk(min(most, raw.shape[1]), dim=-1))
    for i, row in enumerate(rows):
        count = params[row].logprobs or 0
        top = tuple(zip(tokens[i][:count], values[i][:count], strict=True))
        result[row] = TokenLogprobs(token_ids[row], chosen[i], top)
    return result
