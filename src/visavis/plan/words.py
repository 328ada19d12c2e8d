"""A plan's pieces in words, the same for a terminal and a page."""

from __future__ import annotations

from collections.abc import Sequence

from visavis.plan.picture import letter_of
from visavis.plan.types import EnginePlan, MemoryPart, Plan, Proposal
from visavis.plan.units import format_bytes, format_count

__all__ = ["all_parts", "budget_rows", "headings", "name_of", "value_of", "weight_tables"]


def headings(plan: Plan) -> list[tuple[str, str]]:
    """What is planned, on what, for what work, and what was assumed, because nobody said it."""
    active = f", {format_count(plan.active_parameters)} active" if plan.active_parameters < plan.parameters else ""
    formats = f"{plan.dtype}, weights {plan.quantization}" if plan.quantization else plan.dtype
    device = plan.device
    count = f"{plan.tensor_parallel_size} × " if plan.tensor_parallel_size > 1 else ""
    used = f", {format_bytes(device.used_bytes)} in use" if device.used_bytes else ""
    work = plan.work
    sizes = ", ".join(
        f"{i.original[1]}×{i.original[0]} → {i.resized[1]}×{i.resized[0]} = {i.tokens} tokens" for i in work.images
    )
    images = f" + images {sizes}" if sizes else ""
    at_once = f", {work.concurrency} at once" if work.concurrency else ""
    found = [
        (plan.model, f"{plan.model_type}, {format_count(plan.parameters)} parameters{active}, {formats}"),
        ("on", f"{count}{device.name}: {format_bytes(device.total_bytes)} for programs{used} ({device.source})"),
        ("for", f"{work.text_tokens} text tokens{images} + {work.max_tokens} of answer{at_once}"),
    ]
    if work.notes:
        found.append(("assumed", "; ".join(work.notes)))
    return found


def weight_tables(plan: Plan) -> list[tuple[str, Sequence[MemoryPart]]]:
    """A caption and the weights by part: once, or for each of the engines that hold them differently."""
    one = " of one card" if plan.tensor_parallel_size > 1 else ""
    groups: dict[tuple[str, ...], list[EnginePlan]] = {}
    for engine in plan.engines:
        if engine.parts:
            groups.setdefault(tuple(part.why for part in _weights_of(engine)), []).append(engine)
    if len(groups) <= 1 and not any(engine.made for engine in plan.engines):
        return [(f"weights{one}", plan.weights)]
    return [
        (f"weights{one}, {', '.join(engine.engine for engine in engines)}", _weights_of(engines[0]))
        for engines in groups.values()
    ]


def _weights_of(engine: EnginePlan) -> list[MemoryPart]:
    return [part for part in engine.parts if part.kind == "weights"]


def budget_rows(engines: Sequence[EnginePlan]) -> list[tuple[str, set[str]]]:
    """Row labels and the parts they add up: weights together, the rest one by one."""
    weights = [part for part in all_parts(engines) if part.kind == "weights"]
    letters = "".join(dict.fromkeys(letter_of(part) for part in weights))
    rows = [(f"{letters} weights", {part.name for part in weights})]
    for part in all_parts(engines):
        if part.kind != "weights":
            rows.append((f"{letter_of(part)} {part.name}", {part.name}))
    return rows


def all_parts(engines: Sequence[EnginePlan]) -> list[MemoryPart]:
    """Each part once, in the order of the memory."""
    seen: dict[str, MemoryPart] = {}
    for engine in engines:
        for part in engine.parts:
            seen.setdefault(part.name, part)
    return list(seen.values())


def name_of(proposal: Proposal) -> str:
    """As the engine's command spells the setting."""
    name = proposal.flag.rstrip("=") if proposal.flag != "--engine-option" else proposal.name
    return name or proposal.name


def value_of(proposal: Proposal) -> str:
    if isinstance(proposal.value, dict):
        return ", ".join(f"{name} {number}" for name, number in proposal.value.items())
    if isinstance(proposal.value, bool):
        return "on" if proposal.value else "off"
    return str(proposal.value) if proposal.name == "max_pixels" else proposal.argument
