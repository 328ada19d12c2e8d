"""Memory of the KV cache and of what lives only during a step. Each formula is stated where it is used.

The activation formulas are peaks over a decoder layer or a vision block, counted in elements a token (or a patch) of
the engine's dtype. They equal what transformers holds at once (checked by counting live tensors), and the decoder's
gives the 2.02 GiB that vLLM 0.7.3 profiled for Qwen2.5-1.5B with 32768 tokens a step. Engines with more fused kernels
stay below them. The native engine's compiled CPU kernels, which compute in float32 whatever the weights are, have a
formula of their own, held against a running engine.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from visavis.plan.shape import DTYPE_BYTES, TextShape, VisionShape

__all__ = [
    "KV_DTYPE_BYTES",
    "KvGeometry",
    "compiled_text_bytes",
    "kv_geometry",
    "least_of_blocks",
    "logits_bytes",
    "native_start_bytes",
    "rounded_patches_bytes",
    "text_activation_bytes",
    "vision_activation_bytes",
    "vision_output_bytes",
]

KV_DTYPE_BYTES = {**DTYPE_BYTES, "fp8": 1}

SORT_BYTES = 36
"""Bytes a logit while sampling with top-p by a sort: bf16 logits 2, their float32 copy, the sorted copy, its int64
order and the sort's own buffers, probabilities and their sums; measured with torch 2.11 (256 × 151936 logits took
1.305 GiB beside the bf16 ones). Greedy needs 6."""


@dataclass(frozen=True, slots=True)
class KvGeometry:
    """Bytes of the KV cache on one rank."""

    bytes_per_token: int
    block_size: int  # tokens

    @property
    def bytes_per_block(self) -> int:
        return self.bytes_per_token * self.block_size

    def blocks(self, available: float) -> int:
        """Whole blocks in `available` bytes."""
        return max(0, int(available // self.bytes_per_block))

    def blocks_for(self, tokens: int) -> int:
        return math.ceil(tokens / self.block_size)

    def concurrency(self, blocks: int, tokens_each: int) -> float:
        """How many requests of `tokens_each` tokens `blocks` hold, in the sense of vLLM's log."""
        return blocks * self.block_size / tokens_each


def kv_geometry(text: TextShape, *, dtype: str, ranks: int = 1, block_size: int = 16) -> KvGeometry:
    """2 (key and value) · layers · KV heads on a rank · head_dim · bytes. `dtype` is a key of KV_DTYPE_BYTES.

    With more ranks than KV heads each rank keeps one head, so the heads are repeated, not divided further.
    """
    heads = max(1, math.ceil(text.kv_heads / ranks))
    return KvGeometry(2 * text.layers * heads * text.head_dim * KV_DTYPE_BYTES[dtype], block_size)


def text_activation_bytes(
    text: TextShape, tokens: int, *, dtype: str, ranks: int = 1, fused_experts: bool = True
) -> float:
    """Peak of one decoder layer over `tokens` tokens in a step, but by compiled CPU kernels (`compiled_text_bytes`).

    A token holds 4·hidden (layer input, residual, normed input, output) + 3·intermediate (gate, up, product); or, in
    attention, 3·hidden + 4·q + 2·kv (q, its rotation in three pieces, k, v), whichever is more; + 2·head_dim (cosine
    and sine). An expert layer holds, for each chosen expert, max(2·width, hidden) + width with fused kernels and
    max(4·hidden, 4·width + hidden) in transformers.
    """
    q, kv = text.q_size / ranks, text.kv_size / min(ranks, text.kv_heads)
    wide = text.intermediate if text.moe is None or len(text.moe.layers) < text.layers else 0
    feed_forward = 3.0 * wide / ranks
    if text.moe is not None:
        width = text.moe.intermediate / ranks
        each = max(2 * width, text.hidden) + width if fused_experts else max(4 * text.hidden, 4 * width + text.hidden)
        shared = 3 * text.moe.shared_intermediate / ranks
        feed_forward = max(feed_forward, text.moe.per_token * each + shared)
    peak = max(4 * text.hidden + feed_forward, 3 * text.hidden + 4 * q + 2 * kv) + 2 * text.head_dim
    return tokens * peak * DTYPE_BYTES[dtype]


MIN_BLOCK = 48  # tokens a thread, from which on a layer is computed in blocks: kernels/cpu/kernels.py
BLOCK_TOKENS = 96  # of a block, at most: prompt_layer.h
BLOCK_COLUMNS = 128  # of gate and of up, that a block holds


def least_of_blocks(threads: int) -> int:
    """Tokens of the smallest step whose layers the compiled CPU kernels compute in blocks."""
    return MIN_BLOCK * threads


def compiled_text_bytes(text: TextShape, tokens: int, *, dtype: str, threads: int | None) -> float:
    """Peak of steps of up to `tokens` tokens in the decoder by compiled CPU kernels: 4 bytes an element, the weights
    being in `dtype`.

    From 48 tokens a thread on a layer is computed in blocks of up to 96 tokens. Each token of the step then holds
    hidden + 2·head_dim (cosine and sine) + 2·q + 2·kv (queries, keys, values and what attention makes of them), and
    each token of a thread's block hidden + 256 + intermediate (normed input; gate and up of some columns; product).
    With fewer tokens the operations follow each other, and each token holds 3·intermediate (gate, up, product) and
    the larger of hidden and q (normed input, then attention's output) + q + 2·kv. Memory is kept for the next step, so
    what one way leaves lies there beside the other's. Weights in bfloat16 have inputs rounded to it before a product,
    half an element for each: beside them, or in a block instead of the product of gate and up.

    `threads` None: as many as take the most, where nobody knows how many there are.
    """
    hidden, q, wide = text.hidden, text.q_size, text.intermediate
    rounded = 0.5 if dtype == "bfloat16" else 0.0
    heads = q + 2 * text.kv_size
    always = hidden + 2 * text.head_dim
    by_operation = heads + max(hidden, q) + 3 * wide + rounded * max(hidden, q, wide)
    of_block = hidden + 2 * BLOCK_COLUMNS + max(wide, rounded * (wide + max(hidden, q)))
    blocks = tokens // MIN_BLOCK if threads is None else threads
    peak = 0.0
    if threads is None or tokens < least_of_blocks(threads):
        peak = tokens * (always + by_operation)
    if 0 < least_of_blocks(blocks) <= tokens:
        few = least_of_blocks(blocks) - 1
        in_blocks = tokens * (always + heads + q) + min(tokens, BLOCK_TOKENS * blocks) * of_block
        peak = max(peak, in_blocks + few * by_operation)
    return 4 * peak


def native_start_bytes(
    text: TextShape, vision: VisionShape | None, *, tokens: int, seqs: int, patches: int, dtype: str, ranks: int = 1
) -> float:
    """What the native engine wants free on a card, beside weights and cache, before it loads: its own rough sum
    (`EngineSettings.step_bytes`), in which decoder, logits and a pass of `patches` patches are there at once.

    Bytes of (3·intermediate + 2·(q + 2·kv) + 5·hidden) a token and of (2·intermediate + 8·hidden) a patch, and two
    float32 copies of the logits beside those in `dtype`.
    """
    size = DTYPE_BYTES[dtype]
    each = (3 * text.intermediate + 2 * (text.q_size + 2 * text.kv_size)) / ranks + 5 * text.hidden
    pixels = patches * (2 * vision.intermediate / ranks + 8 * vision.hidden) if vision is not None else 0.0
    return size * (tokens * each + pixels) + seqs * text.vocab * (2 * 4 + size)


def rounded_patches_bytes(v: VisionShape, patches: int) -> float:
    """What compiled CPU kernels keep of a vision tower in bfloat16: the widest input of a product, rounded to it."""
    return 2.0 * patches * max(v.patch_elements, v.intermediate)


def logits_bytes(text: TextShape, rows: int, *, sort: bool = True) -> float:
    """`rows` sampled positions · vocabulary · bytes a logit (see SORT_BYTES); the head's shards are gathered first."""
    return float(rows * text.vocab * (SORT_BYTES if sort else 6))


def vision_activation_bytes(v: VisionShape, patches: int, *, dtype: str, in_place: bool = False) -> float:
    """Peak of one vision block over `patches` patches encoded together, pixels included.

    A patch holds its pixels (channels · frames · side²) + 4·head_dim (cosine and sine in float32) + the larger of
    17·hidden (queries and keys while rotated in float32) and 3·hidden + 3·intermediate (2· for Qwen3-VL's plain GELU);
    Qwen3-VL adds 2·hidden of position embeddings and what its deepstack mergers put out. Attention itself is counted
    as flash or sdpa: eager attention adds patches² · heads elements on top.

    `in_place` is the native engine's tower: queries and keys are rotated where they lie in float32 (7·hidden; 12· in
    a narrower dtype, which is widened first), quick GELU writes over its input (1·intermediate), and on a CPU memory
    lies ready for later results (2·hidden more).
    """
    plain_gelu = v.positions > 0
    rotated, inner, plain = 17, 2 if plain_gelu else 3, 3
    if in_place:
        rotated = 7 if dtype == "float32" else 12
        inner, plain = 3 if v.gated_mlp else 2 if plain_gelu else 1, 5
    block = max(rotated * v.hidden, plain * v.hidden + inner * v.intermediate)
    extra = 2 * v.hidden + v.deepstack * v.out_hidden / v.merge_size**2 if plain_gelu else 0
    per_patch = v.patch_elements + 4 * v.hidden / v.heads + block + extra + 32
    return patches * per_patch * DTYPE_BYTES[dtype]


def vision_output_bytes(v: VisionShape, tokens: int, *, dtype: str) -> float:
    """What waits for the decoder: tokens · decoder width, once more for each deepstack level."""
    return float(tokens * v.out_hidden * (1 + v.deepstack) * DTYPE_BYTES[dtype])
