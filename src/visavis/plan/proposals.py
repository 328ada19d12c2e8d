"""Each setting an engine should get, with one sentence why."""

from __future__ import annotations

import json
import math

from visavis.plan.engines import EngineFacts
from visavis.plan.fit import LENGTH_STEP, MAX_SHARE, Case, Fit, proposed_length, requests_held
from visavis.plan.quantization import Quantization
from visavis.plan.types import Proposal
from visavis.plan.units import GIB, MIB, format_bytes

__all__ = ["propose", "splits_badly"]

VISION_POSITION_FAMILIES = ("qwen3_vl", "qwen3_vl_moe")


def propose(
    case: Case,
    facts: EngineFacts,
    found: Fit,
    *,
    quantization: Quantization | None,
    dtype: str | None,
    kv_dtype: str | None,
) -> tuple[Proposal, ...]:
    """Settings of a case that fits. `dtype` and `kv_dtype` only where they are not what the engine would take."""
    proposals = [
        *_parallel(case, facts, quantization),
        *_formats(facts, dtype, kv_dtype),
        _length(case, facts, found),
        *_steps(case, facts, found),
        _seqs(case, facts, found),
        *_memory(case, facts, found),
        *_media(case, facts),
    ]
    return tuple(proposals)


def _make(facts: EngineFacts, name: str, value: object, why: str, argument: str | None = None) -> Proposal:
    return Proposal(name, value, why, facts.flags.get(name, ""), str(value) if argument is None else argument)


def _parallel(case: Case, facts: EngineFacts, quantization: Quantization | None) -> list[Proposal]:
    if case.spread > 1:
        why = f"spreads the layers over {case.spread} cards; memory adds up, the cards work one after another"
        return [_make(facts, "device_map", "auto", why, "device_map=auto")]
    if case.ranks < 2:
        return []
    why = f"each of {case.ranks} cards holds 1/{case.ranks} of the matrices"
    if case.ranks > case.shape.text.kv_heads:
        why += f"; the {case.shape.text.kv_heads} KV heads are repeated, so the cache is not divided further"
    proposals = [_make(facts, "tensor_parallel_size", case.ranks, why)]
    moe = case.shape.text.moe
    if moe is not None and splits_badly(moe.intermediate, case.ranks, quantization):
        assert quantization is not None
        why = (
            f"an expert's width {moe.intermediate} / {case.ranks} = {moe.intermediate / case.ranks:g} does not divide "
            f"into the checkpoint's blocks of {quantization.rows}; whole experts on each card do (vLLM issue 25292)"
        )
        argument = str(case.ranks) if facts.name == "sglang" else ""
        proposals.append(_make(facts, "enable_expert_parallel", True, why, argument))
    return proposals


def splits_badly(width: int, ranks: int, quantization: Quantization | None) -> bool:
    """Whether a block-quantised matrix of `width` rows cannot be cut into `ranks` pieces of whole blocks."""
    return quantization is not None and quantization.rows > 1 and width % (ranks * quantization.rows) != 0


def _formats(facts: EngineFacts, dtype: str | None, kv_dtype: str | None) -> list[Proposal]:
    proposals = []
    if dtype is not None:
        proposals.append(
            _make(facts, "dtype", dtype, "the dtype planned for; left alone this engine could take another")
        )
    if kv_dtype is not None:
        argument = "fp8_e4m3" if facts.name == "sglang" and kv_dtype == "fp8" else kv_dtype
        proposals.append(
            _make(facts, "kv_cache_dtype", kv_dtype, "as asked: halves the cache of 16-bit values", argument)
        )
    return proposals


def _length(case: Case, facts: EngineFacts, found: Fit) -> Proposal:
    work, context = case.work, case.shape.text.max_positions
    value = proposed_length(case)
    why = f"one request: {work.prompt_tokens} prompt"
    if work.image_tokens:
        why += f" ({work.image_tokens} of images)"
    why += f" + {work.max_tokens} answer = {work.tokens} tokens"
    if value != work.tokens:
        why += f", rounded up to {LENGTH_STEP}s"
    most = min(context, case.kv.blocks(found.kv_bytes) * case.kv.block_size)
    if facts.sized_by != "batch":
        value = min(value, most)
    if facts.sized_by in ("share", "static share") and case.device.kind != "cpu":
        why += f"; the cache would hold one of up to {most} (the model's context: {context})"
    else:
        why += f"; the model's context is {context}"
    return _make(facts, "max_model_len", value, why)


def _steps(case: Case, facts: EngineFacts, found: Fit) -> list[Proposal]:
    if facts.sized_by == "batch":
        return []
    prompt, tokens = case.work.prompt_tokens, found.batched_tokens
    steps = math.ceil(prompt / tokens)
    step = next(part for part in found.activations if part.name == "text step")
    how = "a whole prompt in one step" if steps == 1 else f"a prompt of {prompt} takes {steps} steps"
    why = (
        f"{how}, while others go on answering; a step of this size needs {format_bytes(step.bytes)} of activations "
        "in the decoder, and more would only take memory from the cache"
    )
    return [_make(facts, "max_num_batched_tokens", tokens, why)]


def _seqs(case: Case, facts: EngineFacts, found: Fit) -> Proposal:
    held, wanted = requests_held(case, found.kv_bytes), case.work.concurrency
    if facts.sized_by == "batch":
        why = f"a batch of {found.seqs} is padded to one length and prefilled at once"
    else:
        why = f"the cache holds {held} such requests"
    if wanted is not None and found.seqs < wanted:
        why += f": {found.seqs} of the {wanted} asked for run at once, the others wait; nothing fails"
    elif wanted is not None:
        why += f", {wanted} were asked for"
    elif found.seqs < held:
        why += f"; {found.seqs} is enough to keep the device busy and bounds the memory of sampling"
    return _make(facts, "max_num_seqs", found.seqs, why)


def _memory(case: Case, facts: EngineFacts, found: Fit) -> list[Proposal]:
    kv = format_bytes(found.kv_bytes)
    if case.device.kind == "cpu" and facts.name == "vllm":
        gib = max(1, math.ceil(found.kv_bytes / GIB))
        why = f"GiB of KV cache on a CPU: the requests above need {kv}"
        return [Proposal("kv_cache_gib", gib, why, "VLLM_CPU_KVCACHE_SPACE=", str(gib))]
    if facts.sized_by == "bytes":
        value = math.ceil(found.kv_bytes / MIB) * MIB
        why = f"what the requests above use at full length: {kv}"
        return [_make(facts, "kv_cache_bytes", value, why, f"{value // MIB}MiB")]
    if found.share is None:
        return []
    total = format_bytes(case.device.total_bytes)
    used = f", other programs {format_bytes(case.device.used_bytes)}" if case.device.used_bytes > 0.01 * GIB else ""
    left = f"{format_bytes(found.outside_bytes)} stay outside (context, CUDA graphs, slack{used})"
    if facts.sized_by == "share":
        why = f"of {total}: {left}; vLLM fills the rest with KV cache ({kv})"
        if found.share == MAX_SHARE:
            why = f"the most that is safe of {total}: vLLM fills it with KV cache ({kv})"
    else:
        peak = format_bytes(found.activation_bytes)
        why = f"weights and KV cache ({kv}) alone, of {total}: activations ({peak}) and {left}"
    return [_make(facts, "gpu_memory_utilization", found.share, why, f"{found.share:.2f}")]


def _media(case: Case, facts: EngineFacts) -> list[Proposal]:
    if case.shape.vision is None:
        return []
    proposals = []
    count = len(case.work.images)
    if "limit_per_prompt" in facts.flags:
        limits = {"image": count, "video": 0}
        why = (
            f"{count} image{'s' if count != 1 else ''} and no video a prompt; memory for a worst-case video is not "
            "reserved. Images of earlier turns count too"
        )
        proposals.append(_make(facts, "limit_per_prompt", limits, why, json.dumps(limits)))
    largest, bounds = case.work.largest_image, case.work.bounds
    if largest is None or bounds is None:
        return proposals
    area = largest.resized[0] * largest.resized[1]
    if area < 0.9 * bounds.max_pixels:
        why = (
            f"the largest image asked for, {largest.resized[1]}×{largest.resized[0]} after the resize; the model's own "
            f"bound is {bounds.max_pixels}, and larger images than this are shrunk to it"
        )
        proposals.append(_make(facts, "max_pixels", area, why, _pixel_argument(case, facts, area)))
    return proposals


def _pixel_argument(case: Case, facts: EngineFacts, area: int) -> str:
    assert case.work.bounds is not None
    low = min(case.work.bounds.min_pixels, area)
    if facts.name == "vllm":
        if case.shape.model_type in VISION_POSITION_FAMILIES:
            return json.dumps({"size": {"shortest_edge": low, "longest_edge": area}})
        return json.dumps({"max_pixels": area})
    if facts.name == "sglang":
        return json.dumps({"image": {"max_pixels": area}})
    return str(area)
