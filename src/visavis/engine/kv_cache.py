"""The memory of the paged KV cache. `block_pool.py` says who owns which block."""

from __future__ import annotations

import torch

__all__ = ["KVCache"]


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
