"""How much of the machine a row used: bytes a second while decoding, operations a second while reading the prompt.

Both are least amounts, by the model's dimensions: what any engine must read and compute. So a share above 100 % means
that the ceiling was measured too low, and the rest to 100 % is what is left to gain at most.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from visavis.errors import ModelError
from visavis.plan.memory import kv_geometry
from visavis.plan.shape import DTYPE_BYTES, ModelShape, read_shape
from visavis.plan.weights import parameters, step_bytes

__all__ = ["decode_bytes", "describe", "prefill_flops"]


def describe(config: Mapping[str, Any]) -> dict[str, Any] | None:
    """The amounts by which rows are judged, from a model's config.json; None for a model of unknown dimensions.

    `step_bytes` by dtype: weights read for one step of one request. `kv_bytes_per_token` by dtype. `linear`: weights of
    the decoder's matrices one token passes; `head`: of the output matrix; `attention`: 4 · layers · width of the
    queries. `vision_linear`: weights each patch passes, `merger_linear` each visual token; `vision_attention`:
    4 · depth · width, 0 where attention is windowed.
    """
    try:
        shape = read_shape(config)
    except ModelError:
        return None
    text, vision = shape.text, shape.vision
    counts = _counts(shape)
    return {
        "step_bytes": {d: step_bytes(shape, dtype=d, quantization=shape.quantization) for d in DTYPE_BYTES},
        "kv_bytes_per_token": {d: kv_geometry(text, dtype=d).bytes_per_token for d in DTYPE_BYTES},
        "sparse": text.moe is not None,
        "linear": counts["linear"],
        "head": text.vocab * text.hidden,
        "attention": 4 * text.layers * text.q_size,
        "vision_linear": counts["vision tower"],
        "merger_linear": counts["merger"],
        "vision_attention": 4 * vision.depth * vision.hidden if vision and shape.model_type != "qwen2_5_vl" else 0,
        "patches_per_token": vision.merge_size**2 if vision else 0,
    }


def _counts(shape: ModelShape) -> dict[str, int]:
    moe = shape.text.moe
    counts = {"linear": 0, "vision tower": 0, "merger": 0}
    for p in parameters(shape):
        if len(p.shape) < 2:
            continue
        if p.part in ("attention", "mlp", "experts"):
            chosen = p.copies if moe is None or p.copies == 1 else moe.per_token
            counts["linear"] += p.elements // p.copies * chosen
        elif p.part in ("vision tower", "merger"):
            counts[p.part] += p.elements if p.module != "visual.pos_embed" else 0
    return counts


def decode_bytes(shape: Mapping[str, Any] | None, dtype: str, context: float, together: int) -> float | None:
    """Bytes one decoding step must read: the weights once, and of each of `together` requests the keys and values of
    `context` tokens. None where that is not known: another dtype, or experts chosen by several requests."""
    if shape is None or dtype not in shape["step_bytes"] or (shape["sparse"] and together > 1):
        return None
    return float(shape["step_bytes"][dtype]) + together * context * float(shape["kv_bytes_per_token"][dtype])


def prefill_flops(shape: Mapping[str, Any] | None, prompt_tokens: int, image_tokens: int) -> float | None:
    """Operations to read a prompt: 2 · tokens · weights, causal attention tokens² / 2 · 4 · layers · width, the output
    matrix once; with an image 2 · patches · weights of the tower, its attention, 2 · visual tokens · merger. None where
    the model's dimensions are not known."""
    if shape is None:
        return None
    patches = image_tokens * shape["patches_per_token"]
    text = 2.0 * prompt_tokens * shape["linear"] + shape["attention"] * prompt_tokens**2 / 2 + 2.0 * shape["head"]
    vision = 2.0 * patches * shape["vision_linear"] + float(shape["vision_attention"]) * patches**2
    # The merger's matrices take a token of merge² patches each.
    return float(text + vision + 2.0 * image_tokens * shape["merger_linear"])
