"""Repetition, presence and frequency penalties: which tokens each request has seen, kept on the device."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import torch

from visavis.engine.sequence import Sequence
from visavis.sampling import ResolvedSampling

__all__ = ["PenaltyState"]


class PenaltyState:
    """One row per request with a penalty: `in_prompt` (vocab,) marks its prompt's tokens, `counts` (vocab,) counts its
    answer's. Rows are made at a request's first sample and brought up to date from its tokens at each one."""

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self.vocab_size = vocab_size
        self.device = device
        self._rows: dict[int, int] = {}  # uid → row
        self._counted: dict[int, int] = {}  # uid → answer tokens already in `counts`
        self._free: list[int] = []
        self.in_prompt = torch.zeros((0, vocab_size), dtype=torch.bool, device=device)
        self.counts = torch.zeros((0, vocab_size), device=device)

    def release(self, uid: int) -> None:
        row = self._rows.pop(uid, None)
        if row is not None:
            self._free.append(row)
            del self._counted[uid]

    def apply(self, logits: torch.Tensor, seqs: Seq[Sequence]) -> torch.Tensor:
        """Penalises, in place, the rows whose request asks for it."""
        wanted = [(i, seq) for i, seq in enumerate(seqs) if _penalised(seq.sampling)]
        if not wanted:
            return logits
        self._update([seq for _, seq in wanted])
        device = self.device
        where = torch.tensor([i for i, _ in wanted], device=device)
        rows = torch.tensor([self._rows[seq.uid] for _, seq in wanted], device=device)
        chosen = logits.index_select(0, where)
        counts = self.counts.index_select(0, rows)
        answered = counts > 0
        params = [seq.sampling for _, seq in wanted]
        repetition = torch.tensor([p.repetition_penalty for p in params], device=device)[:, None]
        penalised = torch.where(chosen > 0, chosen / repetition, chosen * repetition)
        chosen = torch.where(answered | self.in_prompt.index_select(0, rows), penalised, chosen)
        presence = torch.tensor([p.presence_penalty for p in params], device=device)[:, None]
        frequency = torch.tensor([p.frequency_penalty for p in params], device=device)[:, None]
        chosen -= presence * answered + frequency * counts
        return logits.index_copy_(0, where, chosen)

    def _update(self, seqs: Seq[Sequence]) -> None:
        rows: list[int] = []
        tokens: list[int] = []
        for seq in seqs:
            if seq.uid not in self._rows:
                self._add(seq)
            row = self._rows[seq.uid]
            new = seq.token_ids[seq.num_prompt_tokens + self._counted[seq.uid] :]
            rows += [row] * len(new)
            tokens += new
            self._counted[seq.uid] += len(new)
        if rows:
            index = (torch.tensor(rows, device=self.device), torch.tensor(tokens, device=self.device))
            self.counts.index_put_(index, torch.ones((), device=self.device), accumulate=True)

    def _add(self, seq: Sequence) -> None:
        if not self._free:
            have = self.in_prompt.shape[0]
            extra = max(4, have)
            self.in_prompt = torch.cat([self.in_prompt, self.in_prompt.new_zeros((extra, self.vocab_size))])
            self.counts = torch.cat([self.counts, self.counts.new_zeros((extra, self.vocab_size))])
            self._free.extend(range(have, have + extra))
        row = self._free.pop()
        self.in_prompt[row] = False
        self.in_prompt[row, torch.tensor(seq.token_ids[: seq.num_prompt_tokens], device=self.device)] = True
        self.counts[row] = 0
        self._rows[seq.uid] = row
        self._counted[seq.uid] = 0


def _penalised(params: ResolvedSampling) -> bool:
    return params.repetition_penalty != 1.0 or params.presence_penalty != 0.0 or params.frequency_penalty != 0.0
