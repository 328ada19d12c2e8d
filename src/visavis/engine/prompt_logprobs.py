"""Log-probabilities of a prompt's own tokens, worked out chunk by chunk as the prompt is computed."""

from __future__ import annotations

import torch

from visavis.engine.logprobs import rank, unpack
from visavis.engine.sequence import Sequence

__all__ = ["collect_prompt_logprobs", "prompt_logit_ranges"]

MAX_BYTES = 32 << 20
"""Of logits at once. A long prompt over a large vocabulary would need gigabytes."""


def prompt_logit_ranges(seq: Sequence, start: int, stop: int, vocab_size: int) -> list[tuple[int, int]]:
    """Ranges of tokens within start … stop, which are about to be computed, whose logits `collect_prompt_logprobs` must
    get, in order.

    The hidden state of a token tells of the one behind it. Tokens that are computed again after a preemption add
    nothing.
    """
    if not seq.needs_prompt_logits:
        return []
    first = max(start, len(seq.prompt_logprobs) - 1)
    last = min(stop, seq.num_prompt_tokens - 1)
    part = max(1, MAX_BYTES // (4 * vocab_size))
    return [(at, min(at + part, last)) for at in range(first, last, part)]


def collect_prompt_logprobs(seq: Sequence, tokens: tuple[int, int], logits: torch.Tensor) -> None:
    """Adds to `seq.prompt_logprobs` what the logits (n, vocab) of a range of tokens tell. Waits for the device."""
    most = seq.sampling.prompt_logprobs or 0
    targets = seq.token_ids[tokens[0] + 1 : tokens[1] + 1]
    ranked = rank(logits.log_softmax(-1), torch.tensor(targets, device=logits.device), most)
    seq.prompt_logprobs += unpack(ranked.packed().tolist(), targets, [most] * len(targets))
