"""The paged KV cache: its memory (`KVCache`) and who owns which block (`BlockPool`)."""

from __future__ import annotations

import torch

__all__ = ["BlockPool", "KVCache"]


class BlockPool:
    """Hands out KV blocks. A stack: blocks given back together come out together and in ascending order, so that a
    lone sequence usually owns one contiguous run, which the CPU attention reads without gathering."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._free = list(range(num_blocks - 1, -1, -1))

    @property
    def num_free(self) -> int:
        return len(self._free)

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def grow(self, block_table: list[int], num_tokens: int) -> bool:
        """Extends `block_table` until it holds `num_tokens`; False, changing nothing, when too few blocks are free."""
        missing = self.blocks_for(num_tokens) - len(block_table)
        if missing > len(self._free):
            return False
        for _ in range(missing):
            block_table.append(self._free.pop())
        return True

    def release(self, block_table: list[int]) -> None:
        """Takes all blocks back and empties the table."""
        self._free.extend(reversed(block_table))
        block_table.clear()


class KVCache:
    """Keys and values of all layers: (layers, slots, 2 · kv_heads, head_dim), slot = block · block_size + offset.

    A token's keys and values lie side by side, keys first, so that one write stores both.
    """

    def __init__(
        self,
        num_layers: int,
        num_blocks: int,
        block_size: int,
        num_kv_heads: int,
        head_dim: int,
        *,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self.block_size = block_size
        self.num_kv_heads = num_kv_heads
        # empty, not zeros: on a CPU pages are only committed once a slot is used, and no slot is read before.
        self.data = torch.empty(
            (num_layers, num_blocks * block_size, 2 * num_kv_heads, head_dim), device=device, dtype=dtype
        )

    def locate(self, block_table: list[int], num_tokens: int) -> slice | torch.Tensor:
        """Where the first `num_tokens` of a request lie along the slots: a slice when its blocks are one run."""
        size = self.block_size
        table = block_table[: -(-num_tokens // size)]
        first = table[0]
        if table == list(range(first, first + len(table))):
            return slice(first * size, first * size + num_tokens)
        blocks = torch.tensor(table, device=self.data.device)
        return (blocks[:, None] * size + torch.arange(size, device=self.data.device)).view(-1)[:num_tokens]
