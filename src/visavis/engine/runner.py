"""One step: what is scheduled becomes numbers, passes through the model (`device_step`), and comes back as logits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from visavis.engine.device_step import Decodes, DeviceStep, Mixed
from visavis.engine.encoder import Chunk, VisionEncoder
from visavis.engine.kernels.base import AttentionRow, WholeStep
from visavis.engine.kv_cache import KVCache
from visavis.engine.prompt_logprobs import collect_prompt_logprobs, prompt_logit_ranges
from visavis.engine.scheduler import ScheduledStep
from visavis.engine.sequence import Sequence

__all__ = ["Runner", "StepLogits"]


@dataclass(slots=True)
class StepLogits:
    """(rows, vocab) float32 of the requests that get a token in this step, in the order of `seqs`."""

    seqs: list[Sequence]
    logits: torch.Tensor | None  # None when the step only computed parts of prompts


class Runner:
    """Keeps the decode batch stable: a request keeps its row while it runs, so what kernels hold per row stays."""

    def __init__(
        self,
        device_step: DeviceStep,
        encoder: VisionEncoder | None,
        cache: KVCache,
        vocab_size: int,
        whole_step: WholeStep | None,
    ) -> None:
        """`whole_step` takes the steps that only decode, where there is one."""
        self.device_step = device_step
        self.model = device_step.model
        self.kernels = device_step.kernels
        self.encoder = encoder
        self.block_size = cache.block_size
        self.vocab_size = vocab_size
        self.whole_step = whole_step
        self._decode_rows: list[int] = []  # uid per row of the last decode batch

    def run(self, step: ScheduledStep) -> StepLogits:
        """Computes the step. The caller then moves the requests' `num_computed_tokens` on."""
        for seq in step.preempted:
            self.forget(seq)
        decodes = self._in_stable_rows(step.decodes)
        if not step.prefills:
            return self._run_decodes(decodes)
        return self._run_mixed(decodes, step.prefills)

    def forget(self, seq: Sequence) -> None:
        """Drops what is kept of a request that ended or was preempted."""
        if self.encoder is not None:
            self.encoder.forget(seq)

    def release_consumed(self, seq: Sequence) -> None:
        """Drops the images of a request that its computed tokens have passed."""
        if self.encoder is not None:
            self.encoder.release(seq)

    def close(self) -> None:
        if self.whole_step is not None:
            self.whole_step.close()

    def _in_stable_rows(self, seqs: list[Sequence]) -> list[Sequence]:
        """The same requests, each in the row it had last time; the holes are filled by the newest and the last."""
        waiting = {seq.uid: seq for seq in seqs}
        rows: list[Sequence | None] = [waiting.pop(uid, None) for uid in self._decode_rows[: len(seqs)]]
        rows += [None] * (len(seqs) - len(rows))
        fill = iter(waiting.values())
        stable = [row if row is not None else next(fill) for row in rows]
        self._decode_rows = [seq.uid for seq in stable]
        return stable

    def _run_decodes(self, seqs: list[Sequence]) -> StepLogits:
        step = self._decode_inputs(seqs)
        if self.whole_step is not None and len(step.rows) <= self.whole_step.max_batch:
            return StepLogits(seqs, self.whole_step(step.token_ids, step.positions, step.rows))
        return StepLogits(seqs, self.device_step.decodes(step))

    def _decode_inputs(self, seqs: list[Sequence]) -> Decodes:
        size = self.block_size
        step = Decodes()
        for seq in seqs:
            context = seq.num_computed_tokens
            step.token_ids.append(seq.token_ids[-1])
            step.positions.append(seq.next_position)
            step.slots.append(seq.block_table[context // size] * size + context % size)
            step.rows.append(AttentionRow(seq.uid, context, 1, seq.block_table))
        return step

    def _run_mixed(self, decodes: list[Sequence], prefills: list[tuple[Sequence, int]]) -> StepLogits:
        first = self._decode_inputs(decodes)
        token_ids, slots = first.token_ids, first.slots
        axes = prefills[0][0].prompt.position_ids.shape[0]
        positions = [np.broadcast_to(np.array(first.positions, dtype=np.int64), (axes, len(decodes)))]
        prefill_rows: list[AttentionRow] = []
        chunks: list[Chunk] = []
        sampled: list[Sequence] = list(decodes)
        sampled_rows = list(range(len(decodes)))
        asked: list[tuple[Sequence, tuple[int, int]]] = []  # ranges of prompts whose log-probabilities are wanted …
        more_logits: list[tuple[int, int]] = []  # … and the same as rows of the step
        for seq, length in prefills:
            start, stop = seq.num_computed_tokens, seq.num_computed_tokens + length
            row = len(token_ids)
            chunks.append(Chunk(seq, start, stop, row=row))
            token_ids += seq.token_ids[start:stop]
            positions.append(seq.positions(start, stop))
            slots += self._slots(seq, start, stop)
            prefill_rows.append(AttentionRow(seq.uid, start, length, seq.block_table))
            for tokens in prompt_logit_ranges(seq, start, stop, self.vocab_size):
                asked.append((seq, tokens))
                more_logits.append((tokens[0] - start + row, tokens[1] - start + row))
            if stop == seq.num_tokens:
                sampled.append(seq)
                sampled_rows.append(len(token_ids) - 1)
        visual = self.encoder(chunks) if self.encoder is not None else None
        step = Mixed(
            token_ids, np.concatenate(positions, axis=1), slots, first.rows, prefill_rows, sampled_rows, more_logits
        )

        def take(number: int, logits: torch.Tensor) -> None:
            with self.kernels.torch_threads.all():
                collect_prompt_logprobs(*asked[number], logits)

        logits = self.device_step.mixed(step, visual, take)
        return StepLogits(sampled, logits)

    def _slots(self, seq: Sequence, start: int, stop: int) -> list[int]:
        size = self.block_size
        table = seq.block_table
        return [table[i // size] * size + i % size for i in range(start, stop)]
