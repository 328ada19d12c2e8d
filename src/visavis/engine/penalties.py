"""Repetition, presence and frequency penalties.

Only the logits of tokens a request has seen change, so only those are read and written: a few hundred numbers instead
of a vocabulary. They are listed as *cells*, (request, token); a cell may be listed twice, as it is computed from the
raw logit and the token's count alone, and so comes out the same both times.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

import numpy as np
import numpy.typing as npt
import torch

from visavis.engine.sequence import Sequence
from visavis.sampling import ResolvedSampling

__all__ = ["PenaltyBatch", "PenaltyState", "is_penalised"]

ROOM = 64  # cells kept free for each request when a batch is made


class PenaltyBatch:
    """The penalised requests of one batch, on the device.

    `where` and `rows` (n,): their rows of the logits, and of the state's counts; `places` and `tokens`: the cells, of
    which `used` are filled.
    """

    def __init__(
        self,
        where: Seq[int],
        rows: Seq[int],
        seqs: Seq[Sequence],
        seen: Seq[npt.NDArray[np.int64]],
        device: torch.device,
    ) -> None:
        params = [seq.sampling for seq in seqs]
        self.where = torch.tensor(where, device=device)
        self.rows = torch.tensor(rows, device=device)
        self.repetition = torch.tensor([p.repetition_penalty for p in params], device=device)
        self.presence = torch.tensor([p.presence_penalty for p in params], device=device)
        self.frequency = torch.tensor([p.frequency_penalty for p in params], device=device)
        self.used = sum(map(len, seen))
        room = self.used + ROOM * len(where)
        cells = np.zeros((2, room), np.int64)
        cells[0, : self.used] = np.repeat(np.arange(len(where)), [len(tokens) for tokens in seen])
        cells[1, : self.used] = np.concatenate(seen)
        self.places, self.tokens = torch.from_numpy(cells).to(device)
        self._each = torch.arange(len(where), device=device)

    def add(self, token_ids: torch.Tensor) -> None:
        """One more cell for each request; token_ids (n,)."""
        end = self.used + len(token_ids)
        if end > len(self.tokens):
            self.places = torch.cat([self.places, torch.zeros_like(self.places)])
            self.tokens = torch.cat([self.tokens, torch.zeros_like(self.tokens)])
        self.places[self.used : end] = self._each
        self.tokens[self.used : end] = token_ids
        self.used = end


class PenaltyState:
    """`counts` (requests, vocab) float32: how often each token occurs in the request's answer.

    `prepare` makes rows and brings them up to date from the requests' tokens; while the batch stays the same, `count`
    adds one token to each, on the device. `_counted` is behind by the tokens counted since the last `prepare`.
    """

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self.vocab_size = vocab_size
        self.device = device
        self._rows: dict[int, int] = {}  # uid → row
        self._seen: dict[int, npt.NDArray[np.int64]] = {}  # uid → its cells: prompt tokens once, then the answer
        self._prompt_cells: dict[int, int] = {}  # uid → how many of them are the prompt's
        self._counted: dict[int, int] = {}  # uid → answer tokens in `counts` at the last `prepare`
        self._active: list[int] = []  # uids of the last `prepare`
        self._since = 0  # tokens counted since, of each of them
        self._free: list[int] = []
        self.counts = torch.zeros((0, vocab_size), device=device)

    def release(self, uid: int) -> None:
        row = self._rows.pop(uid, None)
        if row is not None:
            self._free.append(row)
            del self._counted[uid], self._seen[uid], self._prompt_cells[uid]

    def prepare(self, seqs: Seq[Sequence]) -> PenaltyBatch | None:
        """What `apply` needs for a batch; None when no request of it is penalised."""
        for uid in self._active:
            if uid in self._counted:
                self._counted[uid] += self._since
        self._active, self._since = [], 0
        wanted = [(i, seq) for i, seq in enumerate(seqs) if is_penalised(seq.sampling)]
        if not wanted:
            return None
        where, penalised = zip(*wanted, strict=True)
        self._catch_up(penalised)
        self._active = [seq.uid for seq in penalised]
        rows = [self._rows[uid] for uid in self._active]
        return PenaltyBatch(where, rows, penalised, [self._seen[uid] for uid in self._active], self.device)

    def count(self, batch: PenaltyBatch, token_ids: torch.Tensor) -> None:
        """Takes the token each request of the batch got; token_ids (batch,) on the device."""
        mine = token_ids.index_select(0, batch.where)
        self.counts.index_put_((batch.rows, mine), torch.ones((), device=self.device), accumulate=True)
        batch.add(mine)
        self._since += 1

    def apply(self, logits: torch.Tensor, batch: PenaltyBatch) -> None:
        """Penalises, in place; logits (rows, vocab) float32."""
        places, tokens = batch.places[: batch.used], batch.tokens[: batch.used]
        cells = (batch.where[places], tokens)
        raw = logits[cells]
        repetition = batch.repetition[places]
        counts = self.counts[batch.rows[places], tokens]
        penalised = torch.where(raw > 0, raw / repetition, raw * repetition)
        penalised -= batch.presence[places] * (counts > 0) + batch.frequency[places] * counts
        logits.index_put_(cells, penalised)

    def _catch_up(self, seqs: Seq[Sequence]) -> None:
        rows: list[int] = []
        tokens: list[int] = []
        for seq in seqs:
            if seq.uid not in self._rows:
                self._add(seq)
            row, seen, begun = self._rows[seq.uid], self._seen[seq.uid], seq.num_prompt_tokens
            new = seq.token_ids[begun + self._counted[seq.uid] :]
            rows += [row] * len(new)
            tokens += new
            self._counted[seq.uid] += len(new)
            listed = len(seen) - self._prompt_cells[seq.uid]  # fewer than are counted: the device counts without us
            unlisted = np.array(seq.token_ids[begun + listed :], np.int64)
            self._seen[seq.uid] = np.concatenate([seen, unlisted])
        if rows:
            index = (torch.tensor(rows, device=self.device), torch.tensor(tokens, device=self.device))
            self.counts.index_put_(index, torch.ones((), device=self.device), accumulate=True)

    def _add(self, seq: Sequence) -> None:
        if not self._free:
            have = len(self.counts)
            extra = max(4, have)
            self.counts = torch.cat([self.counts, self.counts.new_zeros((extra, self.vocab_size))])
            self._free.extend(range(have, have + extra))
        row = self._rows[seq.uid] = self._free.pop()
        self.counts[row] = 0
        self._counted[seq.uid] = 0
        # Only the repetition penalty is about the prompt.
        prompt = seq.token_ids[: seq.num_prompt_tokens] if seq.sampling.repetition_penalty != 1.0 else []
        self._seen[seq.uid] = np.unique(np.array(prompt, np.int64))
        self._prompt_cells[seq.uid] = len(self._seen[seq.uid])


def is_penalised(params: ResolvedSampling) -> bool:
    return params.repetition_penalty != 1.0 or params.presence_penalty != 0.0 or params.frequency_penalty != 0.0
