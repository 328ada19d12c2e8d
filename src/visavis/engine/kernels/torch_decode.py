"""Decode attention of a whole batch in plain torch: one call per layer where the batch allows it.

Gathering every request's blocks in every layer of every step would cost more than the attention itself. A lone
request usually owns one run of blocks and is read in place. A batch keeps a second, dense copy of its cache, padded to
the longest request: a step appends one token to each row, and a row is gathered anew only when another request takes
it. A batch too uneven for that is attended request by request.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
import torch.nn.functional as F

from visavis.engine.kernels.base import AttentionRow
from visavis.engine.kv_cache import KVCache

__all__ = ["DecodeAttention", "DecodeBatch", "read"]

MAX_PADDING = 2.0
"""Above this ratio of padded to real tokens each request attends for itself."""
MAX_COPY_BYTES = 256 << 20
"""Of the dense copy, which is not part of the cache's budget; nor is it ever more than a quarter of the cache. A larger
batch is attended request by request."""
GROWTH = 256
"""Tokens by which the dense copy is lengthened, so that it is not made anew at every step."""


class DecodeBatch(ABC):
    """The decodes of one step, planned."""

    @abstractmethod
    def attend(self, layer: int, queries: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        """queries (rows, H, D), new keys and values (rows, 2K, D), which are in the cache already → (rows, H·D)."""


class DecodeAttention:
    def __init__(self, cache: KVCache) -> None:
        self.cache = cache
        self.dense = DenseCopy(cache)

    def plan(self, rows: list[AttentionRow]) -> DecodeBatch:
        if len(rows) > 1:
            lengths = [row.num_keys for row in rows]
            if len(rows) * max(lengths) <= MAX_PADDING * sum(lengths) and self.dense.has_room(len(rows), max(lengths)):
                return self.dense.plan(rows, lengths)
        self.dense.forget()
        located = [self.cache.locate(row.block_table, row.num_keys) for row in rows]
        if len(rows) == 1 and isinstance(located[0], slice):
            return InPlace(self.cache, located[0])
        return OneByOne(self.cache, located)


class InPlace(DecodeBatch):
    """One request whose tokens are one run of slots."""

    def __init__(self, cache: KVCache, slots: slice) -> None:
        heads = cache.num_kv_heads
        run = cache.data[:, slots].transpose(1, 2).unsqueeze(1)  # (layers, 1, 2K, keys, D)
        self.keys = run[:, :, :heads].unbind(0)
        self.values = run[:, :, heads:].unbind(0)

    def attend(self, layer: int, queries: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        return _attend(queries, self.keys[layer], self.values[layer], None)


class OneByOne(DecodeBatch):
    def __init__(self, cache: KVCache, located: Sequence[slice | torch.Tensor]) -> None:
        self.layers = cache.data.unbind(0)
        self.located = located

    def attend(self, layer: int, queries: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        outputs = []
        for query, slots in zip(queries.split(1), self.located, strict=True):
            k, v = read(self.layers[layer], slots).transpose(0, 1).unsqueeze(0).chunk(2, dim=1)
            outputs.append(_attend(query, k, v, None))
        return torch.cat(outputs)


class DenseCopy(DecodeBatch):
    """(layers, rows, length, 2K, D): what the rows of the last batch have in the cache, side by side."""

    def __init__(self, cache: KVCache) -> None:
        self.cache = cache
        layers, _, heads, head_dim = cache.data.shape
        self.data = cache.data.new_zeros((layers, 0, 0, heads, head_dim))
        self.held: list[tuple[int, int]] = []  # per row: whose tokens it holds (uid) and how many
        self.max_bytes = min(MAX_COPY_BYTES, cache.data.nbytes // 4)

    def has_room(self, num_rows: int, length: int) -> bool:
        layers, _, heads, head_dim = self.cache.data.shape
        length = -(-length // GROWTH) * GROWTH
        return layers * num_rows * length * heads * head_dim * self.data.itemsize <= self.max_bytes

    def forget(self) -> None:
        self.held = []

    def plan(self, rows: list[AttentionRow], lengths: list[int]) -> DenseCopy:
        longest = max(lengths)
        self._reserve(len(rows), longest)
        for index, row in enumerate(rows):
            if index >= len(self.held) or self.held[index] != (row.uid, row.num_context):
                self._gather(index, row)
        self.held = [(row.uid, row.num_keys) for row in rows]

        device = self.data.device
        capacity = self.data.shape[2]
        self.new_places = torch.tensor([i * capacity + n - 1 for i, n in enumerate(lengths)], device=device)
        self.mask: torch.Tensor | None = None
        if min(lengths) != longest:
            beyond = torch.arange(longest, device=device) >= torch.tensor(lengths, device=device)[:, None]
            mask = torch.zeros(beyond.shape, dtype=self.data.dtype, device=device)
            self.mask = mask.masked_fill_(beyond, float("-inf"))[:, None, None, :]
        # The views of all layers at once: a call here is a call less in each layer.
        heads = self.cache.num_kv_heads
        used = self.data[:, : len(rows), :longest].transpose(2, 3)
        self.keys = used[:, :, :heads].unbind(0)
        self.values = used[:, :, heads:].unbind(0)
        self.layers = self.data.flatten(1, 2).unbind(0)
        return self

    def attend(self, layer: int, queries: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        self.layers[layer].index_copy_(0, self.new_places, new)
        return _attend(queries, self.keys[layer], self.values[layer], self.mask)

    def _reserve(self, num_rows: int, length: int) -> None:
        rows, capacity = self.data.shape[1:3]
        if num_rows <= rows and length <= capacity:
            return
        layers, _, _, heads, head_dim = self.data.shape
        # As large as this batch needs and no larger: the most rows there ever were times the greatest length there ever
        # was would be many times the cache.
        length = -(-length // GROWTH) * GROWTH
        # Zeros: masked places are multiplied by a weight of 0, which would not silence a NaN left in memory.
        self.data = self.data.new_empty((layers, 0, 0, heads, head_dim))  # first, so that never both are there
        self.data = self.data.new_zeros((layers, num_rows, length, heads, head_dim))
        self.forget()

    def _gather(self, index: int, row: AttentionRow) -> None:
        slots = self.cache.locate(row.block_table, row.num_keys)
        held = self.cache.data[:, slots] if isinstance(slots, slice) else self.cache.data.index_select(1, slots)
        self.data[:, index, : row.num_keys] = held
        self.data[:, index, row.num_keys :] = 0  # the last owner may have left a NaN, see _reserve


def read(layer: torch.Tensor, slots: slice | torch.Tensor) -> torch.Tensor:
    """(slots, 2K, D) of one layer's cache; a view when the slots are one run."""
    return layer[slots] if isinstance(slots, slice) else layer.index_select(0, slots)


def _attend(queries: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """queries (rows, H, D), keys and values (rows, K, length, D) → (rows, H·D).

    The query heads that share a key head become the rows of one product, instead of copies of the keys.
    """
    rows, num_heads, head_dim = queries.shape
    q = queries.view(rows, k.shape[1], -1, head_dim)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask).reshape(rows, num_heads * head_dim)
