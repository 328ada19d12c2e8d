"""Small prompts, sequences and weights for engine tests."""

from __future__ import annotations

from typing import Any

import numpy as np

from visavis.engine.sequence import Sequence
from visavis.prompt import Prompt
from visavis.sampling import ResolvedSampling

_next_uid = iter(range(1_000_000))


def text_prompt(ids: list[int], axes: int = 1, **fields: Any) -> Prompt:
    defaults: dict[str, Any] = {
        "model": "m",
        "family": "f",
        "text": "",
        "canonical_ids": tuple(ids),
        "token_ids": tuple(ids),
        "position_ids": np.tile(np.arange(len(ids)), (axes, 1)),
    }
    return Prompt(**{**defaults, **fields})


def sequence(prompt: int | list[int] = 3, answer: list[int] | None = None, **sampling: Any) -> Sequence:
    ids = list(range(1, prompt + 1)) if isinstance(prompt, int) else prompt
    params = ResolvedSampling(**{"max_tokens": 100, **sampling})
    seq = Sequence(next(_next_uid), "r", text_prompt(ids), params, list(ids), ())
    seq.token_ids += answer or []
    return seq
