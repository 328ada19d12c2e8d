"""Log-probabilities of a prompt's own tokens, worked out chunk by chunk as the prompt is computed."""

from __future__ import annotations

from collections.abc import Callable

import torch

from visavis.engine.logprobs import rank, unpack
from visavis.engine.sequence import Sequence

__all__ = ["collect_prompt_logprobs"]

MAX_BYTES = 32 << 20
"""Of logits at once. A long prompt over a large vocabulary would need gigabytes."""


def collect_prompt_logprobs(
    seq: Sequence,
    hidden: torch.Tensor,
    start: int,
    to_logits: Callable[[torch.Tensor], torch.Tensor],
    vocab_size: int,
) -> None:
    """Adds to `seq.prompt_logprobs` what a computed chunk tells; hidden (n, width) of tokens start … start + n - 1.

    The hidden state of a token tells of the one behind it. Tokens that are computed again after a preemption add
    nothing. Waits for the device once for each part of the chunk.
    """
    known, most = len(seq.prompt_logprobs), seq.sampling.prompt_logprobs or 0
    first = max(start, known - 1)
    last = min(start + len(hidden), seq.num_prompt_tokens - 1)
    part = max(1, MAX_BYTES // (4 * vocab_size))
    while first < last:
        stop = min(first + part, last)
        logits = to_logits(hidden[first - start : stop - start])
        targets = seq.token_ids[first + 1 : stop + 1]
        ranked = rank(logits.log_softmax(-1), torch.tensor(targets, device=logits.device), most)
        seq.prompt_logprobs += unpack(ranked.packed().tolist(), targets, [most] * len(targets))
        first = stop
