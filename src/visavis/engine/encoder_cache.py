"""`EncoderCache`: outputs of the vision tower by content, shared by the requests that read them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass

from visavis.engine.models.vision import VisionOutput

__all__ = ["EncoderCache"]


@dataclass(slots=True)
class _Entry:
    output: VisionOutput
    num_bytes: int
    num_readers: int = 0


class EncoderCache:
    """What is being read stays, whatever its size; of the rest as much as the budget leaves room for, the longest
    unused evicted first. With a budget of 0 an output goes with its last reader."""

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self.num_bytes = 0
        self.queries = 0  # items a request began to read …
        self.hits = 0  # … that were here already, or encoded in that step for another request
        self.evictions = 0
        self._entries: dict[Hashable, _Entry] = {}
        self._idle: OrderedDict[Hashable, None] = OrderedDict()  # longest unused first

    def __contains__(self, key: Hashable) -> bool:
        return key in self._entries

    def __getitem__(self, key: Hashable) -> VisionOutput:
        return self._entries[key].output

    @property
    def num_read(self) -> int:
        """Outputs that requests are reading."""
        return len(self._entries) - len(self._idle)

    def put(self, key: Hashable, output: VisionOutput) -> None:
        """Adds an output that nobody reads yet; `trim` may evict it."""
        num_bytes = output.embeddings.nbytes + (0 if output.deepstack is None else output.deepstack.nbytes)
        self._entries[key] = _Entry(output, num_bytes)
        self._idle[key] = None
        self.num_bytes += num_bytes

    def acquire(self, key: Hashable) -> None:
        entry = self._entries[key]
        entry.num_readers += 1
        self._idle.pop(key, None)

    def release(self, key: Hashable) -> None:
        entry = self._entries[key]
        entry.num_readers -= 1
        if entry.num_readers == 0:
            self._idle[key] = None
            self.trim()

    def trim(self) -> None:
        """Evicts what nobody reads until the budget is kept."""
        while self._idle and self.num_bytes > self.capacity_bytes:
            key, _ = self._idle.popitem(last=False)
            self.num_bytes -= self._entries.pop(key).num_bytes
            self.evictions += 1
