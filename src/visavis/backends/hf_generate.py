"""One `generate` call of transformers that tells each token as it comes, in a thread of its own."""

from __future__ import annotations

import math
import queue
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList, StoppingCriteria, StoppingCriteriaList

from visavis.backends.base import EngineRequest, TokenEvent
from visavis.completion import FinishReason, TokenLogprobs
from visavis.engine.sampler import NOTHING_ALLOWED, Sampler, is_plain, to_host, why_nothing
from visavis.engine.sequence import Sequence as EngineSequence
from visavis.engine.structured import completes

__all__ = ["Generation", "TokenHook"]

_NOT_FINITE = (
    "the model's logits are not finite (NaN or infinite){half}; the answer up to here is kept. "
    "Broken weights or an overflow are the usual causes{way_out}"
)


class TokenHook:
    """Called by `generate` twice a step: with the logits, then with the tokens it chose.

    `generate` is greedy, with one random generator and penalties of its own switched off: tokens are chosen by the
    native engine's `Sampler`, so that a row's tokens depend on its own request and seed alone. Ends rows one by one,
    and hands out `TokenEvent`s.
    """

    def __init__(
        self,
        requests: Sequence[EngineRequest],
        seqs: Sequence[EngineSequence],
        sampler: Sampler,
        queue_s: float,
        dtype: str,
    ) -> None:
        self.events: queue.SimpleQueue[TokenEvent | BaseException | None] = queue.SimpleQueue()
        self.aborted: set[int] = set()  # request indices; filled by the thread that takes the events
        self.seqs = seqs
        self._requests = requests
        self._sampler = sampler
        self._running = [True] * len(seqs)
        self._queue_s: float | None = queue_s
        self._dtype = dtype
        self._totals: torch.Tensor | None = None  # of each row's logits, where `generate` chooses by itself
        self._sampled: dict[int, tuple[int, bool, TokenLogprobs | None]] = {}

    @property
    def started(self) -> bool:
        """Whether a token has been told."""
        return self._queue_s is None

    def unfinished(self) -> list[EngineRequest]:
        return [r for r, running in zip(self._requests, self._running, strict=True) if running]

    # ---- logits ------------------------------------------------------------------------------------------------

    def process_logits(self, scores: torch.Tensor) -> torch.Tensor:
        """(rows, vocab) float32 raw logits → the same, or where a row asks for more than the largest one, scores in
        which the wanted tokens win. May overwrite its argument."""
        running = [i for i, runs in enumerate(self._running) if runs]
        seqs = [self.seqs[i] for i in running]
        if all(map(is_plain, seqs)):
            self._totals = scores.sum(-1)
            return scores
        self._totals = None
        logits = scores if len(running) == len(self.seqs) else scores[running]
        out = self._sampler(logits, seqs)
        self._sampled = dict(zip(running, zip(out.token_ids, out.finite, out.logprobs, strict=True), strict=True))
        wanted = torch.zeros_like(scores)
        wanted[running, [max(token_id, 0) for token_id in out.token_ids]] = 1.0
        return wanted

    # ---- tokens ------------------------------------------------------------------------------------------------

    def process_tokens(self, tokens: torch.Tensor) -> list[bool]:
        """(rows,) chosen ids → which rows have ended."""
        sampled = self._sampled
        if self._totals is not None:
            (chosen, totals), _ = to_host((tokens, self._totals))
            sampled = {i: (int(t), math.isfinite(s), None) for i, (t, s) in enumerate(zip(chosen, totals, strict=True))}
        now = time.perf_counter()
        for i, running in enumerate(self._running):
            if running:
                self._tell(i, *sampled[i], now)
        self._queue_s = None
        return [not running for running in self._running]

    def _tell(self, i: int, token_id: int, finite: bool, logprobs: TokenLogprobs | None, now: float) -> None:
        request, seq = self._requests[i], self.seqs[i]
        reason: FinishReason | None = None
        error = None
        if request.index in self.aborted:
            reason = "abort"
        elif not finite:
            reason, error = "error", self._not_finite()
        elif token_id == NOTHING_ALLOWED:
            reason, error = "error", why_nothing(seq)
        if reason is not None:
            self._running[i] = False
            self.events.put(TokenEvent(request.index, finish_reason=reason, error=error, queue_s=self._queue_s))
            return
        seq.token_ids.append(token_id)
        stop_reason = None
        if token_id in seq.end_token_ids:
            reason, stop_reason = "stop", token_id
        elif completes(seq.grammar, token_id):
            reason = "stop"
        elif seq.num_output_tokens >= seq.sampling.max_tokens:
            reason = "length"
        self._running[i] = reason is None
        self.events.put(
            TokenEvent(
                request.index,
                token_ids=(token_id,),
                times=(now,),
                logprobs=() if logprobs is None else (logprobs,),
                finish_reason=reason,
                stop_reason=stop_reason,
                queue_s=self._queue_s,
            )
        )

    def _not_finite(self) -> str:
        half = self._dtype == "float16"
        return _NOT_FINITE.format(
            half=" in float16" if half else "", way_out=": use bfloat16 or float32" if half else ""
        )


class _Logits(LogitsProcessor):  # type: ignore[misc]
    def __init__(self, hook: TokenHook) -> None:
        self._hook = hook

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return self._hook.process_logits(scores)


class _Tokens(StoppingCriteria):  # type: ignore[misc]
    def __init__(self, hook: TokenHook) -> None:
        self._hook = hook

    def __call__(self, input_ids: torch.Tensor, scores: Any, **unused: Any) -> torch.Tensor:
        return torch.tensor(self._hook.process_tokens(input_ids[:, -1]), device=input_ids.device)


class Generation:
    """A running `generate`. Iterate for its events; `close` ends it and waits until it has ended."""

    def __init__(
        self,
        model: Any,
        inputs: Mapping[str, torch.Tensor],
        hook: TokenHook,
        executor: ThreadPoolExecutor,
        *,
        pad_token_id: int,
        cache_implementation: str | None = None,
    ) -> None:
        self.hook = hook
        longest = max(seq.sampling.max_tokens for seq in hook.seqs)
        # Everything that decides tokens is in the hook; nothing is left to the folder's or the library's defaults.
        config = GenerationConfig(
            do_sample=False,
            num_beams=1,
            max_new_tokens=longest,
            pad_token_id=pad_token_id,
            use_cache=True,
            cache_implementation=cache_implementation,
        )
        self._future = executor.submit(self._generate, model, dict(inputs), config)

    def _generate(self, model: Any, inputs: dict[str, torch.Tensor], config: GenerationConfig) -> None:
        try:
            model.generate(
                **inputs,
                generation_config=config,
                logits_processor=LogitsProcessorList([_Logits(self.hook)]),
                stopping_criteria=StoppingCriteriaList([_Tokens(self.hook)]),
            )
            self.hook.events.put(None)
        except BaseException as error:
            self.hook.events.put(error)

    def __iter__(self) -> Iterator[TokenEvent]:
        while (event := self.hook.events.get()) is not None:
            if isinstance(event, BaseException):
                raise event
            yield event

    def close(self) -> None:
        """Ends the rows still running; returns when the thread is free."""
        self.hook.aborted.update(request.index for request in self.hook.unfinished())
        self._future.result()
