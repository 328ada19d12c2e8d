"""Tile sizes from shapes: what was fastest on an H200 (benchmarks/gpu/tune.py) for hidden sizes of 1536 and 3584, in
2-byte columns, and the same by rule for the rest."""

from __future__ import annotations

from dataclasses import dataclass

from visavis.engine.kernels.triton.attention_decode import MAX_SPLITS

__all__ = [
    "AttentionTile",
    "GemvTile",
    "SkinnyTile",
    "attention_tile",
    "decode_splits",
    "gemv_tile",
    "pad",
    "skinny_tile",
]

STAGES_BYTES = 88 << 10
"""Of a product's tiles on their way; compute capability 8.6 and 8.9 have 99 KiB for a block."""
LONG_SPLITS = 2
"""Programs that share a long context among many requests, however many those are."""


def pad(n: int, least: int = 1) -> int:
    """The next power of two."""
    return max(least, 1 << (n - 1).bit_length())


@dataclass(frozen=True, slots=True)
class GemvTile:
    block_n: int
    block_k: int
    warps: int
    programs: int = 0  # a multiprocessor, each taking several blocks of whole rows; 0: one block of rows a program


@dataclass(frozen=True, slots=True)
class SkinnyTile:
    block_n: int
    block_k: int
    split: int
    warps: int
    stages: int


@dataclass(frozen=True, slots=True)
class AttentionTile:
    block: int  # tokens
    least: int  # tokens a program takes, if there are as many
    warps: int


def gemv_tile(n: int, k: int, item: int) -> GemvTile:
    row, scale = pad(k), 2 / item
    if n >= 1 << 16:  # the head: so many rows that nothing has to be kept in flight between blocks of them
        return GemvTile(8, min(int(256 * scale), row), 4)
    if row <= 2048 * scale:
        return GemvTile(2, row, 4, 4) if n > k else GemvTile(2, row, 2)
    if row <= 4096 * scale:
        return GemvTile(1, row, 4, 4 if n > 2 * k else 8) if n > k else GemvTile(2, row, 8, 4)
    return GemvTile(4, int(2048 * scale), 8) if n < 2048 else GemvTile(4, int(1024 * scale), 4)


def skinny_tile(kind: str, rows: int, n: int, k: int, item: int, processors: int, *, silu: bool) -> SkinnyTile:
    m, block_k = pad(rows, 16), max(16, min(256 // item, pad(k)))

    def tile(block_n: int, block_k: int, split: int, stages: int) -> SkinnyTile:
        stage = (block_n * (2 if silu else 1) + m) * block_k * item
        return SkinnyTile(block_n, block_k, split, 4, max(2, min(stages, STAGES_BYTES // stage)))

    if silu:
        return tile(64, max(16, min(block_k, 128 // item)), 1, 4)
    if n >= 1 << 16:
        return tile(64, block_k, 1, 4)
    steps = -(-k // block_k)
    most = min(8, 2 * processors // max(1, n // 32), steps // 2)  # programs that share a sum
    if most < 2 or (kind == "output" and n >= 8 * processors):
        return tile(16, block_k, 1, 6)
    even = [split for split in range(2, most + 1) if steps % split == 0]
    return tile(32, block_k, max(even, default=most), 4 if k > 4096 else 3)


def decode_splits(rows: int, kv_heads: int, processors: int) -> int:
    """Programs that may share the keys of one request and key head: enough to fill the machine twice, and a few for the
    long ones among many requests."""
    return max(LONG_SPLITS, min(MAX_SPLITS.value, pad(2 * processors // (rows * kv_heads))))


def attention_tile(programs: int, d: int, item: int, processors: int, *, large: bool, later: bool) -> AttentionTile:
    """For so many requests times key heads. `large`: the device has more than 99 KiB of shared memory for a block;
    `later`: parts are joined by the product that follows."""
    if d * item > 256:  # a tile's keys and values in shared memory, twice: float32 heads of 128 take half the tokens
        return AttentionTile(32, 32, 4)
    if programs >= 3 * processors // 4:
        return AttentionTile(128 if large else 64, 1024, 4)
    return AttentionTile(64, 64, 4 if later or not large else 2)
