"""Log-probabilities of a prompt's own tokens from transformers: a pass of its own, as `generate` keeps none of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from visavis.completion import TokenLogprobs
from visavis.engine.logprobs import rank, unpack

__all__ = ["prompt_logprobs"]

ROWS = 256  # of the vocabulary's width, ranked at once


@torch.inference_mode()
def prompt_logprobs(
    model: Any, inputs: Mapping[str, torch.Tensor], token_ids: Sequence[int], top: int
) -> tuple[TokenLogprobs | None, ...]:
    """One entry a token, the first None; `inputs` are those of this prompt alone.

    Holds the logits of the whole prompt, tokens × vocabulary in the model's dtype.
    """
    logits = model(**inputs, use_cache=False).logits[0]
    if len(logits) != len(token_ids):
        raise RuntimeError(f"the model gave {len(logits)} positions for a prompt of {len(token_ids)} tokens")
    entries: list[TokenLogprobs | None] = [None]
    for start in range(0, len(token_ids) - 1, ROWS):
        targets = list(token_ids[start + 1 : start + 1 + ROWS])
        logprobs = logits[start : start + len(targets)].float().log_softmax(-1)
        ranked = rank(logprobs, torch.tensor(targets, device=logits.device), top)
        entries += unpack(ranked.packed().tolist(), targets, [top] * len(targets))
    return tuple(entries)
