"""Sampling: what a user asks (`SamplingParams`), what is in force and why (`ResolvedSampling`).

Precedence: request > user config > `generation_config.json` (only when asked for) > neutral (greedy). Every
effective value carries its origin. Engines get all of it, so no engine's own default ever decides anything.

`repetition_penalty` (CTRL, arXiv:1909.05858): the logit of every token that occurs in the prompt or the answer so
far is divided by it when positive, multiplied when negative; image placeholders count as prompt tokens, as in
transformers and vLLM. `presence_penalty` and `frequency_penalty` (OpenAI): subtracted from the logit once, and once
per occurrence, for tokens of the answer so far only. Order: logit_bias; what bad words, min_tokens and structured
output ban; repetition, presence and frequency; temperature, min_p, top_k, top_p. docs/sampling.md says it all.
"""

from __future__ import annotations

from visavis.sampling.params import ALL_FIELDS, ResolvedSampling, SamplingParams, SpecialTokens
from visavis.sampling.rules import DEFAULT_MAX_TOKENS, resolve
from visavis.sampling.structured import StructuredOutput
from visavis.sampling.values import MAX_LOGPROBS

__all__ = [
    "ALL_FIELDS",
    "DEFAULT_MAX_TOKENS",
    "MAX_LOGPROBS",
    "ResolvedSampling",
    "SamplingParams",
    "SpecialTokens",
    "StructuredOutput",
    "resolve",
]
