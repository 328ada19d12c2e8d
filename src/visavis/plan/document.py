"""A plan as a JSON document, and as one line for an error message."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from visavis.plan.types import EnginePlan, MemoryPart, Plan
from visavis.plan.words import name_of

__all__ = ["SCHEMA", "as_dict", "in_one_line"]

SCHEMA = "visavis.plan/1"


def as_dict(plan: Plan) -> dict[str, Any]:
    """JSON-ready; amounts are whole bytes, sizes [height, width]."""
    work = plan.work
    return {
        "schema": SCHEMA,
        "model": plan.model,
        "model_type": plan.model_type,
        "parameters": plan.parameters,
        "active_parameters": plan.active_parameters,
        "dtype": plan.dtype,
        "quantization": plan.quantization,
        "kv_dtype": plan.kv_dtype,
        "context": plan.context,
        "device": asdict(plan.device),
        "tensor_parallel_size": plan.tensor_parallel_size,
        "workload": {
            "text_tokens": work.text_tokens,
            "image_tokens": work.image_tokens,
            "prompt_tokens": work.prompt_tokens,
            "max_tokens": work.max_tokens,
            "concurrency": work.concurrency,
            "images": [asdict(image) for image in work.images],
            "assumed": list(work.notes),
        },
        "weights": [_part(part) for part in plan.weights],
        "weight_bytes": round(plan.weight_bytes),
        "kv_bytes_per_token": plan.kv_bytes_per_token,
        "kv_bytes_per_block": plan.kv_bytes_per_block,
        "block_size": plan.block_size,
        "fits": plan.fits,
        "engines": [_engine(engine) for engine in plan.engines],
        "advice": [asdict(advice) for advice in plan.advice],
    }


def _part(part: MemoryPart) -> dict[str, Any]:
    return {"name": part.name, "kind": part.kind, "bytes": round(part.bytes), "why": part.why}


def _engine(engine: EnginePlan) -> dict[str, Any]:
    return {
        "engine": engine.engine,
        "fits": engine.fits,
        "verdict": engine.verdict,
        "memory": [_part(part) for part in engine.parts],
        "activations": [_part(part) for part in engine.activations],
        "kv_blocks": engine.kv_blocks,
        "kv_tokens": engine.kv_tokens,
        "requests_at_once": engine.requests_at_once,
        "shortage_bytes": round(engine.shortage_bytes),
        "load_shortage_bytes": round(engine.load_shortage_bytes),
        "made": engine.made or None,
        "settings": [asdict(proposal) for proposal in engine.proposals],
        "launch": engine.launch,
    }


def in_one_line(plan: Plan, engine: str, *, flags: bool = False) -> str:
    """What would fit, for the end of an engine's start-up error: `max_model_len 3840, max_num_seqs 32, … would fit`;
    with `flags` as a command line says it: `--max-model-len 3840 --max-num-seqs 32 … would fit`.

    Says what does fit at all where this engine does not.
    """
    found = plan.engine(engine)
    if found is None:
        return ""
    if found.fits:
        said = [p for p in found.proposals if p.name not in ("limit_per_prompt", "device_map")]
        if flags:
            return f"{' '.join(f'{name_of(p)} {p.argument}'.strip() for p in said if p.flag)} would fit"
        return f"{', '.join(f'{p.name} {p.argument or p.value}' for p in said)} would fit (visavis plan shows why)"
    advice = next((a.text for a in plan.advice if a.topic in ("does not fit", "cannot run")), found.verdict)
    return advice
