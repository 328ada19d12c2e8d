"""What people ask about a plan, answered with its own numbers."""

from __future__ import annotations

from collections.abc import Callable

from visavis.plan.memory import vision_activation_bytes
from visavis.plan.proposals import splits_badly
from visavis.plan.quantization import LOAD_TIME, Quantization
from visavis.plan.shape import ModelShape
from visavis.plan.speed import NATIVE_FOUR_BIT, Speed, speed_of
from visavis.plan.types import Advice, EnginePlan, Plan
from visavis.plan.units import GIB, format_bytes
from visavis.plan.weights import step_bytes

__all__ = ["advise"]

Holds = Callable[[int, Quantization | None, str], float | None]
"""(ranks, weight format, dtype) → bytes of the weights where one request of the work would fit, else None."""

OFFLOAD_BANDWIDTH = 25e9
"""Bytes a second over PCIe 4.0 ×16 from host memory, in practice."""


def advise(plan: Plan, shape: ModelShape, quantization: Quantization | None, holds: Holds) -> tuple[Advice, ...]:
    """In the order people need it: what to do when it does not fit, the two lengths, then speed. `quantization` is what
    the weights of `plan.weights` are held in."""
    found = [
        *_not_fitting(plan, shape, quantization, holds),
        *_lengths(plan),
        *_default_length(plan),
        *_worst_media(plan, shape),
        *_blocks(plan, shape, quantization),
        *_dtype(plan, shape),
    ]
    if plan.device.kind == "cuda":
        speed = speed_of(plan.device)
        found += [*_parallel(plan, shape, quantization, speed), *_four_bit(plan, shape, quantization, speed)]
    return tuple(found)


def _not_fitting(plan: Plan, shape: ModelShape, quantization: Quantization | None, holds: Holds) -> list[Advice]:
    refused = [e for e in plan.engines if not e.fits and not e.parts]
    short = [e for e in plan.engines if not e.fits and e.parts]
    if any(e.fits and not e.made for e in plan.engines) or not short:
        return [_urgent("cannot run", "; ".join(e.verdict for e in refused))] if not plan.fits and refused else []
    weights = format_bytes(plan.weight_bytes)
    missing = min(e.shortage_bytes for e in short)
    what = f"{quantization.name if quantization else plan.dtype} weights of {weights}"
    where = f"on {plan.device.name}: {format_bytes(missing)} are missing. "
    if all(e.load_shortage_bytes for e in short):
        text = f"{what} cannot be loaded {where}"
    else:
        text = f"{what} leave no room for one request {where}"
    ways = []
    if plan.device.kind == "cpu" and plan.dtype == "float32" and (size := holds(1, quantization, "bfloat16")):
        made = f"{quantization.name} weights made of bfloat16 ones" if quantization else "bfloat16 weights"
        ways.append(f"{made} ({format_bytes(size)}, --dtype bfloat16)")
    if quantization is None:
        for name in ("fp8", "int8", "int4"):
            if (size := holds(plan.tensor_parallel_size, LOAD_TIME[name], plan.dtype)) is not None:
                ways.append(f"{name} weights ({format_bytes(size)}{', also as AWQ or GPTQ' if name == 'int4' else ''})")
    heads = [shape.text.heads, *([shape.vision.heads] if shape.vision else [])]
    if plan.device.kind == "cuda":
        for ranks in (2, 4, 8, 16):
            if (
                ranks > plan.tensor_parallel_size
                and all(h % ranks == 0 for h in heads)
                and holds(ranks, quantization, plan.dtype) is not None
            ):
                ways.append(f"{ranks} such cards (--tensor-parallel-size {ranks})")
                break
    offloading = {"vllm": f"vllm --cpu-offload-gb {-(-missing // GIB):.0f}", "hf": "hf device_map=auto"}
    if plan.device.kind == "cuda" and (named := [offloading[e.engine] for e in short if e.engine in offloading]):
        seconds = missing / OFFLOAD_BANDWIDTH
        ways.append(
            f"{format_bytes(missing)} of weights kept in host memory ({', '.join(named)}): every step reads them over "
            f"PCIe, {1000 * seconds:.0f} ms more a token"
        )
    if any(_room(plan, engine) > 0 and not engine.load_shortage_bytes for engine in short):
        ways.append("smaller images, a shorter prompt or a shorter answer: the weights alone do fit")
    if not ways:
        names = ", ".join(e.engine for e in short)
        larger = "a larger card" if plan.device.kind == "cuda" else "a machine with more memory"
        return [_urgent("does not fit", f"{text}Nothing {names} can do makes it fit: {larger}, or other --backends.")]
    only = "Only a quantised, split or offloaded run fits: " if quantization is None else "What fits: "
    return [_urgent("does not fit", f"{text}{only}{'; '.join(ways)}.")]


def _urgent(topic: str, text: str) -> Advice:
    """What a short answer says in full."""
    return Advice(topic, text, text)


def _room(plan: Plan, engine: EnginePlan) -> float:
    """What weights and overhead leave of the device."""
    return plan.device.total_bytes - sum(p.bytes for p in engine.parts if p.kind in ("weights", "overhead"))


def _lengths(plan: Plan) -> list[Advice]:
    engine = next((e for e in plan.engines if e.fits and e.value("max_num_batched_tokens")), None)
    if engine is None:
        return []
    length, step = engine.value("max_model_len"), engine.value("max_num_batched_tokens")
    text = (
        f"max_model_len ({length}) is what one request may hold, prompt and answer together. max_num_batched_tokens "
        f"({step}) is what one step computes, over all requests. Long prompts are computed in chunks (always, in vLLM "
        "V1), so the second may be smaller than the first; it need not cover one request, nor all of them. Neither "
        "reserves cache: blocks are taken as tokens come, so a large max_model_len wastes nothing, but vLLM does not "
        "start unless one request of that length fits."
    )
    brief = (
        f"what one request may hold ({length} tokens), and what one step computes over all requests ({step}); the "
        "second may be smaller than the first."
    )
    return [Advice("max_model_len and max_num_batched_tokens", text, brief)]


def _default_length(plan: Plan) -> list[Advice]:
    engine = plan.engine("vllm")
    if engine is None or not engine.fits or plan.device.kind == "cpu" or engine.kv_tokens >= plan.context:
        return []
    needed = plan.context * plan.kv_bytes_per_token
    text = (
        f"left alone, vLLM takes the model's context of {plan.context} tokens, which needs {format_bytes(needed)} of "
        f"cache for one request where {format_bytes(engine.kv_blocks * plan.kv_bytes_per_block)} are there: it would "
        "not start. "
        f"The largest that starts is {engine.kv_tokens}."
    )
    return [_urgent("the default length", text)]


def _worst_media(plan: Plan, shape: ModelShape) -> list[Advice]:
    largest, bounds = plan.work.largest_image, plan.work.bounds
    if shape.vision is None or largest is None or bounds is None:
        return []
    worst_tokens = bounds.max_pixels // shape.vision.cell**2
    if worst_tokens <= largest.tokens * 1.1:
        return []
    worst = vision_activation_bytes(shape.vision, worst_tokens * shape.vision.merge_size**2, dtype=plan.dtype)
    mine = vision_activation_bytes(shape.vision, largest.patches, dtype=plan.dtype)
    text = (
        f"without a pixel limit, engines that measure at start encode an image of the model's bound, {worst_tokens} "
        f"tokens and {format_bytes(worst)} of activations, and keep that memory from the cache; the images here need "
        f"{largest.tokens} tokens and {format_bytes(mine)} each."
    )
    return [Advice("worst-case images", text)]


def _blocks(plan: Plan, shape: ModelShape, quantization: Quantization | None) -> list[Advice]:
    width = shape.text.intermediate
    dense = shape.text.moe is None or len(shape.text.moe.layers) < shape.text.layers
    if not dense or not splits_badly(width, plan.tensor_parallel_size, quantization) or plan.tensor_parallel_size == 1:
        return []
    assert quantization is not None
    ranks = plan.tensor_parallel_size
    text = (
        f"the MLP's width {width} / {ranks} = {width / ranks:g} does not divide into the checkpoint's blocks of "
        f"{quantization.rows}: vLLM and SGLang refuse it; use fewer cards"
    )
    return [_urgent("blocks of the weights", text)]


def _dtype(plan: Plan, shape: ModelShape) -> list[Advice]:
    if plan.dtype == "float16" and shape.dtype == "bfloat16":
        text = "this model was trained in bfloat16; float16 can overflow to NaN or '!!!!' answers: prefer bfloat16"
        return [_urgent("float16", text)]
    capability = plan.device.compute_capability
    if capability is None:
        return []
    major, minor = capability
    if plan.dtype == "bfloat16" and capability < (8, 0):
        text = (
            f"compute capability {major}.{minor} has no bfloat16 arithmetic (8.0 and up have): vLLM refuses it; "
            "--dtype float16 runs, with its smaller range"
        )
        return [_urgent("bfloat16 on this card", text)]
    if plan.quantization and plan.quantization.startswith("fp8") and capability < (8, 9):
        text = (
            f"compute capability {major}.{minor} has no fp8 matrix units (8.9 and up have): weights are widened on "
            "the fly, which saves memory and decoding time, not prompt time"
        )
        return [_urgent("fp8 on this card", text)]
    return []


def _parallel(plan: Plan, shape: ModelShape, quantization: Quantization | None, speed: Speed) -> list[Advice]:
    heads = [shape.text.heads, *([shape.vision.heads] if shape.vision else [])]
    ranks = plan.tensor_parallel_size if plan.tensor_parallel_size > 1 else 2
    if any(count % ranks for count in heads):
        return []
    weights = step_bytes(shape, dtype=plan.dtype, quantization=quantization)
    sums = 2 * shape.text.layers + 1
    one, several = weights / speed.bandwidth, weights / ranks / speed.bandwidth + sums * speed.all_reduce
    arithmetic = (
        f"one request reads {format_bytes(weights)} of weights a token, {1000 * one:.1f} ms at "
        f"{speed.bandwidth_words}; {ranks} cards read 1/{ranks} each but exchange {sums} sums of "
        f"{1e6 * speed.all_reduce:.0f} µs {speed.link_words}, together {1000 * several:.1f} ms"
    )
    if several >= one:
        brief = f"{ranks} cards will be slower than one for a single stream"
        seen = "; document 002 saw 122 tokens/s on two RTX 4090 against 164 on one with Qwen2.5-1.5B"
    else:
        brief, seen = f"{ranks} cards can be up to {one / several:.1f}× as fast for a single stream", ""
    text = f"{brief}: {arithmetic}{seen}. It pays for memory first, for speed only then."
    return [Advice(f"tensor_parallel_size={ranks}", text, f"{brief}.")]


def _four_bit(plan: Plan, shape: ModelShape, quantization: Quantization | None, speed: Speed) -> list[Advice]:
    """What 4-bit weights would do, engine by engine, whose kernels differ. Nothing of native where it has weights of 8
    or 4 bits already."""
    is_four = quantization is not None and quantization.bits == 4
    if quantization is not None and not is_four:
        return []
    planned = {engine.engine: engine for engine in plan.engines if engine.parts}
    found = [_marlin(plan, shape, quantization, speed)] if {"vllm", "sglang"} & set(planned) else []
    if "native" in planned and quantization is None and not planned["native"].made:
        figures = ", ".join(f"{ratio:.2f}× as fast at {rows}" for rows, ratio in NATIVE_FOUR_BIT)
        said = f"native's own kernels: {figures} requests at once (Qwen2.5-7B int4 beside bfloat16, on an H200)."
        found.append((said, said))
    if not found:
        return []
    text, brief = (" ".join(parts) for parts in zip(*found, strict=True))
    return [Advice("AWQ and GPTQ", text, brief)]


def _marlin(plan: Plan, shape: ModelShape, quantization: Quantization | None, speed: Speed) -> tuple[str, str]:
    """(text, brief) of the kernels that vLLM and SGLang have."""
    four = quantization or LOAD_TIME["int4"]
    wide = step_bytes(shape, dtype=plan.dtype)
    narrow = step_bytes(shape, dtype=plan.dtype, quantization=four)
    most = f"at most {wide / narrow:.1f}× as fast for one stream"
    text = (
        f"vLLM's and SGLang's Marlin kernels read {format_bytes(narrow)} of 4-bit weights a token instead of "
        f"{format_bytes(wide)}: {most}. From about {speed.four_bit_even} requests at once, and while prompts are "
        "computed, the arithmetic decides, and they will be slower than 16-bit ones, because they are widened first: "
        "a published test of these kernels has 3.1× at 1 row, 1.5× at 64, 1.0× at 128, 0.7× at 256 and 0.6× at 4000 "
        "(vLLM pull request 2497)"
    )
    if plan.work.concurrency is not None and plan.work.concurrency >= speed.four_bit_even:
        text += f"; {plan.work.concurrency} requests at once are in that range"
    brief = (
        f"{most} with vLLM's and SGLang's Marlin kernels, slower than 16-bit weights from about "
        f"{speed.four_bit_even} requests at once."
    )
    return f"{text}.", brief
