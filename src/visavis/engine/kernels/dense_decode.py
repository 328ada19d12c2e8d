"""Decode attention of a whole batch in one call: the running requests' keys and values kept side by side.

Gathering every request's blocks in every layer of every step would cost more than the attention itself. So the
running batch keeps a second, dense copy of its cache, (layers, rows, length, 2, kv_heads, head_dim); a step appends
one token to each row, and a row is gathered anew only when another request takes it.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from visavis.engine.kernels.base import AttentionRow
from visavis.engine.kv_cache import KVCache

__all__ = ["DenseDecode"]

MAX_PADDING = 2.0
"""Rows are padded to the longest; above this ratio of padded to real tokens each request attends for itself."""
GROWTH = 256
"""Tokens by which the copy is lengthened, so that it is not made anew at every step."""


class DenseDecode:
    def bind(self, cache: KVCache) -> None:
        self.cache = cache
        layers, _, _, num_kv_heads, head_dim = cache.data.shape
        self.data = cache.data.new_zeros((layers, 0, 0, 2, num_kv_heads, head_dim))
        self.held: list[tuple[int, int]] = []  # per row: whose tokens it holds (uid) and how many

    def begin(self, rows: list[AttentionRow]) -> bool:
        """Readies the copy for a step of `rows`; False when they are too few or too uneven to run as one batch."""
        if len(rows) < 2:
            self.held = []
            return False
        lengths = [row.num_keys for row in rows]
        longest = max(lengths)
        if len(rows) * longest > MAX_PADDING * sum(lengths):
            self.held = []
            return False
        self._reserve(len(rows), longest)
        for index, row in enumerate(rows):
            if index >= len(self.held) or self.held[index] != (row.uid, row.num_context):
                self._gather(index, row)
        self.held = [(row.uid, row.num_keys) for row in rows]

        device = self.data.device
        capacity = self.data.shape[2]
        self.longest = longest
        self.new_slots = torch.tensor([i * capacity + n - 1 for i, n in enumerate(lengths)], device=device)
        self.mask: torch.Tensor | None = None
        if min(lengths) != longest:
            visible = torch.arange(longest, device=device) < torch.tensor(lengths, device=device)[:, None]
            self.mask = torch.zeros(visible.shape, dtype=self.data.dtype, device=device)
            self.mask = self.mask.masked_fill_(~visible, float("-inf"))[:, None, None, :]
        return True

    def attend(self, layer: int, queries: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        """queries (rows, H, D) and new keys and values (rows, 2, K, D) → (rows, H·D)."""
        num_rows, num_heads, head_dim = queries.shape
        data = self.data[layer]
        data.flatten(0, 1).index_copy_(0, self.new_slots, new)
        k, v = data[:num_rows, : self.longest].permute(2, 0, 3, 1, 4)
        q = queries.view(num_rows, k.shape[1], -1, head_dim)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=self.mask)
        return out.reshape(num_rows, num_heads * head_dim)

    def _reserve(self, num_rows: int, length: int) -> None:
        rows, capacity = self.data.shape[1:3]
        if num_rows <= rows and length <= capacity:
            return
        layers, _, _, _, num_kv_heads, head_dim = self.data.shape
        rows = max(rows, num_rows)
        capacity = max(capacity, -(-length // GROWTH) * GROWTH)
        # Zeros: masked places are multiplied by a weight of 0, which would not silence a NaN left in memory.
        data = self.data.new_zeros((layers, rows, capacity, 2, num_kv_heads, head_dim))
        data[:, : self.data.shape[1], : self.data.shape[2]] = self.data
        self.data = data

    def _gather(self, index: int, row: AttentionRow) -> None:
        slots = self.cache.locate(row.block_table, row.num_keys)
        held = self.cache.data[:, slots] if isinstance(slots, slice) else self.cache.data.index_select(1, slots)
        self.data[:, index, : row.num_keys] = held
