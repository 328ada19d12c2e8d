"""`AheadDecoder`: decode steps launched one ahead of the tokens read, so that the device never waits for the host.

A step's tokens stay on the device and are the next step's input; the host reads them while that step runs. What a step
needs to know of lengths is known beforehand. A request that a stop token ended takes part in one more step, whose token
is dropped: it wrote one key and value beyond its end, into a block that nobody reads before another request fills it.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np
import torch

from visavis.engine.kernels.cuda.graphs import DecodeGraphs
from visavis.engine.kernels.cuda.sampling import Mode, mode_of, samples_here
from visavis.engine.kernels.cuda.step import COLUMNS, DecodeStep
from visavis.engine.out_of_memory import first_line, is_out_of_memory
from visavis.engine.scheduler import ScheduledStep, Scheduler
from visavis.engine.sequence import Sequence, SequenceStatus

__all__ = ["AheadDecoder"]

BUFFERS = 4
"""Of staging memory: more than the steps in flight, so that none is written while a copy from it is pending."""


@dataclass(slots=True)
class Flight:
    """A launched step whose tokens were not read yet."""

    seqs: list[Sequence]
    tokens: torch.Tensor  # (rows,) int32, host memory that the device is writing to
    done: torch.cuda.Event | None

    def wait(self) -> list[int]:
        if self.done is not None:
            self.done.synchronize()
        return self.tokens[: len(self.seqs)].tolist()


class AheadDecoder:
    def __init__(
        self, step: DecodeStep, max_model_len: int, *, graphs: bool = True, ready: Callable[[], None] = lambda: None
    ) -> None:
        """`ready` returns when nobody else uses the step any more; called before its first use, and by `close`."""
        self.step = step
        self.lacks: Callable[[int, str], None] = lambda requests, reason: None  # told that memory ran out
        self._too_many: int | None = None  # the fewest requests whose step found too little memory
        self.ready = ready
        self.graphs = DecodeGraphs(step, capture=graphs)
        self.max_model_len = max_model_len
        self.flight: Flight | None = None
        self._seats: dict[int, int] = {}  # uid → row of the tables on the device
        gpu = step.launcher.gpu
        shape = (BUFFERS, len(COLUMNS) * step.seats)
        self._inputs = torch.zeros(shape, dtype=torch.int32, pin_memory=gpu)
        self._outputs = torch.zeros((BUFFERS, step.seats), dtype=torch.int32, pin_memory=gpu)
        self._turn = 0

    def takes(self, scheduled: ScheduledStep) -> bool:
        """Whether the device can do this step, sampling and all, by itself."""
        return (
            not scheduled.prefills
            and not scheduled.preempted
            and len(scheduled.decodes) <= self.step.seats
            and (self._too_many is None or len(scheduled.decodes) < self._too_many)
            # Positions run ahead of the tokens in some videos; the rotation table is as long as the context.
            and all(samples_here(seq) and seq.prompt.rope_delta <= 0 for seq in scheduled.decodes)
        )

    def begin(self, seqs: list[Sequence]) -> bool:
        """Launches a step of requests whose newest tokens the host knows. False: there was too little memory for it;
        nothing was computed then, and `takes` refuses as many from now on."""
        self.ready()
        self._seats = {seq.uid: seat for seat, seq in enumerate(seqs)}
        tables = [seq.block_table for seq in seqs]
        widest = max(map(len, tables))
        packed = torch.tensor([table + [0] * (widest - len(table)) for table in tables], dtype=torch.int32)
        self.enter(packed)
        self.step.sampling.enter(list(range(len(seqs))), seqs)
        self.flight = self._try_to_launch(seqs, None, {})
        return self.flight is not None

    def advance(self, scheduler: Scheduler) -> list[tuple[Sequence, int]]:
        """Launches the step after the one in flight, if that may be, then waits for the tokens of the one in flight.

        Returns them for the requests that still run; a token below 0 stands for logits that were not finite.
        """
        flight = self.flight
        assert flight is not None
        self.flight = self._launch_next(flight, scheduler)
        tokens = flight.wait()
        alive = [(s, t) for s, t in zip(flight.seqs, tokens, strict=True) if s.status is SequenceStatus.RUNNING]
        scheduler.advance(ScheduledStep(decodes=[seq for seq, _ in alive]))
        return alive

    def _launch_next(self, flight: Flight, scheduler: Scheduler) -> Flight | None:
        alive = [seq for seq in flight.seqs if seq.status is SequenceStatus.RUNNING]
        if len(alive) != len(scheduler.running):
            return None  # somebody is computing a prompt: the next step is a mixed one
        if scheduler.waiting and len(scheduler.running) < scheduler.seat_limit:
            return None  # somebody may come in
        seqs = [seq for seq in alive if not self._ends(seq)]
        if not seqs:
            return None
        new_blocks: dict[int, tuple[int, int]] = {}
        for seq in seqs:
            had = len(seq.block_table)
            if not scheduler.pool.grow(seq.block_table, seq.num_tokens + 1):
                return None  # somebody must be preempted, which the scheduler does between steps
            if len(seq.block_table) > had:
                new_blocks[seq.uid] = (had, seq.block_table[had])
        return self._try_to_launch(seqs, flight, new_blocks)

    def _ends(self, seq: Sequence) -> bool:
        """Whether the token in flight is this request's last for its length."""
        return seq.num_output_tokens + 1 >= seq.sampling.max_tokens or seq.num_tokens + 1 >= self.max_model_len

    def _try_to_launch(
        self, seqs: list[Sequence], after: Flight | None, new_blocks: dict[int, tuple[int, int]]
    ) -> Flight | None:
        try:
            return self._launch(seqs, after, new_blocks)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            reason = first_line(error)
        # Only here has the exception let go of the step's tensors. The batch and its way of sampling decide what a
        # step takes, so one of fewer requests may still fit.
        self._too_many = len(seqs)
        self.lacks(len(seqs), reason)
        return None

    def _launch(self, seqs: list[Sequence], after: Flight | None, new_blocks: dict[int, tuple[int, int]]) -> Flight:
        size = self.graphs.size_for(len(seqs))
        mode = mode_of([seq.sampling for seq in seqs])
        columns = self.next_columns(size)
        self._fill(columns.view(len(COLUMNS), size).numpy(), seqs, after, new_blocks)
        self.start(size, mode, columns)
        tokens = self._outputs[self._turn]
        tokens[:size].copy_(self.step.sampled[:size], non_blocking=True)
        done = None
        if self.step.launcher.gpu:
            done = torch.cuda.Event()
            done.record()
        return Flight(seqs, tokens, done)

    # ---- what a rank that follows does too -----------------------------------------------------------------------

    def enter(self, tables: torch.Tensor) -> None:
        """Block tables (requests, blocks) int32 of a batch that begins."""
        self.step.tables[: tables.shape[0], : tables.shape[1]].copy_(tables)

    def next_columns(self, size: int) -> torch.Tensor:
        """Host memory for the columns of the next step, flat."""
        self._turn = (self._turn + 1) % BUFFERS
        return self._inputs[self._turn, : len(COLUMNS) * size]

    def start(self, size: int, mode: Mode, columns: torch.Tensor) -> None:
        """Launches the step that `columns`, of `next_columns`, tell of."""
        self.graphs.prepare(size, mode)
        self.step.packed[: len(columns)].copy_(columns, non_blocking=True)
        self.graphs.run(size, mode)

    def _fill(
        self,
        columns: np.ndarray[tuple[int, ...], np.dtype[np.int32]],
        seqs: Seq[Sequence],
        after: Flight | None,
        new_blocks: dict[int, tuple[int, int]],
    ) -> None:
        """The columns of `COLUMNS`, holes behind the requests."""
        count = len(seqs)
        unread = 0 if after is None else 1
        rows = {} if after is None else {seq.uid: row for row, seq in enumerate(after.seqs)}
        columns[:] = self.step.hole[:, None]
        places = [new_blocks.get(seq.uid, (-1, 0)) for seq in seqs]
        columns[:, :count] = (
            [rows.get(seq.uid, -1) for seq in seqs],
            [seq.token_ids[-1] for seq in seqs],
            [self._seats[seq.uid] for seq in seqs],
            [seq.num_computed_tokens + unread for seq in seqs],
            [seq.next_position + unread for seq in seqs],
            [seq.num_output_tokens + unread for seq in seqs],
            [place for place, _ in places],
            [block for _, block in places],
        )
