"""One `generate` call of transformers that tells each token as it comes, in a thread of its own."""

from __future__ import annotations

import queue
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList, StoppingCriteria, StoppingCriteriaList

from visavis.backends.base import EngineRequest, TokenEvent
from visavis.backends.hf_sampling import RowSampler, ranked_logprobs
from visavis.completion import FinishReason, TokenLogprobs

__all__ = ["Generation", "TokenHook"]

_NOT_FINITE = (
    "the model's logits are not finite (NaN or infinite){half}; the answer up to here is kept. "
    "Broken weights or an overflow are the usual causes{way_out}"
)


class TokenHook:
    """Called by `generate` twice a step: with the logits, then with the tokens it chose.

    Decides tokens (through `RowSampler`), ends rows one by one, and hands out `TokenEvent`s.
    """

    def __init__(
        self, requests: Sequence[EngineRequest], rows: Sequence[RowSampler], queue_s: float, dtype: str
    ) -> None:
        self.events: queue.SimpleQueue[TokenEvent | BaseException | None] = queue.SimpleQueue()
        self.aborted: set[int] = set()  # request indices; filled by the thread that takes the events
        self.rows = rows
        self._requests = requests
        self._running = [True] * len(rows)
        self._queue_s: float | None = queue_s
        self._dtype = dtype
        self._broken: torch.Tensor | None = None
        self._logprobs: dict[int, torch.Tensor] = {}

    @property
    def started(self) -> bool:
        """Whether a token has been told."""
        return self._queue_s is None

    def unfinished(self) -> list[EngineRequest]:
        return [r for r, running in zip(self._requests, self._running, strict=True) if running]

    # ---- logits ------------------------------------------------------------------------------------------------

    def process_logits(self, scores: torch.Tensor) -> torch.Tensor:
        """(rows, vocab) float32 raw logits → the same, where only the wanted token can win where a row asks for it."""
        self._broken = ~torch.isfinite(scores.amax(-1))  # a NaN anywhere in a row comes through amax
        self._logprobs = {
            i: scores[i].log_softmax(-1)
            for i, row in enumerate(self.rows)
            if self._running[i] and row.sampling.logprobs is not None
        }
        active = [i for i, row in enumerate(self.rows) if self._running[i] and not row.idle]
        if not active:
            return scores
        scores = scores.clone()
        for i in active:
            # A broken row must not reach the sampler: it raises for NaN, and would end the other rows with it.
            if self.rows[i].sampling.greedy or not bool(self._broken[i]):
                scores[i] = self.rows[i].choose(scores[i])
        return scores

    # ---- tokens ------------------------------------------------------------------------------------------------

    def process_tokens(self, tokens: torch.Tensor) -> list[bool]:
        """(rows,) chosen ids → which rows have ended."""
        assert self._broken is not None  # process_logits came first
        chosen, broken = torch.stack((tokens, self._broken.to(tokens.device, tokens.dtype))).tolist()
        now = time.perf_counter()
        for i, running in enumerate(self._running):
            if running:
                self._tell(i, chosen[i], bool(broken[i]), now)
        self._queue_s = None
        return [not running for running in self._running]

    def _tell(self, i: int, token_id: int, broken: bool, now: float) -> None:
        request, row = self._requests[i], self.rows[i]
        reason: FinishReason | None = None
        if request.index in self.aborted:
            reason = "abort"
        elif broken:
            reason = "error"
        if reason is not None:
            self._running[i] = False
            error = self._not_finite() if reason == "error" else None
            self.events.put(TokenEvent(request.index, finish_reason=reason, error=error, queue_s=self._queue_s))
            return
        row.take(token_id)
        stop_reason = None
        if token_id in row.sampling.end_token_ids:
            reason, stop_reason = "stop", token_id
        elif len(row.generated) >= row.sampling.max_tokens:
            reason = "length"
        self._running[i] = reason is None
        logprobs: tuple[TokenLogprobs, ...] = ()
        if i in self._logprobs:
            logprobs = (ranked_logprobs(self._logprobs[i], token_id, row.sampling.logprobs or 0),)
        self.events.put(
            TokenEvent(
                request.index,
                token_ids=(token_id,),
                times=(now,),
                logprobs=logprobs,
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
        longest = max(row.sampling.max_tokens for row in hook.rows)
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
