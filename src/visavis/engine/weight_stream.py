"""`stream_tensors`: a safetensors file to the device: threads read ahead into pinned memory, the device copies from it.

Read through a memory map, the same bytes would come one page fault after the other and cross to the device through the
driver's own bounce buffer. Format: https://huggingface.co/docs/safetensors (a length, a JSON header, the data).
"""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from visavis.machine import usable_cores

__all__ = ["DTYPES", "Rows", "Target", "stream_tensors"]

DTYPES = {
    "BOOL": torch.bool, "U8": torch.uint8, "I8": torch.int8, "I16": torch.int16, "I32": torch.int32,
    "I64": torch.int64, "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "F16": torch.float16,
    "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64,
}  # fmt: skip
CHUNK_BYTES = 8 << 20
MAX_READERS = 8

Target = Callable[[str, torch.dtype, tuple[int, ...]], torch.Tensor | None]
"""Name, dtype and shape of a tensor → contiguous memory of just that kind to put it into, or None: new memory."""
Rows = Callable[[str, tuple[int, ...]], tuple[int, int] | None]
"""Name and shape of a tensor → the first of its rows that are read, and how many; None: all."""


@dataclass(frozen=True, slots=True)
class _Stored:
    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int  # in the file
    end: int


@dataclass(frozen=True, slots=True)
class _Piece:
    """Bytes `begin` … `end` of a tensor, from `at` on in the chunk."""

    stored: _Stored
    begin: int
    end: int
    at: int


@dataclass(slots=True)
class _Chunk:
    start: int  # in the file
    length: int = 0
    pieces: list[_Piece] = field(default_factory=list)


class _Slot:
    """Host memory for one chunk; free again when the device has copied it."""

    def __init__(self, memory: torch.Tensor) -> None:
        self.memory = memory
        self.bytes = memoryview(memory.numpy().data)
        self.copied: torch.cuda.Event | None = None

    def read(self, file: int, chunk: _Chunk) -> None:
        if self.copied is not None:
            self.copied.synchronize()
        done = 0
        while done < chunk.length:
            got = os.preadv(file, [self.bytes[done : chunk.length]], chunk.start + done)
            if got == 0:
                raise EOFError(f"it ends at byte {chunk.start + done}")
            done += got


def stream_tensors(
    path: Path,
    device: torch.device,
    place: Target = lambda name, dtype, shape: None,
    rows: Rows = lambda name, shape: None,
    *,
    chunk_bytes: int = CHUNK_BYTES,
) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor of a well-formed file, in the order they lie there: what `place` gave, filled, or a new one;
    of those that `rows` cuts these rows alone.

    On a GPU a tensor may be used on the current stream at once, and is not there for others until that has come to it.
    Raises OSError and EOFError for what cannot be read, KeyError for a dtype that torch does not have.
    """
    stored = [_only(s, rows(s.name, s.shape)) for s in _header(path)]
    chunks = _cut([s for s in stored if s.end > s.begin], chunk_bytes)
    for s in stored:
        if s.end == s.begin:
            yield s.name, torch.empty(s.shape, dtype=s.dtype, device=device)
    if not chunks:
        return
    gpu = device.type == "cuda"
    readers = min(MAX_READERS, usable_cores(), len(chunks))
    slots = min(readers + 4, len(chunks))
    memory = torch.empty((slots, chunk_bytes), dtype=torch.uint8, pin_memory=gpu)
    waiting: deque[tuple[_Chunk, _Slot, Future[None]]] = deque()
    left = iter(chunks)
    file = os.open(path, os.O_RDONLY)
    pool = ThreadPoolExecutor(readers, "visavis-weights")
    try:
        for row, chunk in zip(memory, left, strict=False):  # in this order: a chunk taken is a chunk read
            slot = _Slot(row)
            waiting.append((chunk, slot, pool.submit(slot.read, file, chunk)))
        current: torch.Tensor | None = None
        while waiting:
            chunk, slot, read = waiting.popleft()
            read.result()
            for piece in chunk.pieces:
                s = piece.stored
                if piece.begin == 0:
                    current = place(s.name, s.dtype, s.shape)
                    if current is None:
                        current = torch.empty(s.shape, dtype=s.dtype, device=device)
                assert current is not None
                source = slot.memory[piece.at : piece.at + piece.end - piece.begin]
                current.view(-1).view(torch.uint8)[piece.begin : piece.end].copy_(source, non_blocking=gpu)
                if piece.end == s.end - s.begin:
                    yield s.name, current
            if gpu:
                slot.copied = torch.cuda.Event()
                slot.copied.record()
            following = next(left, None)
            if following is not None:
                waiting.append((following, slot, pool.submit(slot.read, file, following)))
    finally:
        pool.shutdown(cancel_futures=True)
        os.close(file)


def _header(path: Path) -> list[_Stored]:
    """In the order of the data."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
    found = [
        _Stored(name, DTYPES[entry["dtype"]], tuple(entry["shape"]), *(8 + length + at for at in entry["data_offsets"]))
        for name, entry in header.items()
        if name != "__metadata__"
    ]
    return sorted(found, key=lambda s: s.begin)


def _only(stored: _Stored, rows: tuple[int, int] | None) -> _Stored:
    if rows is None:
        return stored
    start, count = rows
    row_bytes = (stored.end - stored.begin) // max(stored.shape[0], 1)
    begin = stored.begin + start * row_bytes
    return replace(stored, shape=(count, *stored.shape[1:]), begin=begin, end=begin + count * row_bytes)


def _cut(stored: list[_Stored], chunk_bytes: int) -> list[_Chunk]:
    """Chunks of neighbouring bytes: small tensors share one, large ones lie in several."""
    chunks: list[_Chunk] = []
    for s in stored:
        at = s.begin
        while at < s.end:
            last = chunks[-1] if chunks else None
            if last is None or last.length == chunk_bytes or last.start + last.length != at:
                last = _Chunk(at)
                chunks.append(last)
            take = min(s.end - at, chunk_bytes - last.length)
            last.pieces.append(_Piece(s, at - s.begin, at - s.begin + take, last.length))
            last.length += take
            at += take
    return chunks
