"""What fits one engine on one device: budget, activations, KV cache, and how many requests that holds."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from visavis.plan.devices import Device
from visavis.plan.engines import CONTEXT_BYTES, NCCL_BYTES, EngineFacts, slack_bytes
from visavis.plan.memory import (
    SORT_BYTES,
    KvGeometry,
    compiled_text_bytes,
    least_of_blocks,
    logits_bytes,
    native_start_bytes,
    rounded_patches_bytes,
    text_activation_bytes,
    vision_activation_bytes,
    vision_output_bytes,
)
from visavis.plan.shape import DTYPE_BYTES, ModelShape
from visavis.plan.types import MemoryPart
from visavis.plan.units import GIB, format_bytes
from visavis.plan.workload import Workload

__all__ = [
    "BATCHED_TOKENS",
    "MAX_SHARE",
    "Case",
    "Fit",
    "fit",
    "held_without_limit",
    "is_compiled",
    "load_shortage",
    "overhead_why",
    "proposed_length",
    "requests_held",
    "vllm_kv_bytes",
]

BATCHED_TOKENS = (512, 1024, 2048, 4096, 8192, 16384)
"""Steps of max_num_batched_tokens. From about 2048 on the matrix units are busy; more only shortens long prompts."""
PREFERRED_TOKENS = 2048
ACTIVATION_SHARE = 0.15
"""Of what is left beside the weights, the most that a bigger step may take."""
MAX_SHARE = 0.95
LENGTH_STEP = 256
NATIVE_SHARE = 0.97
"""Of the free memory, what native plans with when it starts on a card (`SHARE` of engine/quantization/fit.py)."""
CPU_PROCESS_BYTES = round(0.6 * GIB)
"""Python, torch and its libraries in one process."""
CPU_SHARE = 0.9
DEFAULT_CPU_SEQS = 8
MANY_SEQS = 4096
"""Nobody asks how many more than these would fit."""


@dataclass(frozen=True, slots=True)
class Case:
    """One question: this model in this format on this device for this work."""

    shape: ModelShape
    work: Workload
    device: Device
    ranks: int
    dtype: str
    weight_bytes: float  # of one rank
    kv: KvGeometry
    load_bytes: float = 0.0  # of the weights until all are loaded, where they are made smaller then
    spread: int = 1  # cards that whole layers are laid over, one card working after another


@dataclass(frozen=True, slots=True)
class Fit:
    """`share` is the proposed gpu_memory_utilization or mem_fraction_static where the engine has one."""

    batched_tokens: int
    seqs: int
    encoder_images: int  # encoded at once
    activations: tuple[MemoryPart, ...]
    waiting_bytes: float  # encoder output that stays through the step
    outside_bytes: float  # what the engine does not count: context, graphs, slack
    inside_bytes: float  # its own buffers, which it does count
    share: float | None
    kv_bytes: float  # may be negative: missing

    @property
    def activation_bytes(self) -> float:
        return max(part.bytes for part in self.activations) + self.waiting_bytes


def vllm_kv_bytes(total: float, share: float, *, weights: float, other: float, activations: float) -> float:
    """vLLM's own sum: total · gpu_memory_utilization − weights − what is outside torch − activation peak (bytes)."""
    return total * share - weights - other - activations


def fit(case: Case, facts: EngineFacts) -> Fit:
    """The best settings for the case, whether or not they hold a request (then `kv_bytes` is too small)."""
    if facts.sized_by == "batch":
        return _most(_wanted(case, facts), lambda batch: _batch(case, facts, batch), case)
    tokens = _batched_tokens(case, facts)
    # Each running request needs its one token in every step, and memory to be sampled: more requests leave less cache.
    return _most(min(_wanted(case, facts), tokens), lambda seqs: _paged(case, facts, tokens, seqs), case)


def held_without_limit(case: Case, facts: EngineFacts) -> int:
    """Requests that memory would hold at once, up to MANY_SEQS, in `fit`'s steps. Each needs its one token of a
    step."""
    if facts.sized_by == "batch":
        return _most(MANY_SEQS, lambda batch: _batch(case, facts, batch), case).seqs
    tokens = _batched_tokens(case, facts)
    return _most(min(MANY_SEQS, tokens), lambda seqs: _paged(case, facts, tokens, seqs), case).seqs


def _wanted(case: Case, facts: EngineFacts) -> int:
    """As many as were asked for, else the default limit."""
    return case.work.concurrency or (facts.default_seqs if case.device.kind != "cpu" else DEFAULT_CPU_SEQS)


def _most(wanted: int, try_: Callable[[int], Fit], case: Case) -> Fit:
    """`try_` with the most requests, up to `wanted`, whose KV cache holds them all; with one where none does."""
    low, high = 1, wanted
    while low < high:
        middle = (low + high + 1) // 2
        if requests_held(case, try_(middle).kv_bytes) >= middle:
            low = middle
        else:
            high = middle - 1
    return try_(low)


def proposed_length(case: Case) -> int:
    """max_model_len: what one request needs, rounded up, within the model's context."""
    return min(math.ceil(case.work.tokens / LENGTH_STEP) * LENGTH_STEP, case.shape.text.max_positions)


def requests_held(case: Case, kv_bytes: float) -> int:
    """Whole requests of the workload that `kv_bytes` hold."""
    return case.kv.blocks(kv_bytes) // case.kv.blocks_for(case.work.tokens)


def load_shortage(case: Case, facts: EngineFacts) -> float:
    """Bytes that are missing while the weights load."""
    return max(0.0, case.load_bytes - _usable(case, facts))


def _batched_tokens(case: Case, facts: EngineFacts) -> int:
    """The smallest step that takes a whole prompt, from 2048 on, while its activations stay a small part of what the
    weights leave."""
    room = _usable(case, facts) - case.weight_bytes
    wanted = max(PREFERRED_TOKENS, case.work.prompt_tokens)
    best = BATCHED_TOKENS[0]
    for tokens in BATCHED_TOKENS:
        cost = _text_step(case, facts, tokens).bytes
        if cost > ACTIVATION_SHARE * room and tokens > BATCHED_TOKENS[0]:
            break
        best = tokens
        if tokens >= wanted:
            break
    return best


def _paged(case: Case, facts: EngineFacts, tokens: int, seqs: int) -> Fit:
    images, peaks, waiting = _activations(case, facts, tokens, seqs, seqs)
    peak = max(part.bytes for part in peaks) + waiting
    outside, inside = _outside(case, facts), _inside(case, facts)
    usable = _usable(case, facts)
    share: float | None = None
    total = case.device.total_bytes
    # One request of the proposed max_model_len must fit too, or the engines do not start.
    blocks = max(seqs * case.kv.blocks_for(case.work.tokens), case.kv.blocks_for(proposed_length(case)))
    if case.device.kind == "cpu":
        # Memory of a machine is not there to be filled.
        kv = min(usable - case.weight_bytes - peak, blocks * case.kv.bytes_per_block)
    elif facts.sized_by == "share":
        share = _floor(min(MAX_SHARE, usable / total))
        kv = vllm_kv_bytes(total, share, weights=case.weight_bytes, other=inside, activations=peak)
    elif facts.sized_by == "static share":
        share = _floor(min(MAX_SHARE, (usable - inside - peak) / total))
        kv = total * share - case.weight_bytes
    else:
        # native makes no more than all running requests can use; one more block each for what is being written
        kv = min(usable - inside - case.weight_bytes - peak, (blocks + seqs) * case.kv.bytes_per_block)
        if facts.makes_smaller:
            kv = min(kv, _room_at_start(case, facts, tokens, seqs) - inside - case.weight_bytes)
    return Fit(tokens, seqs, images, peaks, waiting, outside, inside, share, kv)


def _room_at_start(case: Case, facts: EngineFacts, tokens: int, seqs: int) -> float:
    """What native leaves for weights and cache when it decides which weights fit."""
    patches = facts.patches_per_pass or 0
    step = native_start_bytes(
        case.shape.text, case.shape.vision,
        tokens=tokens, seqs=seqs, patches=patches, dtype=case.dtype, ranks=case.ranks,
    )  # fmt: skip
    return NATIVE_SHARE * (case.device.free_bytes - CONTEXT_BYTES) - step


def _batch(case: Case, facts: EngineFacts, batch: int) -> Fit:
    """transformers: a padded batch prefilled in one go; the cache grows with every token."""
    images, peaks, waiting = _activations(case, facts, batch * case.work.prompt_tokens, batch, batch)
    peak = max(part.bytes for part in peaks) + waiting
    # A growing cache is copied layer by layer: old and new of one layer are there together.
    growing = 1 + 1 / case.shape.text.layers
    room = (_usable(case, facts) - case.weight_bytes - peak) / growing
    needed = batch * case.kv.blocks_for(case.work.tokens) * case.kv.bytes_per_block
    kv = min(room, needed)
    return Fit(
        batched_tokens=batch * case.work.prompt_tokens,
        seqs=batch,
        encoder_images=images,
        activations=peaks,
        waiting_bytes=waiting + max(0.0, kv) * (growing - 1),
        outside_bytes=_outside(case, facts),
        inside_bytes=0.0,
        share=None,
        kv_bytes=kv,
    )


class _Activations(NamedTuple):
    images: int  # encoded at once
    peaks: tuple[MemoryPart, ...]
    waiting: float


def _activations(case: Case, facts: EngineFacts, tokens: int, rows: int, requests: int) -> _Activations:
    """The peaks of a step that computes `tokens` tokens and samples `rows` of them."""
    text, dtype = case.shape.text, "float32" if is_compiled(facts, case.device, case.dtype) else case.dtype
    peaks = [
        _text_step(case, facts, tokens),
        MemoryPart(
            "sampling",
            logits_bytes(text, rows),
            f"{rows} rows × {text.vocab} logits × {SORT_BYTES} B (float32 copy, sort and probabilities)",
            "activations",
        ),
    ]
    vision, largest = case.shape.vision, case.work.largest_image
    if vision is None or largest is None:
        return _Activations(0, tuple(peaks), 0.0)
    if facts.sized_by == "batch":
        images = len(case.work.images) * requests
        patches = sum(image.patches for image in case.work.images) * requests
    else:
        budget = max(tokens, largest.tokens)
        images = max(1, min(budget // largest.tokens, len(case.work.images) * requests))
        if facts.patches_per_pass is not None:
            images = max(1, min(images, facts.patches_per_pass // largest.patches))
        patches = images * largest.patches
    count = f"{images} image{'s' if images > 1 else ''} at once = {patches} patches"
    encoder = vision_activation_bytes(vision, patches, dtype=dtype, in_place=facts.vision_in_place)
    why = f"{count} × (pixels, rotary and the larger of a block's attention and MLP) × {dtype}"
    peaks.append(MemoryPart("vision encoder", encoder, why, "activations"))
    waiting = vision_output_bytes(vision, patches // vision.merge_size**2, dtype=dtype)
    if dtype != case.dtype:
        waiting += rounded_patches_bytes(vision, patches)
    return _Activations(images, tuple(peaks), waiting)


def is_compiled(facts: EngineFacts, device: Device, dtype: str) -> bool:
    """Whether the engine computes with its compiled CPU kernels, as long as the machine can build them and they take
    the model's widths; float16 has plain torch."""
    return facts.compiled_on_cpu and device.kind == "cpu" and dtype in ("float32", "bfloat16")


def _text_step(case: Case, facts: EngineFacts, tokens: int) -> MemoryPart:
    """The decoder's activations in a step of `tokens` tokens. Compiled CPU kernels take as many threads as there are
    cores, or fewer, and then need less memory. Not so where a step has too few tokens for the blocks of that many
    threads: for it, and where nobody knows the cores, the number of threads that takes the most is planned."""
    text = case.shape.text
    if is_compiled(facts, case.device, case.dtype):
        threads = case.device.cores
        if threads is None or least_of_blocks(threads) > tokens:
            threads = None
            few, on = tokens, "the number of threads for which it is most"
        else:
            few, on = least_of_blocks(threads) - 1, f"up to {threads} thread{'s' if threads > 1 else ''}"
        found = compiled_text_bytes(text, tokens, dtype=case.dtype, threads=threads)
        why = (
            f"{tokens} tokens a step × (hidden, queries, keys, values, attention, 2·head_dim) + up to {few} × "
            f"(3·intermediate, attention) + a block a thread, × float32, on {on}"
        )
        return MemoryPart("text step", found, why, "activations")
    found = text_activation_bytes(text, tokens, dtype=case.dtype, ranks=case.ranks, fused_experts=facts.fused_experts)
    fed = "max(3·intermediate" if text.moe is None else "max(what its experts hold"
    why = f"{tokens} tokens a step × (4·hidden + {fed}, attention) + 2·head_dim) × {case.dtype}"
    return MemoryPart("text step", found, why, "activations")


def _outside(case: Case, facts: EngineFacts) -> float:
    if case.device.kind == "cpu":
        return CPU_PROCESS_BYTES + (1 - CPU_SHARE) * case.device.free_bytes
    return CONTEXT_BYTES + facts.graph_bytes + slack_bytes(case.device.total_bytes)


def _inside(case: Case, facts: EngineFacts) -> float:
    if case.device.kind == "cpu":
        return 0.0
    if case.ranks == 1 or facts.sized_by == "batch":
        return facts.inner_bytes
    text = case.shape.text
    embedding = text.vocab * text.hidden * DTYPE_BYTES[case.dtype] * (1 - 1 / case.ranks)  # beside its share
    return facts.inner_bytes + NCCL_BYTES + (embedding if facts.whole_embedding else 0)


def _usable(case: Case, facts: EngineFacts) -> float:
    """What is left for the engine's own accounting."""
    return case.device.free_bytes - _outside(case, facts)


def _floor(share: float) -> float:
    """Two decimals, never up."""
    return max(0.0, math.floor(share * 100) / 100)


def overhead_why(case: Case, facts: EngineFacts) -> str:
    """What the outside bytes are made of."""
    if case.device.kind == "cpu":
        left = f"{1 - CPU_SHARE:.0%} of {format_bytes(case.device.free_bytes)} free memory left alone"
        return f"process (Python, torch, libraries) {format_bytes(CPU_PROCESS_BYTES)}, and {left}"
    graphs = f", {facts.graph_why} {format_bytes(facts.graph_bytes)}" if facts.graph_bytes else ""
    slack = format_bytes(slack_bytes(case.device.total_bytes))
    return f"context and libraries {format_bytes(CONTEXT_BYTES)}{graphs}, {slack} slack"
