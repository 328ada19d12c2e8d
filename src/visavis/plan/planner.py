"""`plan`: a config, a device and a piece of work in; everything that fits, and why, out. Pure, and without torch."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from visavis.errors import OptionError, shorten
from visavis.families.resize import PixelBounds
from visavis.plan.advice import advise
from visavis.plan.devices import Device
from visavis.plan.engine_plan import BLOCK_SIZE, Asked, plan_engine, weight_parts
from visavis.plan.engines import ENGINES, EngineFacts, refusal
from visavis.plan.fit import fit, load_shortage, requests_held
from visavis.plan.memory import KV_DTYPE_BYTES, kv_geometry
from visavis.plan.quantization import Quantization, by_name
from visavis.plan.shape import DTYPE_BYTES, ModelShape, read_shape
from visavis.plan.types import Plan
from visavis.plan.weights import active_parameters, count_parameters
from visavis.plan.workload import Workload, workload

__all__ = ["plan", "plan_shape"]

BUNDLED = "tiny-screen"


def plan(
    config: Mapping[str, Any],
    device: Device,
    *,
    model: str = "",
    path: str = "",
    ranks: int = 1,
    dtype: str = "auto",
    quantization: str | None = None,
    kv_dtype: str = "auto",
    images: Sequence[tuple[int, int]] | None = None,
    prompt_tokens: int | None = None,
    max_tokens: int | None = None,
    concurrency: int | None = None,
    bounds: PixelBounds | None = None,
    context: int | None = None,
    engines: Sequence[str] = tuple(ENGINES),
    where: str = "config.json",
) -> Plan:
    """Plans a model from its parsed config.json.

    `model` is what people call it ("" for the bundled one), `path` the folder that other engines' commands need then.
    `images` are (height, width) of originals (None: one full-HD screen for vision models); `bounds` the folder's pixel
    bounds and `context` its length in tokens where they are known better than from the config. `quantization` plans as
    if the engine quantised while loading. Raises ModelError, OptionError, MediaError or ContextLengthError.
    """
    load_time = by_name(quantization)
    shape = read_shape({**config, "quantization_config": None} if load_time else config, where=where)
    if load_time and (declared := config.get("quantization_config")):
        method = declared.get("quant_method") if isinstance(declared, Mapping) else declared
        if str(method) != load_time.name.split("-")[0]:
            raise OptionError(
                f"--quantization {load_time.name}: the checkpoint is quantised already ({shorten(method)})"
            )
    if context is not None:
        shape = replace(shape, text=replace(shape.text, max_positions=context))
    work = workload(
        shape,
        images=images,
        prompt_tokens=prompt_tokens,
        max_tokens=max_tokens,
        concurrency=concurrency,
        bounds=bounds,
    )
    return plan_shape(
        shape,
        device,
        work,
        model=model,
        path=path,
        ranks=ranks,
        dtype=dtype,
        load_time=load_time,
        kv_dtype=kv_dtype,
        engines=engines,
    )


def plan_shape(
    shape: ModelShape,
    device: Device,
    work: Workload,
    *,
    model: str = "",
    path: str = "",
    ranks: int = 1,
    dtype: str = "auto",
    load_time: Quantization | None = None,
    kv_dtype: str = "auto",
    engines: Sequence[str] = tuple(ENGINES),
) -> Plan:
    """As `plan`, from dimensions."""
    _check_ranks(shape, ranks)
    chosen = _dtype(dtype, shape, device)
    kv_name = _kv_dtype(kv_dtype, chosen)
    quantization = load_time or shape.quantization
    asked = Asked(shape, device, work, ranks, chosen, kv_name, quantization, load_time, model, path)
    facts = [_known(name) for name in engines]
    planned = tuple(plan_engine(asked, one, dtype_asked=dtype, kv_asked=kv_dtype) for one in facts)
    first = next((one for one, found in zip(facts, planned, strict=True) if found.parts), facts[0])
    kv = kv_geometry(shape.text, dtype=kv_name, ranks=ranks, block_size=BLOCK_SIZE)
    result = Plan(
        model=model or BUNDLED,
        model_type=shape.model_type,
        parameters=count_parameters(shape),
        active_parameters=active_parameters(shape),
        dtype=chosen,
        quantization=quantization.name if quantization else None,
        kv_dtype=kv_name,
        device=device,
        tensor_parallel_size=ranks,
        context=shape.text.max_positions,
        work=work,
        weights=weight_parts(asked, first),
        kv_bytes_per_token=kv.bytes_per_token,
        kv_bytes_per_block=kv.bytes_per_block,
        block_size=kv.block_size,
        engines=planned,
        advice=(),
    )
    return replace(result, advice=advise(result, shape, asked.held_by(first), _Question(asked, facts).holds))


@dataclass(frozen=True, slots=True)
class _Question:
    """Bytes of the weights with other cards or in another format, where one request would then fit an engine that runs
    that; None where it fits none."""

    asked: Asked
    facts: Sequence[EngineFacts]

    def holds(self, ranks: int, quantization: Quantization | None, dtype: str) -> float | None:
        kv_dtype = dtype if self.asked.kv_dtype == self.asked.dtype else self.asked.kv_dtype
        other = replace(self.asked, ranks=ranks, quantization=quantization, dtype=dtype, kv_dtype=kv_dtype)
        able = (one for one in self.facts if _could_run(other, one) and _holds_one(other, one))
        return next((other.case(one).weight_bytes for one in able), None)


def _could_run(asked: Asked, facts: EngineFacts) -> bool:
    """Whether the engine takes this model on so many cards, its weights quantised by itself or in a checkpoint."""
    wanted = asked.quantization
    if wanted is not None and wanted.name not in facts.quantization:
        stored = {wanted.method} if not wanted.name.startswith("int") else {"awq", "gptq", "compressed-tensors"}
        if not stored & facts.checkpoints:
            return False
    kind = asked.device.kind
    return not refusal(facts, asked.shape, None, load_time=False, device=kind, ranks=asked.ranks, kv_dtype=None)


def _holds_one(asked: Asked, facts: EngineFacts) -> bool:
    case = asked.case(facts)
    return requests_held(case, fit(case, facts).kv_bytes) >= 1 and not load_shortage(case, facts)


def _known(name: str) -> EngineFacts:
    if name not in ENGINES:
        near = difflib.get_close_matches(name.lower(), ENGINES, n=1)
        hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(ENGINES)}"
        raise OptionError(f"--backends: nothing is planned for {shorten(name)}; {hint}")
    return ENGINES[name]


def _check_ranks(shape: ModelShape, ranks: int) -> None:
    heads = [shape.text.heads, *([shape.vision.heads] if shape.vision else [])]
    if ranks >= 1 and all(count % ranks == 0 for count in heads):
        return
    fine = [n for n in range(1, min(heads) + 1) if all(count % n == 0 for count in heads)]
    what = f"{heads[0]} attention heads" + (f" and {heads[1]} of the vision tower" if len(heads) > 1 else "")
    raise OptionError(
        f"--tensor-parallel-size {ranks} does not divide the {what}; possible: {', '.join(map(str, fine))}"
    )


def _dtype(name: str, shape: ModelShape, device: Device) -> str:
    """`auto` is the checkpoint's on a GPU and float32 on a CPU, as everywhere in visavis."""
    spelled = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "half": "float16"}.get(
        name.lower(), name.lower()
    )
    if spelled == "auto":
        return "float32" if device.kind == "cpu" else shape.dtype
    if spelled not in DTYPE_BYTES:
        near = difflib.get_close_matches(spelled, DTYPE_BYTES, n=1)
        hint = f"did you mean {near[0]}?" if near else f"known: auto, {', '.join(DTYPE_BYTES)}"
        raise OptionError(f"--dtype {shorten(name)} is not known; {hint}")
    return spelled


def _kv_dtype(name: str, dtype: str) -> str:
    spelled = name.lower()
    if spelled == "auto":
        return dtype
    if spelled.startswith("fp8"):
        return "fp8"
    if spelled not in KV_DTYPE_BYTES:
        raise OptionError(f"--kv-cache-dtype {shorten(name)} is not known; known: auto, {', '.join(KV_DTYPE_BYTES)}")
    return spelled
