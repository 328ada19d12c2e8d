"""Every parameter of a model from its dimensions, and the bytes they take by part, format and rank."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from visavis.plan.quantization import Quantization
from visavis.plan.shape import DTYPE_BYTES, ModelShape, TextShape, VisionShape
from visavis.plan.units import format_count

__all__ = [
    "PARTS",
    "Parameter",
    "Part",
    "Shard",
    "active_parameters",
    "count_parameters",
    "parameters",
    "step_bytes",
    "weight_bytes",
    "weight_formats",
]

Part = Literal["embedding", "attention", "mlp", "experts", "norms", "vision tower", "merger", "lm_head"]
PARTS: tuple[Part, ...] = ("embedding", "attention", "mlp", "experts", "norms", "vision tower", "merger", "lm_head")

Shard = Literal["none", "split", "kv"]
"""How tensor parallelism divides a weight: not at all, by the ranks, or by the ranks but at most by the KV heads."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """`copies` tensors of one shape. A linear weight is (out, in); everything else is only counted."""

    module: str  # e.g. `layers.0.self_attn.q_proj`, without the prefixes that differ between generations
    part: Part
    shape: tuple[int, ...]
    linear: bool = False  # a matrix that weight quantisation may touch
    copies: int = 1
    shard: Shard = "none"

    @property
    def elements(self) -> int:
        count = self.copies
        for side in self.shape:
            count *= side
        return count


def parameters(shape: ModelShape) -> Iterator[Parameter]:
    """All parameters, a tied lm_head left out, as transformers counts them."""
    text = shape.text
    yield Parameter("embed_tokens", "embedding", (text.vocab, text.hidden), shard="split")
    for i in range(text.layers):
        yield from _layer(text, i)
    yield Parameter("norm", "norms", (text.hidden,))
    if shape.vision is not None:
        yield from _vision(shape.model_type, shape.vision)
    if not text.tied:
        yield Parameter("lm_head", "lm_head", (text.vocab, text.hidden), linear=True, shard="split")


def _linear(
    module: str,
    part: Part,
    out: int,
    inputs: int,
    *,
    bias: bool,
    shard: Shard = "split",
    bias_shard: Shard | None = None,
) -> Iterator[Parameter]:
    yield Parameter(module, part, (out, inputs), linear=True, shard=shard)
    if bias:
        yield Parameter(module, part, (out,), shard=bias_shard or shard)


def _layer(text: TextShape, i: int) -> Iterator[Parameter]:
    at = f"layers.{i}"
    for norm in ("input_layernorm", "post_attention_layernorm"):
        yield Parameter(f"{at}.{norm}", "norms", (text.hidden,))
    attention = f"{at}.self_attn"
    yield from _linear(f"{attention}.q_proj", "attention", text.q_size, text.hidden, bias=text.qkv_bias)
    for name in ("k_proj", "v_proj"):
        yield from _linear(
            f"{attention}.{name}", "attention", text.kv_size, text.hidden, bias=text.qkv_bias, shard="kv"
        )
    # The bias of a row-parallel matrix is added once, so every rank holds all of it.
    yield from _linear(
        f"{attention}.o_proj", "attention", text.hidden, text.q_size, bias=text.o_bias, bias_shard="none"
    )
    if text.qk_norm:
        for norm in ("q_norm", "k_norm"):
            yield Parameter(f"{attention}.{norm}", "norms", (text.head_dim,))
    if text.moe is not None and i in text.moe.layers:
        yield from _sparse_mlp(text, f"{at}.mlp")
    else:
        yield from _dense_mlp(text, f"{at}.mlp", text.intermediate, "mlp")


def _dense_mlp(text: TextShape, at: str, width: int, part: Part) -> Iterator[Parameter]:
    for name in ("gate_proj", "up_proj"):
        yield from _linear(f"{at}.{name}", part, width, text.hidden, bias=text.mlp_bias)
    yield from _linear(f"{at}.down_proj", part, text.hidden, width, bias=text.mlp_bias, bias_shard="none")


def _sparse_mlp(text: TextShape, at: str) -> Iterator[Parameter]:
    moe = text.moe
    assert moe is not None
    yield Parameter(f"{at}.gate", "experts", (moe.experts, text.hidden))
    for name in ("gate_proj", "up_proj"):
        yield Parameter(
            f"{at}.experts.{name}", "experts", (moe.intermediate, text.hidden), True, moe.experts, shard="split"
        )
    yield Parameter(
        f"{at}.experts.down_proj", "experts", (text.hidden, moe.intermediate), True, moe.experts, shard="split"
    )
    if moe.shared_intermediate:
        yield from _dense_mlp(text, f"{at}.shared_expert", moe.shared_intermediate, "experts")
        yield Parameter(f"{at}.shared_expert_gate", "experts", (1, text.hidden))


def _vision(kind: str, v: VisionShape) -> Iterator[Parameter]:
    tower: Part = "vision tower"
    yield Parameter("visual.patch_embed.proj", tower, (v.hidden, v.patch_elements))
    if v.patch_bias:
        yield Parameter("visual.patch_embed.proj", tower, (v.hidden,))
    if v.positions:
        yield Parameter("visual.pos_embed", tower, (v.positions, v.hidden))
    up: tuple[str, ...]
    if v.gated_mlp:
        up, down = ("gate_proj", "up_proj"), "down_proj"
    elif kind == "qwen2_vl":
        up, down = ("fc1",), "fc2"
    else:
        up, down = ("linear_fc1",), "linear_fc2"
    for i in range(v.depth):
        at = f"visual.blocks.{i}"
        yield from _vision_norm(v, f"{at}.norm1", v.hidden, tower)
        yield from _vision_norm(v, f"{at}.norm2", v.hidden, tower)
        yield from _linear(f"{at}.attn.qkv", tower, 3 * v.hidden, v.hidden, bias=True)
        yield from _linear(f"{at}.attn.proj", tower, v.hidden, v.hidden, bias=True, bias_shard="none")
        for name in up:
            yield from _linear(f"{at}.mlp.{name}", tower, v.intermediate, v.hidden, bias=True)
        yield from _linear(f"{at}.mlp.{down}", tower, v.hidden, v.intermediate, bias=True, bias_shard="none")
    yield from _merger(kind, v, "visual.merger", v.hidden)
    for i in range(v.deepstack):
        # These normalise after the patches of a token lie side by side.
        yield from _merger(kind, v, f"visual.deepstack_merger_list.{i}", v.hidden * v.merge_size**2)


def _vision_norm(v: VisionShape, at: str, width: int, part: Part) -> Iterator[Parameter]:
    for _ in range(2 if v.layer_norm else 1):  # weight, and bias
        yield Parameter(at, part, (width,))


def _merger(kind: str, v: VisionShape, at: str, norm_width: int) -> Iterator[Parameter]:
    joined = v.hidden * v.merge_size**2
    first, second = ("linear_fc1", "linear_fc2") if kind.startswith("qwen3") else ("mlp.0", "mlp.2")
    yield from _vision_norm(v, f"{at}.norm", norm_width, "merger")
    yield from _linear(f"{at}.{first}", "merger", joined, joined, bias=True)
    yield from _linear(f"{at}.{second}", "merger", v.out_hidden, joined, bias=True, bias_shard="none")


def count_parameters(shape: ModelShape) -> int:
    """Parameters of the whole model, a tied head once."""
    return sum(p.elements for p in parameters(shape))


def active_parameters(shape: ModelShape) -> int:
    """Parameters that one text token passes: all of them, but of the experts only the chosen ones."""
    moe = shape.text.moe
    chosen = moe.per_token if moe is not None else 1
    return sum(p.elements // p.copies * (chosen if p.copies > 1 else 1) for p in parameters(shape))


def step_bytes(shape: ModelShape, *, dtype: str, quantization: Quantization | None = None) -> float:
    """Bytes of weights read to generate one token for one request: no vision tower, of the experts the chosen ones, the
    embedding only where it is the head too."""
    moe = shape.text.moe
    found = weight_bytes(shape, dtype=dtype, quantization=quantization)
    if moe is not None and "experts" in found:
        found["experts"] *= moe.per_token / moe.experts
    skipped = {"vision tower", "merger"} | (set() if shape.text.tied else {"embedding"})
    return sum(amount for part, amount in found.items() if part not in skipped)


def weight_formats(shape: ModelShape, *, dtype: str, quantization: Quantization | None = None) -> dict[Part, str]:
    """What each part's weights are stored as, in words: `1.31 B in bfloat16`."""
    return dict(_weight_formats(shape, dtype, quantization))


@lru_cache(maxsize=64)
def _weight_formats(shape: ModelShape, dtype: str, quantization: Quantization | None) -> tuple[tuple[Part, str], ...]:
    counts: dict[Part, dict[str, int]] = {}
    for p in parameters(shape):
        quantized = quantization is not None and _quantized(p, quantization)
        name = quantization.name if quantized and quantization else dtype
        part = counts.setdefault(p.part, {})
        part[name] = part.get(name, 0) + p.elements
    return tuple(
        (part, ", ".join(f"{format_count(n)} in {name}" for name, n in sorted(found.items(), key=lambda f: -f[1])))
        for part, found in counts.items()
    )


def weight_bytes(
    shape: ModelShape, *, dtype: str, quantization: Quantization | None = None, ranks: int = 1
) -> dict[Part, float]:
    """Bytes by part on one of `ranks` tensor-parallel devices.

    `quantization` None: every weight in `dtype` (a key of DTYPE_BYTES). A tied lm_head takes nothing; it appears
    with 0 bytes. Parts the model does not have are left out.
    """
    return dict(_weight_bytes(shape, dtype, quantization, ranks))


@lru_cache(maxsize=64)
def _weight_bytes(
    shape: ModelShape, dtype: str, quantization: Quantization | None, ranks: int
) -> tuple[tuple[Part, float], ...]:
    """Counted once a format: a plan asks for the same numbers for every engine."""
    size = DTYPE_BYTES[dtype]
    totals: dict[Part, float] = {}
    for p in parameters(shape):
        if quantization is not None and _quantized(p, quantization):
            amount = quantization.linear_bytes(*p.shape) * p.copies
        else:
            amount = float(p.elements * size)
        totals[p.part] = totals.get(p.part, 0.0) + amount / _divisor(p.shard, ranks, shape.text.kv_heads)
    if shape.text.tied:
        totals["lm_head"] = 0.0
    return tuple((part, totals[part]) for part in PARTS if part in totals)


def _quantized(p: Parameter, quantization: Quantization) -> bool:
    if p.part == "embedding":
        return quantization.embedding
    if not p.linear or quantization.keeps(p.module):
        return False
    if p.part == "lm_head":
        return quantization.lm_head
    return p.part in ("attention", "mlp", "experts") or quantization.vision


def _divisor(shard: Shard, ranks: int, kv_heads: int) -> int:
    if shard == "none":
        return 1
    return min(ranks, kv_heads) if shard == "kv" else ranks
