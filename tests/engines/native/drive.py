"""Runs prompts through a `NativeEngine`, and through one that is forced along given answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tests.engines.native.reference import Answer, Reference
from visavis.engine import EngineConfig, NativeEngine
from visavis.engine.sampler import Sampled
from visavis.engine.sequence import Sequence as EngineSequence
from visavis.prompt import Prompt
from visavis.sampling import ResolvedSampling


def make_engine(reference: Reference, **settings: Any) -> NativeEngine:
    return NativeEngine(reference.folder, reference.config, EngineConfig(**settings))


def greedy(engine: NativeEngine, prompts: Sequence[Prompt], max_tokens: int = 64) -> list[list[int]]:
    """Answers of all prompts submitted together."""
    for i, prompt in enumerate(prompts):
        engine.add_request(str(i), prompt, ResolvedSampling(max_tokens=max_tokens))
    return [[t for t, _ in tokens] for tokens in drain(engine, len(prompts))]


def drain(engine: NativeEngine, count: int) -> list[list[tuple[int, Any]]]:
    answers: list[list[tuple[int, Any]]] = [[] for _ in range(count)]
    while engine.has_work:
        for output in engine.step():
            assert output.error is None, output.error
            logprobs = output.logprobs or (None,) * len(output.token_ids)
            answers[int(output.request_id)] += zip(output.token_ids, logprobs, strict=True)
    assert engine.pool.num_free == engine.pool.num_blocks, "blocks are missing after the last request"
    return answers


def forced_logits(engine: NativeEngine, prompts: Sequence[Prompt], answers: Sequence[Answer]) -> list[torch.Tensor]:
    """The engine's logits along the reference's answers (teacher forcing), each (answer tokens, vocab)."""
    seen: list[list[torch.Tensor]] = [[] for _ in prompts]

    def follow(logits: torch.Tensor, seqs: Sequence[EngineSequence]) -> Sampled:
        tokens = []
        for row, seq in zip(logits, seqs, strict=True):
            index = int(seq.request_id)
            seen[index].append(row.clone())
            tokens.append(answers[index].token_ids[seq.num_output_tokens])
        return Sampled(tokens, [True] * len(tokens), [None] * len(tokens))

    sampler = engine.sampler
    follow.forget, follow.takes_largest = sampler.forget, sampler.takes_largest  # type: ignore[attr-defined]
    engine.sampler = follow  # type: ignore[assignment]
    try:
        for i, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
            engine.add_request(str(i), prompt, ResolvedSampling(max_tokens=len(answer.token_ids)))
        while engine.has_work:
            engine.step()
    finally:
        engine.sampler = sampler
    return [torch.stack(rows) for rows in seen]
