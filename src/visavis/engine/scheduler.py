"""Which requests compute how many tokens in the next step: continuous batching with chunked prefill."""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass, field

from visavis.engine.block_hash import BlockHasher
from visavis.engine.block_pool import BlockPool
from visavis.engine.sequence import Sequence, SequenceStatus

__all__ = ["ScheduledStep", "Scheduler"]


@dataclass(slots=True)
class ScheduledStep:
    """`decodes` compute one token each, `prefills` a chunk of the given length from `num_computed_tokens` on."""

    decodes: list[Sequence] = field(default_factory=list)
    prefills: list[tuple[Sequence, int]] = field(default_factory=list)
    preempted: list[Sequence] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        return not self.decodes and not self.prefills


PRIORITY_STEP_S = 10.0
"""One step of priority outweighs this many seconds of waiting."""
MIN_PROMPT_TOKENS = 16
"""What a step that ran out of memory is never cut below."""
CALM_STEPS = 100
"""After so many steps in a row that found memory, a batch that was made smaller may be twice as large again."""


class Scheduler:
    """Requests have turns: by arrival, and one step of priority counts like `PRIORITY_STEP_S` of arriving earlier or
    later, so that a request of any priority is overtaken for a limited time only.

    Every step first gives each decoding request its token, then spends what is left of `max_num_batched_tokens` on
    prompts, in order of turns. A request is admitted when its whole prompt fits into free blocks, those it shares with
    the prefix cache aside; nobody overtakes one that does not fit yet. When a decode finds no block, the running
    request whose turn is last is preempted, and recomputed later from what the prefix cache still has of it.
    """

    def __init__(self, pool: BlockPool, max_num_seqs: int, max_num_batched_tokens: int) -> None:
        self.pool = pool
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.waiting: list[Sequence] = []  # both in order of turns
        self.running: list[Sequence] = []
        self.num_preemptions = 0
        # Prompt tokens a step, and requests at once: lower for a while after a step ran out of memory.
        self.prompt_limit = max_num_batched_tokens
        self.seat_limit = max_num_seqs
        self._calm_steps = 0
        self._preempted: list[Sequence] = []  # since the last step was scheduled
        self.prefix_queries = 0  # tokens of requests at their first admission …
        self.prefix_hits = 0  # … and how many of them were in the prefix cache
        self._hasher = BlockHasher(pool.block_size) if pool.enable_prefix_caching else None

    @property
    def has_work(self) -> bool:
        return bool(self.waiting or self.running)

    def name_blocks(self, seq: Sequence) -> None:
        """Works out the names of a prompt's blocks before its turn. Any thread may call this."""
        if self._hasher is not None:
            self._hasher.extend(seq, seq.num_prompt_tokens)

    def add(self, seq: Sequence) -> None:
        self.name_blocks(seq)
        insort(self.waiting, seq, key=_turn)

    def finish(self, seq: Sequence, *, forget: bool = False) -> None:
        """Takes a request out, wherever it is, and its blocks back. `forget`: what they hold is not to be trusted."""
        if seq.status is SequenceStatus.RUNNING:
            self.running.remove(seq)
        elif seq.status is SequenceStatus.WAITING:
            self.waiting.remove(seq)
        self.pool.release(seq.block_table, forget=forget)
        seq.status = SequenceStatus.FINISHED

    def distrust(self, seq: Sequence) -> bool:
        """Of a running request whose logits are not finite: if it found a part of its beginning in the cache, that part
        is forgotten, and it waits to be computed anew without the cache. False: the fault is its own. (A chunk with
        numbers that are not finite may spoil the tokens before them, which are named before its request fails.)"""
        if not seq.has_shared:
            return False
        seq.trusts_cache = False
        seq.num_cached_tokens = 0
        self._preempt(seq, forget=True)
        return True

    def advance(self, step: ScheduledStep) -> None:
        """After a step was computed: moves its requests on, and names the blocks that became full."""
        for seq in step.decodes:
            self._computed(seq, 1)
        for seq, length in step.prefills:
            self._computed(seq, length)
        self._calm_steps += 1
        if self._calm_steps % CALM_STEPS == 0:
            self.prompt_limit = min(2 * self.prompt_limit, self.max_num_batched_tokens)
            self.seat_limit = min(2 * self.seat_limit, self.max_num_seqs)

    def back_off(self, step: ScheduledStep) -> Sequence | None:
        """Instead of `advance`, for a step that ran out of memory: the next ones take half its prompt tokens, or, when
        these are few, go without the request whose turn is last. Returns a request that is too large by itself."""
        self._calm_steps = 0
        tokens = sum(length for _, length in step.prefills)
        if tokens > MIN_PROMPT_TOKENS:
            self.prompt_limit = max(tokens // 2, MIN_PROMPT_TOKENS)
        elif len(self.running) > 1:
            self.seat_limit = len(self.running) - 1
            self._preempt(self.running[-1])
        else:
            return self.running[0]
        return None

    def _computed(self, seq: Sequence, length: int) -> None:
        first = seq.num_computed_tokens // self.pool.block_size
        seq.num_computed_tokens += length
        full = seq.num_computed_tokens // self.pool.block_size
        if self._hasher is None or full == first:
            return
        self._hasher.extend(seq, seq.num_computed_tokens)
        for index in range(first, min(full, len(seq.block_hashes))):
            self.pool.name(seq.block_table[index], seq.block_hashes[index])

    def schedule(self) -> ScheduledStep:
        step = ScheduledStep()
        budget = min(self.max_num_batched_tokens - self._schedule_decodes(step), self.prompt_limit)
        for seq in self.running:
            if budget > 0 and not seq.is_decoding:
                budget -= self._schedule_chunk(step, seq, budget)
        while budget > 0 and self.waiting and len(self.running) < self.seat_limit:
            seq = self.waiting[0]
            if not self._admit(seq):
                break
            budget -= self._schedule_chunk(step, seq, budget)
        step.preempted, self._preempted = self._preempted, []
        return step

    def _schedule_decodes(self, step: ScheduledStep) -> int:
        for seq in [s for s in self.running if s.is_decoding]:
            while seq.status is SequenceStatus.RUNNING and not self.pool.grow(seq.block_table, seq.num_tokens):
                self._preempt(self.running[-1])
            if seq.status is SequenceStatus.RUNNING:
                step.decodes.append(seq)
        return len(step.decodes)

    @staticmethod
    def _schedule_chunk(step: ScheduledStep, seq: Sequence, budget: int) -> int:
        length = min(seq.num_uncomputed_tokens, budget)
        step.prefills.append((seq, length))
        return length

    def _admit(self, seq: Sequence) -> bool:
        found = self._cached_blocks(seq)
        # A block of headroom for each running request, so that its next tokens do not evict the newcomer at once.
        if self.pool.num_free_after(found, seq.num_tokens) < len(self.running):
            return False
        seq.has_shared = bool(found)
        self.pool.share(seq.block_table, found)
        self.pool.grow(seq.block_table, seq.num_tokens)
        seq.num_computed_tokens = len(found) * self.pool.block_size
        if seq.num_cached_tokens is None:
            seq.num_cached_tokens = seq.num_computed_tokens
            self.prefix_queries += seq.num_tokens
            self.prefix_hits += seq.num_computed_tokens
        self.waiting.remove(seq)
        seq.status = SequenceStatus.RUNNING
        insort(self.running, seq, key=_turn)
        return True

    def _cached_blocks(self, seq: Sequence) -> list[int]:
        """The blocks of its beginning that are there already, short of its last token, whose logits are wanted."""
        # Log-probabilities of the prompt need every token computed.
        if self._hasher is None or not seq.trusts_cache or seq.sampling.prompt_logprobs is not None:
            return []
        return self.pool.find(seq.block_hashes[: (seq.num_tokens - 1) // self.pool.block_size])

    def _preempt(self, seq: Sequence, *, forget: bool = False) -> None:
        self.running.remove(seq)
        self.pool.release(seq.block_table, forget=forget)
        seq.num_computed_tokens = 0
        seq.status = SequenceStatus.WAITING
        insort(self.waiting, seq, key=_turn)
        self._preempted.append(seq)
        self.num_preemptions += 1


def _turn(seq: Sequence) -> tuple[float, int]:
    return seq.arrival_time + seq.priority * PRIORITY_STEP_S, seq.uid
