"""Log-probabilities of tokens, of the raw distribution: before biases, penalties, temperature and filters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from visavis.completion import TokenLogprobs

__all__ = ["RankedLogprobs", "rank", "unpack"]


@dataclass(frozen=True, slots=True)
class RankedLogprobs:
    """On the device: of each row's token (n,), and of the `most` likely tokens (n, most), the best first."""

    token: torch.Tensor
    top: torch.Tensor
    top_ids: torch.Tensor

    def packed(self) -> torch.Tensor:
        """(n, 1 + 2 · most) float64, which holds ids and float32 exactly: one transfer to the host."""
        return torch.cat([self.token.double()[:, None], self.top.double(), self.top_ids.double()], 1)


def rank(logprobs: torch.Tensor, token_ids: torch.Tensor, most: int) -> RankedLogprobs:
    """logprobs (n, vocab) and token_ids (n,) → of these tokens, and of the `most` likely ones."""
    best = logprobs.topk(min(most, logprobs.shape[1]), dim=-1)
    return RankedLogprobs(logprobs.gather(-1, token_ids[:, None]).squeeze(-1), best.values, best.indices)


def unpack(rows: Sequence[Sequence[float]], token_ids: Sequence[int], counts: Sequence[int]) -> list[TokenLogprobs]:
    """What `RankedLogprobs.packed` holds, on the host; counts: how many of the most likely each row asked for."""
    found = []
    for row, token_id, count in zip(rows, token_ids, counts, strict=True):
        most = (len(row) - 1) // 2
        count = min(count, most)
        ids = map(int, row[1 + most : 1 + most + count])
        found.append(TokenLogprobs(token_id, row[0], tuple(zip(ids, row[1 : 1 + count], strict=True))))
    return found
