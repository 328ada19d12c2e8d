"""`BlockPool`: who owns which KV block, and what the blocks nobody owns still hold."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

__all__ = ["BlockPool"]


class BlockPool:
    """A block is used by one or more requests, or idle: free, but its content has a name and may be found again, or
    blank. New owners get blank blocks first, then the idle one longest unused.

    Blank blocks are a stack: blocks given back together come out together and in ascending order, so that a lone
    sequence usually owns one contiguous run, which the CPU attention reads without gathering.
    """

    def __init__(self, num_blocks: int, block_size: int, *, enable_prefix_caching: bool = False) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.enable_prefix_caching = enable_prefix_caching
        self.num_evictions = 0  # names lost because the block was needed
        self._users = [0] * num_blocks
        self._blank = list(range(num_blocks - 1, -1, -1))
        self._idle: OrderedDict[int, None] = OrderedDict()  # longest unused first
        self._name_of: dict[int, bytes] = {}
        self._block_of: dict[bytes, int] = {}

    @property
    def num_free(self) -> int:
        return len(self._blank) + len(self._idle)

    @property
    def num_cached(self) -> int:
        """Blocks that can be found by name, used ones included."""
        return len(self._block_of)

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def grow(self, block_table: list[int], num_tokens: int) -> bool:
        """Extends `block_table` until it holds `num_tokens`; False, changing nothing, when too few blocks are free."""
        missing = self.blocks_for(num_tokens) - len(block_table)
        if missing > self.num_free:
            return False
        taken = sorted(self._take() for _ in range(missing))
        block_table += taken
        return True

    def find(self, names: Sequence[bytes]) -> list[int]:
        """Blocks that hold the longest known run from the first name on. They are not taken yet."""
        found = []
        for name in names:
            block = self._block_of.get(name)
            if block is None:
                break
            found.append(block)
        return found

    def num_free_after(self, found: Sequence[int], num_tokens: int) -> int:
        """Free blocks left if a request shared `found` and took what else `num_tokens` need; may be negative."""
        woken = sum(self._users[block] == 0 for block in found)
        return self.num_free - woken - (self.blocks_for(num_tokens) - len(found))

    def share(self, block_table: list[int], found: Sequence[int]) -> None:
        """Appends found blocks to a table; they may be read, and not written."""
        for block in found:
            if self._users[block] == 0:
                del self._idle[block]
            self._users[block] += 1
        block_table += found

    def name(self, block: int, name: bytes) -> None:
        """Tells what a full block in use holds. Of several blocks with one content the first is found."""
        if name not in self._block_of and block not in self._name_of:
            self._block_of[name] = block
            self._name_of[block] = name

    def release(self, block_table: list[int], *, forget: bool = False) -> None:
        """Takes an owner's blocks back and empties the table. With `forget` what they hold is not kept."""
        # The last first: the end of a prompt is of use to fewer than its beginning, so it is evicted before it.
        for block in reversed(block_table):
            if forget and block in self._name_of:
                del self._block_of[self._name_of.pop(block)]
            self._users[block] -= 1
            if self._users[block] == 0:
                if block in self._name_of:
                    self._idle[block] = None
                else:
                    self._blank.append(block)
        block_table.clear()

    def _take(self) -> int:
        if self._blank:
            block = self._blank.pop()
        else:
            block, _ = self._idle.popitem(last=False)
            del self._block_of[self._name_of.pop(block)]
            self.num_evictions += 1
        self._users[block] = 1
        return block
