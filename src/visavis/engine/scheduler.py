"""Which requests compute how many tokens in the next step: continuous batching with chunked prefill."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from visavis.engine.kv_cache import BlockPool
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


class Scheduler:
    """First come, first served. Every step first gives each decoding request its token, then spends what is left of
    `max_num_batched_tokens` on prompts in order of arrival. A request is admitted when its whole prompt fits into
    free blocks; when a decode finds none, the youngest running request is preempted and recomputed later."""

    def __init__(self, pool: BlockPool, max_num_seqs: int, max_num_batched_tokens: int) -> None:
        self.pool = pool
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.num_preemptions = 0

    @property
    def has_work(self) -> bool:
        return bool(self.waiting or self.running)

    def add(self, seq: Sequence) -> None:
        self.waiting.append(seq)

    def finish(self, seq: Sequence) -> None:
        """Takes a request out, wherever it is, and its blocks back."""
        if seq.status is SequenceStatus.RUNNING:
            self.running.remove(seq)
        elif seq.status is SequenceStatus.WAITING:
            self.waiting.remove(seq)
        self.pool.release(seq.block_table)
        seq.status = SequenceStatus.FINISHED

    def schedule(self) -> ScheduledStep:
        step = ScheduledStep()
        budget = self.max_num_batched_tokens
        budget -= self._schedule_decodes(step)
        for seq in self.running:
            if budget > 0 and not seq.is_decoding:
                budget -= self._schedule_chunk(step, seq, budget)
        while budget > 0 and self.waiting and len(self.running) < self.max_num_seqs:
            if not self._admit(self.waiting[0]):
                break  # first come, first served: nobody overtakes the one that does not fit yet
            budget -= self._schedule_chunk(step, self.running[-1], budget)
        return step

    def _schedule_decodes(self, step: ScheduledStep) -> int:
        for seq in [s for s in self.running if s.is_decoding]:
            while seq.status is SequenceStatus.RUNNING and not self.pool.grow(seq.block_table, seq.num_tokens):
                self._preempt(self.running[-1], step)
            if seq.status is SequenceStatus.RUNNING:
                step.decodes.append(seq)
        return len(step.decodes)

    @staticmethod
    def _schedule_chunk(step: ScheduledStep, seq: Sequence, budget: int) -> int:
        length = min(seq.num_uncomputed_tokens, budget)
        step.prefills.append((seq, length))
        return length

    def _admit(self, seq: Sequence) -> bool:
        # A block of headroom for each running request, so that its next tokens do not evict the newcomer at once.
        headroom = len(self.running)
        if self.running and self.pool.num_free - self.pool.blocks_for(seq.num_tokens) < headroom:
            return False
        if not self.pool.grow(seq.block_table, seq.num_tokens):
            return False
        self.waiting.popleft()
        seq.status = SequenceStatus.RUNNING
        self.running.append(seq)
        return True

    def _preempt(self, seq: Sequence, step: ScheduledStep) -> None:
        self.running.remove(seq)
        self.pool.release(seq.block_table)
        seq.num_computed_tokens = 0
        seq.status = SequenceStatus.WAITING
        self.waiting.appendleft(seq)
        step.preempted.append(seq)
        self.num_preemptions += 1
