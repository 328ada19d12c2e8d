"""One engine's part of a plan: its case, what fits, the picture of its memory, its settings and command."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from visavis.plan.devices import Device
from visavis.plan.engines import EngineFacts, launch_command, refusal
from visavis.plan.fit import Case, Fit, fit, held_without_limit, is_compiled, load_shortage, overhead_why, requests_held
from visavis.plan.memory import KvGeometry, kv_geometry
from visavis.plan.proposals import propose
from visavis.plan.quantization import LOAD_TIME, Quantization
from visavis.plan.shape import ModelShape
from visavis.plan.types import EnginePlan, MemoryPart
from visavis.plan.units import format_bytes
from visavis.plan.weights import weight_bytes, weight_formats
from visavis.plan.workload import Workload

__all__ = ["BLOCK_SIZE", "Asked", "plan_engine", "weight_parts"]

BLOCK_SIZE = 16  # tokens, of vLLM and of the native engine


@dataclass(frozen=True, slots=True)
class Asked:
    """The question a plan answers. `quantization` is what the weights are in, `load_time` the same where the engine is
    to make it of 16-bit ones."""

    shape: ModelShape
    device: Device
    work: Workload
    ranks: int
    dtype: str
    kv_dtype: str
    quantization: Quantization | None
    load_time: Quantization | None
    model: str
    path: str

    def held_by(self, facts: EngineFacts) -> Quantization | None:
        """What this engine holds `quantization` as on this device; None: `dtype`. The compiled CPU kernels take int8
        for embedding and head too, and hold 4 bits as the numbers they stand for."""
        found = self.quantization
        if found is None:
            return None
        found = facts.formats.get(found.name, found)
        if not is_compiled(facts, self.device, self.dtype):
            return found
        return replace(found, embedding=True, lm_head=True) if found.name == LOAD_TIME["int8"].name else None

    def _load_bytes(self, facts: EngineFacts) -> float:
        """The compiled CPU kernels make int8 of a whole model in `dtype`."""
        if self.held_by(facts) is None or not is_compiled(facts, self.device, self.dtype):
            return 0.0
        return sum(weight_bytes(self.shape, dtype=self.dtype).values())

    def case(self, facts: EngineFacts) -> Case:
        """The question as it is for this engine."""
        # transformers lays whole layers over the cards: weights and cache are divided, a step's activations are not.
        spread = self.ranks if facts.sized_by == "batch" else 1
        ranks = 1 if spread > 1 else self.ranks
        weights = weight_bytes(self.shape, dtype=self.dtype, quantization=self.held_by(facts), ranks=ranks)
        kv = kv_geometry(self.shape.text, dtype=self.kv_dtype, ranks=ranks, block_size=BLOCK_SIZE)
        return Case(
            shape=self.shape,
            work=self.work,
            device=self.device,
            ranks=ranks,
            dtype=self.dtype,
            weight_bytes=sum(weights.values()) / spread,
            load_bytes=self._load_bytes(facts),
            kv=KvGeometry(math.ceil(kv.bytes_per_token / spread), BLOCK_SIZE),
            spread=spread,
        )


def plan_engine(asked: Asked, facts: EngineFacts, *, dtype_asked: str, kv_asked: str) -> EnginePlan:
    """What fits this engine. `dtype_asked` and `kv_asked` are as they were given, `auto` where nobody said."""
    refused = refusal(
        facts,
        asked.shape,
        asked.quantization,
        load_time=asked.load_time is not None,
        device=asked.device.kind,
        ranks=asked.ranks,
        kv_dtype=asked.kv_dtype if kv_asked != "auto" else None,
    )
    if refused:
        return EnginePlan(facts.name, False, refused)
    found = _plan_as_it_is(asked, facts, dtype_asked=dtype_asked, kv_asked=kv_asked)
    if found.fits or not _may_choose(asked, facts, dtype_asked):
        return found
    lacking = []
    for name in facts.quantization:
        smaller = _plan_as_it_is(
            replace(asked, quantization=LOAD_TIME[name]), facts, dtype_asked=dtype_asked, kv_asked=kv_asked
        )
        if smaller.fits:
            short = f"{asked.dtype} weights lack {format_bytes(found.shortage_bytes)}"
            return replace(smaller, made=name, verdict=f"{smaller.verdict}, loaded {name} by itself: {short}")
        lacking.append(f"{name} weights lack {format_bytes(smaller.shortage_bytes)}")
    return replace(found, verdict=f"{found.verdict}; {', '.join(lacking)}")


def _may_choose(asked: Asked, facts: EngineFacts, dtype_asked: str) -> bool:
    """Whether the engine makes weights that do not fit smaller by itself: nobody said what they are to be in."""
    return facts.makes_smaller and asked.device.kind == "cuda" and asked.quantization is None and dtype_asked == "auto"


def _plan_as_it_is(asked: Asked, facts: EngineFacts, *, dtype_asked: str, kv_asked: str) -> EnginePlan:
    """With the weights in the format that is asked for."""
    case = asked.case(facts)
    found = fit(case, facts)
    held = requests_held(case, found.kv_bytes)
    loading = load_shortage(case, facts)
    needed = case.kv.blocks_for(case.work.tokens) * case.kv.bytes_per_block
    blocks = case.kv.blocks(found.kv_bytes)
    plan = EnginePlan(
        engine=facts.name,
        fits=held >= 1 and not loading,
        verdict=_verdict(case, facts, found, held, needed) + _widened(asked, facts),
        parts=_parts(asked, case, facts, found),
        activations=found.activations,
        kv_blocks=blocks,
        kv_tokens=blocks * case.kv.block_size,
        requests_at_once=held,
        shortage_bytes=max(loading, needed - found.kv_bytes) if held < 1 else loading,
        load_shortage_bytes=loading,
    )
    if not plan.fits:
        return plan
    proposals = propose(
        case,
        facts,
        found,
        quantization=asked.quantization,
        dtype=asked.dtype if _must_say(facts, asked, dtype_asked) else None,
        kv_dtype=asked.kv_dtype if kv_asked != "auto" else None,
    )
    load_time = asked.load_time.name if asked.load_time else None
    work = asked.work
    image = "screen.png" if work.images else ""
    launch = launch_command(
        facts, asked.model, asked.path, proposals, quantization=load_time, max_tokens=work.max_tokens, image=image
    )
    return replace(plan, proposals=proposals, launch=launch)


def _must_say(facts: EngineFacts, asked: Asked, dtype_asked: str) -> bool:
    """Whether the engine would take another dtype by itself: vLLM and SGLang take the checkpoint's, and make float16 of
    float32; visavis's own commands take what `auto` means here."""
    if facts.name in ("native", "hf"):
        return dtype_asked != "auto"
    return asked.dtype != asked.shape.dtype or asked.dtype == "float32"


def _widened(asked: Asked, facts: EngineFacts) -> str:
    """What is to be said of weights that the engine holds as the numbers they stand for."""
    if asked.quantization is None or asked.held_by(facts) is not None:
        return ""
    return f"; {asked.quantization.name} weights become {asked.dtype} here: neither smaller nor faster"


def _verdict(case: Case, facts: EngineFacts, found: Fit, held: int, needed: float) -> str:
    loading = load_shortage(case, facts)
    if loading and (held >= 1 or loading > needed - found.kv_bytes):
        whole = f"the weights, {format_bytes(case.load_bytes)} in {case.dtype} until all are there"
        return f"does not fit: {format_bytes(loading)} are missing to load {whole}"
    if held < 1:
        missing = format_bytes(needed - found.kv_bytes)
        return f"does not fit: {missing} are missing for one request of {case.work.tokens} tokens"
    wanted = case.work.concurrency
    if wanted is not None and found.seqs < wanted:
        return f"fits {found.seqs} of {wanted} requests at once; the others wait"
    said = f"fits {found.seqs} request{'s' if found.seqs != 1 else ''} of {case.work.tokens} tokens at once"
    if wanted is None and (most := held_without_limit(case, facts)) > found.seqs:
        said += f" (default limit {found.seqs}; memory would hold {most})"
    return said


def _parts(asked: Asked, case: Case, facts: EngineFacts, found: Fit) -> tuple[MemoryPart, ...]:
    peak = max(found.activations, key=lambda part: part.bytes)
    peaks = ", ".join(f"{part.name} {format_bytes(part.bytes)}" for part in found.activations)
    activations = f"not at once, so the largest of {peaks}: {peak.name}"
    if found.waiting_bytes:
        activations += f"; and {format_bytes(found.waiting_bytes)} that wait through it"
    blocks = case.kv.blocks(found.kv_bytes)
    kv_why = f"{blocks} blocks of {BLOCK_SIZE} tokens × {format_bytes(case.kv.bytes_per_token)}"
    parts = [
        MemoryPart("other programs", asked.device.used_bytes, "in use now", "overhead"),
        MemoryPart("overhead", found.outside_bytes, overhead_why(case, facts), "overhead"),
        MemoryPart(
            "engine's own",
            found.inside_bytes,
            "buffers outside the allocator; with several ranks NCCL, and what the engine does not divide",
            "overhead",
        ),
        *weight_parts(asked, facts, total=case.weight_bytes),
        MemoryPart("activations", found.activation_bytes, activations, "activations"),
        MemoryPart("KV cache", max(0.0, found.kv_bytes), kv_why, "kv"),
    ]
    free = asked.device.total_bytes - sum(part.bytes for part in parts)
    unplanned = "not planned for"
    if facts.makes_smaller and asked.device.kind == "cuda":
        unplanned += "; part of it is what native wants free when it decides which weights fit"
    parts.append(MemoryPart("free", free, unplanned, "free"))
    return tuple(part for part in parts if part.bytes > 0)


def weight_parts(asked: Asked, facts: EngineFacts, total: float | None = None) -> tuple[MemoryPart, ...]:
    """Weights by part on one rank, as the engine holds them; scaled to `total` where whole layers are spread over the
    cards."""
    held = asked.held_by(facts)
    found = weight_bytes(asked.shape, dtype=asked.dtype, quantization=held, ranks=asked.ranks)
    scale = total / sum(found.values()) if total is not None else 1.0
    formats = weight_formats(asked.shape, dtype=asked.dtype, quantization=held)
    split = f", 1/{asked.ranks} of it" if asked.ranks > 1 else ""
    return tuple(
        MemoryPart(
            part,
            amount * scale,
            "tied: the embedding's weights" if amount == 0 else f"{formats[part]}{split if part != 'norms' else ''}",
            "weights",
        )
        for part, amount in found.items()
    )
