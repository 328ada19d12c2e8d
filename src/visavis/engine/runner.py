"""One step on the device: a scheduled step becomes tensors, passes through the model, and comes back as logits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from visavis.engine.encoder import Chunk, VisionEncoder
from visavis.engine.kernels.base import AttentionRow, Kernels, Rotation, StepLayout
from visavis.engine.kv_cache import KVCache
from visavis.engine.models.decoder import Decoder
from visavis.engine.models.rope import RotaryEmbedding
from visavis.engine.prompt_logprobs import collect_prompt_logprobs
from visavis.engine.scheduler import ScheduledStep
from visavis.engine.sequence import Sequence
from visavis.engine.transfer import send

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
        model: Decoder,
        encoder: VisionEncoder | None,
        rope: RotaryEmbedding,
        kernels: Kernels,
        cache: KVCache,
        max_num_seqs: int,
    ) -> None:
        self.model = model
        self.encoder = encoder
        self.rope = rope
        self.kernels = kernels
        self.block_size = cache.block_size
        self.device = kernels.device
        self._decode_rows: list[int] = []  # uid per row of the last decode batch
        kernels.bind_cache(cache)
        self.whole_step = kernels.whole_step(model, rope, cache, max_num_seqs)

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
        token_ids, positions, slots, rows = self._decode_inputs(seqs)
        if self.whole_step is not None and len(rows) <= self.whole_step.max_batch:
            return StepLogits(seqs, self.whole_step(token_ids, positions, rows))
        packed = send(torch.tensor([token_ids, positions, slots]), self.device)  # one transfer instead of three
        rotation = self.rope.rows(packed[1], max(positions))
        plan = self.kernels.plan(StepLayout(packed[2], decodes=rows))
        hidden = self.model(self.model.embed(packed[0]), rotation, plan)
        return StepLogits(seqs, self.model.logits(hidden))

    def _decode_inputs(self, seqs: list[Sequence]) -> tuple[list[int], list[int], list[int], list[AttentionRow]]:
        size = self.block_size
        token_ids, positions, slots, rows = [], [], [], []
        for seq in seqs:
            context = seq.num_computed_tokens
            token_ids.append(seq.token_ids[-1])
            positions.append(seq.next_position)
            slots.append(seq.block_table[context // size] * size + context % size)
            rows.append(AttentionRow(seq.uid, context, 1, seq.block_table))
        return token_ids, positions, slots, rows

    def _run_mixed(self, decodes: list[Sequence], prefills: list[tuple[Sequence, int]]) -> StepLogits:
        token_ids, decode_positions, slots, decode_rows = self._decode_inputs(decodes)
        axes = prefills[0][0].prompt.position_ids.shape[0]
        positions = [np.broadcast_to(np.array(decode_positions, dtype=np.int64), (axes, len(decodes)))]
        prefill_rows: list[AttentionRow] = []
        chunks: list[Chunk] = []
        sampled: list[Sequence] = list(decodes)
        sampled_rows = list(range(len(decodes)))
        for seq, length in prefills:
            start, stop = seq.num_computed_tokens, seq.num_computed_tokens + length
            chunks.append(Chunk(seq, start, stop, row=len(token_ids)))
            token_ids += seq.token_ids[start:stop]
            positions.append(seq.positions(start, stop))
            slots += self._slots(seq, start, stop)
            prefill_rows.append(AttentionRow(seq.uid, start, length, seq.block_table))
            if stop == seq.num_tokens:
                sampled.append(seq)
                sampled_rows.append(len(token_ids) - 1)
        packed = send(torch.tensor([token_ids, slots]), self.device)
        rotation = self._rotation(np.concatenate(positions, axis=1))
        plan = self.kernels.plan(StepLayout(packed[1], decode_rows, prefill_rows))
        embedded = self.model.embed(packed[0])
        deepstack = None
        if self.encoder is not None and (visual := self.encoder(chunks)) is not None:
            embedded.index_copy_(0, visual.rows, visual.embeddings)
            if visual.deepstack is not None:
                deepstack = (visual.rows, visual.deepstack)
        hidden = self.model(embedded, rotation, plan, deepstack)
        for seq, start, stop, row in chunks:
            if seq.needs_prompt_logits:
                rows = hidden[row : row + stop - start]
                collect_prompt_logprobs(seq, rows, start, self.model.logits, self.model.config.vocab_size)
        if not sampled:
            return StepLogits([], None)
        return StepLogits(sampled, self.model.logits(hidden[send(torch.tensor(sampled_rows), self.device)]))

    def _slots(self, seq: Sequence, start: int, stop: int) -> list[int]:
        size = self.block_size
        table = seq.block_table
        return [table[i // size] * size + i % size for i in range(start, stop)]

    def _rotation(self, positions: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> Rotation:
        return self.rope(send(torch.from_numpy(np.ascontiguousarray(positions)), self.device))
