"""A plan for people: tables and bars with rich."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from visavis.plan.picture import COLOURS, bar, letter_of
from visavis.plan.types import EnginePlan, MemoryPart, Plan
from visavis.plan.units import format_bytes
from visavis.plan.words import budget_rows, headings, name_of, value_of, weight_tables

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

__all__ = ["show"]

MAX_BAR = 100


def show(plan: Plan, console: Console, *, why: bool = True) -> None:
    """Prints the plan: what fits, the picture and each engine's command; with `why` also the weights by part, the
    reason of every setting and of the memory beside the weights, and the advice in full."""
    _heading(plan, console)
    if why:
        for caption, parts in weight_tables(plan):
            console.print(_weights(caption, parts))
        per_block = f"{format_bytes(plan.kv_bytes_per_block)} a block of {plan.block_size}"
        _line(console, "KV cache", f"{format_bytes(plan.kv_bytes_per_token)} a token, {per_block} ({plan.kv_dtype})")
    pictured = [engine for engine in plan.engines if engine.parts]
    if pictured:
        console.print()
        _pictures(plan, pictured, console)
        console.print(_budgets(pictured))
    for engine in plan.engines:
        console.print()
        _engine(engine, console, why=why)
    for advice in plan.advice:
        if text := advice.text if why else advice.brief:
            console.print()
            _paragraph(console, advice.topic, text)
    if not why:
        console.print()
        _line(console, "--why", "the reason of every setting, the weights by part, the advice in full")


def _heading(plan: Plan, console: Console) -> None:
    for label, text in headings(plan):
        _line(console, label, text)


def _line(console: Console, label: str, text: str) -> None:
    from rich.text import Text

    console.print(Text.assemble((label, "bold"), "  ", text), soft_wrap=False)


def _paragraph(console: Console, topic: str, text: str) -> None:
    from rich.text import Text

    console.print(Text.assemble((topic, "bold"), ": ", text), soft_wrap=False)


def _weights(caption: str, parts: Sequence[MemoryPart]) -> Table:
    table = _table(caption)
    table.add_column("GiB", justify="right", no_wrap=True)
    table.add_column("stored as", overflow="fold")
    for part in parts:
        table.add_row(f"{letter_of(part)} {part.name}", f"{part.bytes / 1024**3:.3f}", part.why)
    table.add_row("sum", f"{sum(part.bytes for part in parts) / 1024**3:.3f}", "")
    return table


def _pictures(plan: Plan, engines: list[EnginePlan], console: Console) -> None:
    width = max(20, min(MAX_BAR, console.width - 10))
    for engine in engines:
        console.print(_bar(engine, plan.device.total_bytes, width), soft_wrap=True)


def _bar(engine: EnginePlan, total: float, width: int) -> Text:
    from rich.text import Text

    colours = {letter_of(part): COLOURS[part.kind] for part in engine.parts}
    line = Text(f"{engine.engine:<7} ")
    for letter in bar(engine.parts, total, width):
        line.append(letter, style=colours.get(letter, "bold"))
    return line


def _budgets(engines: list[EnginePlan]) -> Table:
    table = _table("GiB of one device")
    for engine in engines:
        table.add_column(engine.engine, justify="right", no_wrap=True)
    for label, names in budget_rows(engines):
        found = [sum(p.bytes for p in engine.parts if p.name in names) for engine in engines]
        table.add_row(label, *(f"{amount / 1024**3:.2f}" if amount else "" for amount in found))
    return table


def _engine(engine: EnginePlan, console: Console, *, why: bool) -> None:
    _line(console, engine.engine, engine.verdict)
    if not engine.proposals:
        return
    if why:
        console.print(_settings(engine))
        console.print(_memory(engine))
    console.print(f"  {engine.launch}", soft_wrap=True, highlight=False, markup=False)


def _settings(engine: EnginePlan) -> Table:
    table = _table("setting")
    table.add_column("value", no_wrap=True)
    table.add_column("why", overflow="fold", ratio=1)
    for proposal in engine.proposals:
        table.add_row(name_of(proposal), value_of(proposal), proposal.why)
    return table


def _memory(engine: EnginePlan) -> Table:
    """What the rows of the budget are made of; the weights have a table of their own."""
    table = _table("memory")
    table.add_column("GiB", justify="right", no_wrap=True)
    table.add_column("why", overflow="fold", ratio=1)
    for part in engine.parts:
        if part.kind not in ("weights", "free"):
            table.add_row(f"{letter_of(part)} {part.name}", f"{part.bytes / 1024**3:.2f}", part.why)
    return table


def _table(first: str) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column(first, no_wrap=True)
    return table
