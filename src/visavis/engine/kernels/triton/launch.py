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
from visavis.engine.kernels.triton.tiles import (
    AttentionTile,
    GemvTile,
    SkinnyTile,
    attention_tile,
    decode_splits,
    gemv_tile,
    pad,
    skinny_tile,
)

__all__ = ["SKINNY_ROWS", "DecodeScratch", "Folded", "Launcher", "Parts"]

SKINNY_ROWS = 16
"""Up to as many rows a decode step's products go through our kernels; above, cuBLAS is as good."""
MOST_ROWS = 64
"""That our kernels can do, and their buffers have room for."""
LARGE_SHARED_MEMORY = 200 << 10
"""Bytes a block may have: 227 KiB on compute capability 9.0 and 10.0, 99 on 8.6, 8.9 and 12.0."""
LATE = {"attention": 3, "output": 3, "gate_up": 3}
"""Launches for several rows whose successor starts late (`overlap.py`): all it could do early is take their place."""


@dataclass(frozen=True, slots=True)
class Parts:
    """Attention of one request that its parts are left of in the scratch, for the product behind it to join."""

    contexts: torch.Tensor
    kv_heads: int
    head_dim: int
    splits: int
    tile: AttentionTile


@dataclass(slots=True)
class Folded:
    """A result times the gain of the norm that follows, and its rows' sums of squares: so a norm needs no kernel."""

    x: torch.Tensor  # (rows, N)
    squares: torch.Tensor  # (programs, 16 … 64) float32, as many as rows are filled up to
    programs: int = 0  # that wrote `squares`


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
        self.hopper = properties is not None and properties.major == 9
        self.large = self.gpu and shared_memory(device) >= LARGE_SHARED_MEMORY
        self.skinny_rows: dict[str, int] = {}  # by kind of product, where it is not SKINNY_ROWS
        # By kind of launch, where a measurement says otherwise:
        self.overlaps: dict[str, int] = {}
        self.attention_tile: AttentionTile | None = None
        self.gemv_tiles: dict[str, GemvTile] = {}
        self.skinny_tiles: dict[str, SkinnyTile] = {}

    @property
    def options(self) -> dict[str, Any]:
        return {"launch_pdl": True} if self.overlap else {}

    def overlap_of(self, kind: str, rows: int) -> int:
        """What `PDL` is of a launch for so many rows."""
        if not self.overlap:
            return 0
        return self.overlaps.get(kind, LATE.get(kind, 1) if rows > 1 else 1)

    def most_rows(self, kind: str) -> int:
        return min(self.skinny_rows.get(kind, SKINNY_ROWS), MOST_ROWS)

    # ---- products ----------------------------------------------------------------------------------------------

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
        parts: Parts | None = None,
        fold: tuple[Folded, torch.Tensor] | None = None,
        folded: Folded | None = None,
    ) -> None:
        """out (rows, N) = x (rows, K) · weightᵀ; `norm`: of RMS-normalised x (one row); `silu`: weight is gates over
        ups; `residual`: added to what `out` holds. x and out are contiguous.

        `parts`: x is to be joined from them, if attention has not done so. `fold`: the result is also written there,
        times the gain of the norm that follows (for 2 rows or more, as `folded`). `folded`: x is that of an
        earlier product, and still to be scaled by `eps` and its squares.
        """
        rows, k = x.shape
        n = out.shape[1]
        item = weight.element_size()
        if (rows > 1 and (norm is not None or parts is not None)) or (rows == 1 and (fold or folded)):
            raise ValueError("a norm and parts are for one row, folds for several")
        if parts is not None and (norm is not None or silu):
            raise ValueError("the product behind attention has no norm before it and no activation")
        flags = {"NORM": norm is not None, "BIAS": bias is not None, "RESIDUAL": residual, "SILU": silu}
        nothing = weight  # a pointer that is not followed
        bias, norm = (nothing if t is None else t for t in (bias, norm))
        if parts is not None:
            d, block_n = parts.head_dim, 32 // item
            linear.gemv_joined_kernel[(triton.cdiv(n, block_n),)](
                x, scratch.partial, parts.contexts, weight, bias, out, n, parts.splits,
                K=k, BLOCK_N=block_n, KV=parts.kv_heads, GROUP_PAD=pad(k // d // parts.kv_heads, 16), D=d,
                H_PAD=pad(k // d), BLOCK=parts.tile.block, MIN_SPLIT=parts.tile.least, BIAS=flags["BIAS"],
                RESIDUAL=residual, PDL=self.overlap_of(kind, rows), num_warps=4, **self.options,
            )  # fmt: skip
            return
        if rows == 1:
            tile = self.gemv_tiles.get(kind) or gemv_tile(n, k, item)
            blocks = triton.cdiv(n, tile.block_n)
            whole = tile.block_k >= k
            kernel = linear.gemv_rows_kernel if whole else linear.gemv_kernel
            grid = (min(blocks, tile.programs * self.processors or blocks) if whole else blocks,)
            kernel[grid](
                x, weight, bias, norm, out, n, eps,
                K=k, BLOCK_N=tile.block_n, BLOCK_K=tile.block_k, **flags,
                PDL=self.overlap_of(kind, rows), num_warps=tile.warps, **self.options,
            )  # fmt: skip
            return
        wide = self.skinny_tiles.get(kind) or skinny_tile(kind, rows, n, k, item, self.processors, silu=silu)
        programs = triton.cdiv(n, wide.block_n)
        squares, copy, next_norm = scratch.partial, out, weight
        if fold is not None:
            fold[0].programs, squares, copy, next_norm = programs, fold[0].squares, fold[0].x, fold[1]
        elif folded is not None:
            squares = folded.squares
        count = 0 if folded is None else folded.programs
        linear.skinny_kernel[(programs, wide.split)](
            x, weight, bias, out, scratch.partial, scratch.arrived, copy, next_norm, squares, rows, n, eps,
            K=k, M_PAD=pad(rows, 16), BLOCK_N=wide.block_n, BLOCK_K=wide.block_k, SPLIT=wide.split,
            BIAS=flags["BIAS"], RESIDUAL=residual, SILU=silu, FOLD=fold is not None, FOLDED=count,
            FOLDED_PAD=pad(count), PRECISION=precision(x.dtype), STAGES=wide.stages,
            PDL=self.overlap_of(kind, rows), num_warps=wide.warps, **self.options,
        )  # fmt: skip

    # ---- attention ---------------------------------------------------------------------------------------------

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
        later: bool = False,
    ) -> Parts | None:
        """qkv (rows, H + 2K, D) over a layer's cache (slots, 2K, D) → out (rows, H · D).

        With `turn` = (positions (rows,), cos, sin (positions, D / 2) float32) queries and keys are rotated here, after
        their norms (`qk_norm`), and the new keys and values stored; without, all that is done and `contexts` counts the
        new token too. With `later` what is returned goes to the product that follows (None: nothing is left to join).
        """
        rows, heads, d = qkv.shape
        kv_heads = cache.shape[1] // 2
        query_heads = heads - 2 * kv_heads
        splits = splits or decode_splits(rows, kv_heads, self.processors)
        positions, cos, sin = turn if turn is not None else (contexts, contexts, contexts)
        q_norm, k_norm = qk_norm if qk_norm is not None else (qkv, qkv)
        later = later and rows == 1 and d == pad(d, 16) and query_heads * d <= 2048 and splits >= 8
        tile = self.attention_tile or attention_tile(
            rows * kv_heads, d, qkv.element_size(), self.processors, large=self.large, later=later
        )
        decode_attention_kernel[(rows, kv_heads, splits)](
            qkv, cache, out, tables, table_rows, contexts, positions, cos, sin, q_norm, k_norm,
            scratch.partial, scratch.arrived, tables.stride(0), splits, d**-0.5, eps,
            H=query_heads, K=kv_heads, D=d,
            GROUP_PAD=pad(query_heads // kv_heads, 16), HALF_PAD=pad(d // 2, 16), D_PAD=pad(d, 16),
            BLOCK_SIZE=block_size, BLOCK=tile.block, MIN_SPLIT=tile.least,
            FUSED=turn is not None, QK_NORM=qk_norm is not None, LATER=later, PRECISION=precision(qkv.dtype),
            PDL=self.overlap_of("attention", rows), num_warps=tile.warps, num_stages=2, **self.options,
        )  # fmt: skip
        return Parts(contexts, kv_heads, d, splits, tile) if later else None

    def decode_scratch(
        self, max_rows: int, kv_heads: int, group: int, d: int, width: int, product_rows: int = SKINNY_ROWS
    ) -> DecodeScratch:
        """Of any step up to `max_rows`: enough for attention, and for products of `product_rows` with up to `width`
        columns."""
        most = max(rows * kv_heads * decode_splits(rows, kv_heads, self.processors) for rows in (1, max_rows))
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
        large = half and self.large and longest >= 128
        block_m, block_n, warps, stages = (64, 64, 4, 3 if large else 2) if half else (32, 32, 4, 1)
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


def shared_memory(device: torch.device) -> int:
    """Bytes that a block may have, if it asks for them."""
    index = torch.cuda.current_device() if device.index is None else device.index
    return int(triton.runtime.driver.active.utils.get_device_properties(index)["max_shared_mem"])
