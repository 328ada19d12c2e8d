"""Launching the kernels of this package: one function each, which picks tile sizes from the shapes.

`Launcher` holds what all launches of an engine share. Without a GPU the same calls run in Triton's interpreter, when
TRITON_INTERPRET=1 was set before the import.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton

from visavis.engine.kernels.triton import elementwise, linear
from visavis.engine.kernels.triton.attention_decode import decode_attention_kernel
from visavis.engine.kernels.triton.attention_prefill import prefill_attention_kernel

__all__ = ["SKINNY_ROWS", "DecodeScratch", "GemvTile", "Launcher", "SkinnyTile", "pad"]

SKINNY_ROWS = 16
"""Up to as many rows a decode step's products go through our kernels; above, cuBLAS is as good."""
SMALL_SHARED_MEMORY = 99 << 10
"""Bytes a block may have on compute capability 8.6 and 8.9."""


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


@dataclass(slots=True)
class DecodeScratch:
    """Between programs of one launch; launches follow each other, so all layers share it."""

    partial: torch.Tensor  # float32
    arrived: torch.Tensor  # int32 zeros

    @classmethod
    def make(cls, floats: int, counters: int, device: torch.device) -> DecodeScratch:
        return cls(
            torch.empty(floats, dtype=torch.float32, device=device),
            torch.zeros(counters, dtype=torch.int32, device=device),
        )


class Launcher:
    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.gpu = device.type == "cuda"
        properties = torch.cuda.get_device_properties(device) if self.gpu else None
        self.processors = properties.multi_processor_count if properties else 4
        self.overlap = 1 if properties is not None and properties.major >= 9 else 0  # see overlap.py
        self.skinny_rows: dict[str, int] = {}  # by kind of product, where it is not SKINNY_ROWS
        self.skinny_overlap = 0
        self.norm_apart = True
        self.fixed_splits: int | None = None
        self.attention_tile: tuple[int, int, int] | None = None  # tokens a tile, tokens a split at least, warps
        self.gemv_tiles: dict[str, GemvTile] = {}  # by kind of product, where a measurement says otherwise
        self.skinny_tiles: dict[str, SkinnyTile] = {}

    @property
    def options(self) -> dict[str, Any]:
        return {"launch_pdl": True} if self.overlap else {}

    def most_rows(self, kind: str) -> int:
        return self.skinny_rows.get(kind, SKINNY_ROWS)

    # ---- products ----------------------------------------------------------------------------------------------

    def gemv_tile(self, kind: str, n: int, k: int, item: int) -> GemvTile:
        if kind in self.gemv_tiles:
            return self.gemv_tiles[kind]
        # What was fastest on an H200 (benchmarks/gpu/tune.py) for hidden sizes of 1536 and 3584, in 2-byte columns.
        row, scale = pad(k), 2 / item
        if n >= 1 << 16:  # the head: so many rows that nothing has to be kept in flight between blocks of them
            return GemvTile(8, min(int(256 * scale), row), 4)
        if row <= 2048 * scale:
            return GemvTile(2, row, 4, 4) if n > k else GemvTile(2, row, 2)
        if row <= 4096 * scale:
            return GemvTile(1, row, 4, 4 if n > 2 * k else 8) if n > k else GemvTile(2, row, 8, 4)
        return GemvTile(8, int(1024 * scale), 8) if n < 2048 else GemvTile(4, int(1024 * scale), 4)

    def skinny_tile(self, kind: str, n: int, k: int, item: int, *, splits: bool, silu: bool = False) -> SkinnyTile:
        if kind in self.skinny_tiles:
            return self.skinny_tiles[kind]
        unit = 128 * 2 // item
        if silu:
            return SkinnyTile(64, max(16, min(unit // 2, pad(k))), 1, 4, 5 if item == 2 else 3)
        block_n = 32 if n >= 64 * self.processors or k > 4096 else 16
        block_k = max(16, min(unit, pad(k)))
        split = 1
        while splits and split < 8 and n // block_n * split < 2 * self.processors and k >= 4 * block_k * split:
            split *= 2
        return SkinnyTile(block_n, block_k, split, 4, 4)

    def product(
        self,
        kind: str,
        x: torch.Tensor,
        weight: torch.Tensor,
        out: torch.Tensor,
        *,
        bias: torch.Tensor | None = None,
        norm: torch.Tensor | None = None,
        eps: float = 0.0,
        residual: bool = False,
        silu: bool = False,
        scratch: DecodeScratch,
    ) -> None:
        """out (rows, N) = x (rows, K) · weightᵀ; `norm`: of RMS-normalised x; `silu`: weight is gates over ups;
        `residual`: added to what `out` holds. x and out are contiguous."""
        rows, k = x.shape
        n = out.shape[1]
        item = weight.element_size()
        flags = {"NORM": norm is not None, "BIAS": bias is not None, "RESIDUAL": residual, "SILU": silu}
        nothing = weight  # a pointer that is not followed
        bias, norm = (nothing if t is None else t for t in (bias, norm))
        if rows == 1:
            tile = self.gemv_tile(kind, n, k, item)
            blocks = triton.cdiv(n, tile.block_n)
            whole = tile.block_k >= k
            kernel = linear.gemv_rows_kernel if whole else linear.gemv_kernel
            grid = (min(blocks, tile.programs * self.processors or blocks) if whole else blocks,)
            kernel[grid](
                x, weight, bias, norm, out, n, eps,
                K=k, BLOCK_N=tile.block_n, BLOCK_K=tile.block_k, **flags, PDL=self.overlap,
                num_warps=tile.warps, **self.options,
            )  # fmt: skip
            return
        wide = self.skinny_tile(kind, n, k, item, splits=not flags["NORM"] and not silu, silu=silu)
        linear.skinny_kernel[(triton.cdiv(n, wide.block_n), wide.split)](
            x, weight, bias, norm, out, scratch.partial, scratch.arrived, rows, n, eps,
            K=k, M_PAD=pad(rows, 16), BLOCK_N=wide.block_n, BLOCK_K=wide.block_k, SPLIT=wide.split, **flags,
            PRECISION=precision(x.dtype), STAGES=wide.stages, PDL=self.skinny_overlap,
            num_warps=wide.warps, **({"launch_pdl": True} if self.skinny_overlap else {}),
        )  # fmt: skip

    # ---- attention ---------------------------------------------------------------------------------------------

    def decode_splits(self, rows: int, kv_heads: int) -> int:
        """Programs that share the keys of one request and key head: enough to fill the machine twice."""
        if self.fixed_splits is not None:
            return self.fixed_splits
        return max(1, min(64, pad(2 * self.processors // (rows * kv_heads))))

    def decode_attention(
        self,
        qkv: torch.Tensor,
        cache: torch.Tensor,
        out: torch.Tensor,
        tables: torch.Tensor,
        table_rows: torch.Tensor,
        contexts: torch.Tensor,
        *,
        block_size: int,
        scratch: DecodeScratch,
        turn: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None,
        qk_norm: tuple[torch.Tensor, torch.Tensor] | None = None,
        eps: float = 0.0,
        splits: int | None = None,
    ) -> None:
        """qkv (rows, H + 2K, D) over a layer's cache (slots, 2K, D) → out (rows, H · D).

        With `turn` = (positions (rows,), cos, sin (positions, D / 2) float32) queries and keys are rotated here, after
        their norms (`qk_norm`), and the new keys and values stored; without, all that is done and `contexts` counts the
        new token too.
        """
        rows, heads, d = qkv.shape
        kv_heads = cache.shape[1] // 2
        query_heads = heads - 2 * kv_heads
        splits = splits or self.decode_splits(rows, kv_heads)
        # A tile's keys and values in shared memory, twice: float32 heads of 128 take half the tokens.
        block, least, warps = self.attention_tile or ((64, 64, 4) if d * qkv.element_size() <= 256 else (32, 32, 4))
        positions, cos, sin = turn if turn is not None else (contexts, contexts, contexts)
        q_norm, k_norm = qk_norm if qk_norm is not None else (qkv, qkv)
        decode_attention_kernel[(rows, kv_heads, splits)](
            qkv, cache, out, tables, table_rows, contexts, positions, cos, sin, q_norm, k_norm,
            scratch.partial, scratch.arrived, tables.stride(0), d**-0.5, eps,
            H=query_heads, K=kv_heads, D=d,
            GROUP_PAD=pad(query_heads // kv_heads, 16), HALF_PAD=pad(d // 2, 16), D_PAD=pad(d, 16),
            BLOCK_SIZE=block_size, BLOCK=block, SPLITS=splits, MIN_SPLIT=least,
            FUSED=turn is not None, QK_NORM=qk_norm is not None, PRECISION=precision(qkv.dtype),
            PDL=self.overlap, num_warps=warps, num_stages=2, **self.options,
        )  # fmt: skip

    def decode_scratch(
        self, max_rows: int, kv_heads: int, group: int, d: int, width: int, product_rows: int = SKINNY_ROWS
    ) -> DecodeScratch:
        """Of any step up to `max_rows`: enough for attention, and for products of `product_rows` with up to `width`
        columns."""
        most = max(rows * kv_heads * self.decode_splits(rows, kv_heads) for rows in (1, max_rows))
        most = max(most, 4 * self.processors + 2 * max_rows * kv_heads)
        attention = most * pad(group, 16) * (pad(d, 16) + 2)
        products = 8 * pad(min(max_rows, product_rows), 16) * (width + 64)
        return DecodeScratch.make(max(attention, products), max(max_rows * kv_heads, width), self.device)

    def prefill_attention(
        self,
        qkv: torch.Tensor,
        cache: torch.Tensor,
        out: torch.Tensor,
        tables: torch.Tensor,
        starts: torch.Tensor,
        contexts: torch.Tensor,
        counts: torch.Tensor,
        longest: int,
        *,
        block_size: int,
    ) -> None:
        """Chunks of up to `longest` tokens in qkv (tokens, H + 2K, D), rotated and stored → out (tokens, H · D)."""
        _, heads, d = qkv.shape
        kv_heads = cache.shape[1] // 2
        query_heads = heads - 2 * kv_heads
        half = qkv.element_size() == 2
        large = half and self.overlap and longest >= 128
        block_m, block_n, warps, stages = (128, 64, 8, 3) if large else (64, 64, 4, 2) if half else (32, 32, 4, 1)
        grid = (triton.cdiv(longest, block_m), query_heads, starts.shape[0])
        prefill_attention_kernel[grid](
            qkv, cache, out, tables, starts, contexts, counts, tables.stride(0), d**-0.5,
            H=query_heads, K=kv_heads, D=d, D_PAD=pad(d, 16), BLOCK_SIZE=block_size, BLOCK_M=block_m, BLOCK_N=block_n,
            PRECISION=precision(qkv.dtype), num_warps=warps, num_stages=stages,
        )  # fmt: skip

    # ---- the small ones ----------------------------------------------------------------------------------------

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float, out: torch.Tensor) -> torch.Tensor:
        """x, out: (rows, N) contiguous."""
        n = weight.shape[0]
        block = pad(n)
        elementwise.rms_norm_kernel[(x.numel() // n,)](
            x, weight, out, eps, N=n, BLOCK=block, PDL=self.overlap,
            num_warps=max(1, min(8, block // 512)), **self.options,
        )  # fmt: skip
        return out

    def silu_mul(self, gate_up: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        rows, m = out.shape
        block = min(1024, pad(m))
        elementwise.silu_mul_kernel[(rows, triton.cdiv(m, block))](
            gate_up, out, m, BLOCK=block, PDL=self.overlap, num_warps=4, **self.options
        )
        return out

    def rotate_(self, heads: torch.Tensor, cos: torch.Tensor, signed_sin: torch.Tensor) -> None:
        """heads (n, count, D) with heads side by side; cos and signed_sin (n, 1, D) contiguous."""
        n, count, d = heads.shape
        elementwise.rotate_kernel[(n,)](
            heads, cos, signed_sin, heads.stride(0), COUNT=count, COUNT_PAD=pad(count), D=d, HALF_PAD=pad(d // 2),
            num_warps=4,
        )  # fmt: skip


def precision(dtype: torch.dtype) -> str:
    """float32 stays float32: the matrix units' tf32 would break parity."""
    return "ieee" if dtype == torch.float32 else "tf32"
