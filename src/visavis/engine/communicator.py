"""`Communicator`: what the processes that share one model say to each other; alone, nothing."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from visavis.engine.parallel.collectives import Collectives
    from visavis.engine.share import ModelShare

__all__ = ["ALONE", "Communicator", "columns_of"]


def columns_of(rank: int, size: int, columns: int) -> tuple[int, int]:
    """(first, count) of the columns of logits that a rank computes. All compute equally many: where they do not divide,
    the last ones overlap."""
    count = -(-columns // size)
    return min(rank * count, columns - count), count


class Communicator:
    """One process: every sum is whole, every message is for nobody. `parallel.collectives` has the other kind.

    Rank 0 leads: it schedules, samples, and tells the others what to compute; they tell nothing of their own accord.
    """

    rank = 0
    size = 1
    collectives: Collectives | None = None

    # ---- from start to end, on rank 0 ----------------------------------------------------------------------------

    def join(self) -> None:
        """Waits until every rank has loaded its share, and connects them."""

    def smallest(self, num_blocks: int) -> int:
        """Of the KV blocks that each rank has room for; rank 0's are given."""
        return num_blocks

    def make_caches(self, num_blocks: int, max_model_len: int) -> None:
        """On the other ranks, which then follow."""

    def led(self, share: ModelShare) -> ModelShare:
        """`share` with a step and a tower that take the other ranks along."""
        return share

    def close(self) -> None:
        """Ends the other ranks."""

    # ---- steps, on rank 0 ----------------------------------------------------------------------------------------

    def tell(self, message: Any) -> None:
        """What the other ranks do next, together with this one. Raises BackendError when one of them is gone."""

    def agree(self, message: Any, num_bytes: int) -> None:
        """As `tell`, for work that takes about `num_bytes`: begun only where every rank has them. Raises MemoryError
        where one has not; nobody has done anything then."""

    def guard(self) -> AbstractContextManager[None]:
        """Around a step: whatever waits in it for the others ends when one of them is gone, as a BackendError."""
        return nullcontext()

    # ---- on every rank, in the same order; until `join` as if alone ----------------------------------------------

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """The sum over all ranks, in the memory of `x`."""
        return x if self.collectives is None else self.collectives.all_reduce(x)

    def broadcast(self, x: torch.Tensor) -> torch.Tensor:
        """Rank 0's values, in the memory of `x`."""
        return x if self.collectives is None else self.collectives.broadcast(x)

    def join_columns(self, part: torch.Tensor, columns: int) -> torch.Tensor:
        """part (rows, `columns_of` a rank) → (rows, columns) on rank 0; what others get means nothing."""
        return part if self.collectives is None else self.collectives.join_columns(part, columns)


ALONE = Communicator()
