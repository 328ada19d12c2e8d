"""What planning returns: plain data, ready for JSON, for people, and for error messages that name a value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from visavis.plan.devices import Device
from visavis.plan.workload import Workload

__all__ = ["Advice", "EnginePlan", "MemoryPart", "PartKind", "Plan", "Proposal"]

PartKind = Literal["weights", "activations", "overhead", "kv", "free"]


@dataclass(frozen=True, slots=True)
class MemoryPart:
    """`bytes` of one device's memory, and the formula or source they come from."""

    name: str
    bytes: float
    why: str
    kind: PartKind


@dataclass(frozen=True, slots=True)
class Proposal:
    """One setting. `name` is visavis's own (a field of EngineOptions where there is one), `flag` and `argument` are how
    the engine's command spells it: a flag without argument is a switch, one that ends in `=` an environment variable.
    """

    name: str
    value: Any
    why: str
    flag: str = ""
    argument: str = ""


@dataclass(frozen=True, slots=True)
class Advice:
    """`brief` is what a short answer says of it; "" where only the long one does."""

    topic: str
    text: str
    brief: str = ""


@dataclass(frozen=True, slots=True)
class EnginePlan:
    """One engine's share of the plan. Memory is of one device. Empty proposals and launch where nothing fits."""

    engine: str
    fits: bool  # at least one request of the workload
    verdict: str
    parts: tuple[MemoryPart, ...] = ()  # everything on the device, the rest as "free"
    activations: tuple[MemoryPart, ...] = ()  # the peaks that do not happen at once; the largest counts in `parts`
    kv_blocks: int = 0
    kv_tokens: int = 0
    requests_at_once: int = 0  # whole requests of the workload that the KV cache holds
    shortage_bytes: float = 0.0  # what is missing for one request
    load_shortage_bytes: float = 0.0  # what is missing while the weights load
    made: str = ""  # what the engine makes of the weights by itself, as they do not fit otherwise: int8, int4
    proposals: tuple[Proposal, ...] = ()
    launch: str = ""

    def value(self, name: str) -> Any:
        """The proposed value of that name, or None."""
        return next((p.value for p in self.proposals if p.name == name), None)


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything `visavis plan` says."""

    model: str
    model_type: str
    parameters: int
    active_parameters: int  # that one token passes; fewer than `parameters` with experts
    dtype: str
    quantization: str | None
    kv_dtype: str
    device: Device
    tensor_parallel_size: int
    context: int  # the model's
    work: Workload
    weights: tuple[MemoryPart, ...]  # of one rank, as the first engine holds them that can; made smaller by none
    kv_bytes_per_token: int  # of one rank
    kv_bytes_per_block: int
    block_size: int
    engines: tuple[EnginePlan, ...]
    advice: tuple[Advice, ...]

    @property
    def weight_bytes(self) -> float:
        return sum(part.bytes for part in self.weights)

    @property
    def fits(self) -> bool:
        return any(engine.fits for engine in self.engines)

    def engine(self, name: str) -> EnginePlan | None:
        return next((e for e in self.engines if e.engine == name), None)
