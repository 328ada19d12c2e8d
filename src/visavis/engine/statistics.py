"""What an engine is doing: one snapshot of numbers, and the rate of tokens over the last seconds."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from visavis.engine.encoder_cache import EncoderCache
    from visavis.engine.scheduler import Scheduler
    from visavis.engine.sequence import Sequence

__all__ = ["Counters", "EngineStatistics", "TokenRate", "snapshot"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStatistics:
    """Counters are since the start of the engine; the rest is as of now."""

    running: int  # requests
    waiting: int
    preparing: int = 0  # submitted, their images not ready yet
    kv_blocks: int
    kv_blocks_used: int  # by running requests; blocks only the prefix cache holds are free
    kv_blocks_cached: int  # whose content can be found again
    prefix_queries: int  # tokens of requests that were admitted …
    prefix_hits: int  # … and how many of them came from the prefix cache
    prefix_evictions: int  # blocks
    encoder_queries: int = 0  # images and videos read by requests …
    encoder_hits: int = 0  # … and how many of them had been encoded for another
    encoder_evictions: int = 0
    encoder_cache_bytes: int = 0
    preemptions: int
    out_of_memory: int  # steps that were given up and tried again with fewer requests or tokens
    finished: int  # requests that ended by themselves
    aborted: int
    failed: int
    prompt_tokens: int  # of requests that got their first token
    generated_tokens: int
    tokens_per_s: float  # generated, over the last seconds

    @property
    def kv_usage(self) -> float:
        """Share of the KV blocks that running requests use, 0 … 1."""
        return self.kv_blocks_used / self.kv_blocks

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "kv_usage": self.kv_usage}


class TokenRate:
    """Tokens per second over a sliding window. One thread adds, any may read."""

    def __init__(self, window_s: float = 10.0, clock: Callable[[], float] = time.perf_counter) -> None:
        self.window_s = window_s
        self._clock = clock
        self._start = clock()
        self._seconds: deque[tuple[int, int]] = deque(maxlen=int(window_s) + 2)  # (whole second, tokens in it)

    def add(self, tokens: int) -> None:
        second = int(self._clock())
        if self._seconds and self._seconds[-1][0] == second:
            tokens += self._seconds.pop()[1]
        self._seconds.append((second, tokens))

    def read(self) -> float:
        now = self._clock()
        counted = sum(tokens for second, tokens in tuple(self._seconds) if second > now - self.window_s)
        return counted / max(min(self.window_s, now - self._start), 1e-9)


class Counters:
    """What the engine counts itself."""

    def __init__(self) -> None:
        self.finished = self.aborted = self.failed = 0
        self.prompt_tokens = self.generated_tokens = 0
        self.out_of_memory = 0
        self.rate = TokenRate()

    def token(self, seq: Sequence) -> None:
        """A request got its newest token."""
        self.generated_tokens += 1
        self.rate.add(1)
        if seq.num_output_tokens == 1:
            self.prompt_tokens += seq.num_prompt_tokens


def snapshot(scheduler: Scheduler, counters: Counters, encoder: EncoderCache | None) -> EngineStatistics:
    pool = scheduler.pool
    return EngineStatistics(
        running=len(scheduler.running),
        waiting=len(scheduler.waiting),
        kv_blocks=pool.num_blocks,
        kv_blocks_used=pool.num_blocks - pool.num_free,
        kv_blocks_cached=pool.num_cached,
        prefix_queries=scheduler.prefix_queries,
        prefix_hits=scheduler.prefix_hits,
        prefix_evictions=pool.num_evictions,
        encoder_queries=encoder.queries if encoder is not None else 0,
        encoder_hits=encoder.hits if encoder is not None else 0,
        encoder_evictions=encoder.evictions if encoder is not None else 0,
        encoder_cache_bytes=encoder.num_bytes if encoder is not None else 0,
        preemptions=scheduler.num_preemptions,
        out_of_memory=counters.out_of_memory,
        finished=counters.finished,
        aborted=counters.aborted,
        failed=counters.failed,
        prompt_tokens=counters.prompt_tokens,
        generated_tokens=counters.generated_tokens,
        tokens_per_s=counters.rate.read(),
    )
