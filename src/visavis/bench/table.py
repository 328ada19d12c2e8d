"""A bench report for people at a terminal. Prints through rich."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from visavis.bench import words
from visavis.bench.changes import TEST_IN_WORDS, Against
from visavis.bench.figures import DEFINITIONS
from visavis.bench.report import FileReport, Report
from visavis.bench.result import WORKLOADS, Cell
from visavis.bench.rows import Row
from visavis.report.units import duration

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

__all__ = ["print_report"]

SHOWN_FAILURES = 5
FEW_CELLS = 2
"""Up to so many cells of a workload are shown in full."""


def print_report(console: Console, report: Report) -> None:
    """Each file's tables and notes, then what changed against the old result; at the very end, once for all of them,
    what the figures shown mean."""
    from rich.text import Text

    for file in report.files:
        _print_file(console, file, named=len(report.files) > 1)
    for note in report.notes:
        console.print(Text.assemble(("note  ", "yellow"), note))
    for found in report.against:
        _print_against(console, found)
    shown = _shown(report)
    for name, said in DEFINITIONS.items():
        if name in shown:
            console.print(Text(f"{name}: {said}", style="dim"))


def _shown(report: Report) -> set[str]:
    """Names in DEFINITIONS of what the tables show."""
    found = {"spread"} if report.files else set()
    for file in report.files:
        for workload in {row.cell.workload for row in file.rows}:
            rows = [row for row in file.rows if row.cell.workload == workload]
            names: set[str] = set(words.SHORT[workload])
            if len({row.cell for row in rows}) <= FEW_CELLS:
                names = {*words.columns(workload), "client_e2e"}
                found.add("p50, p90, p99")
            found |= {words.DEFINED[name] for name in names & {n for r in rows if not r.void for n in r.figures}}
    for against in report.against:
        found |= {words.DEFINED[figure.name] for change in against.rows for figure in change.figures}
    return found & DEFINITIONS.keys()


def _print_file(console: Console, file: FileReport, *, named: bool) -> None:
    from rich.text import Text

    bench = file.bench
    config = bench.config
    sampling = ", ".join(f"{k} {v}" for k, v in (config.get("sampling") or {}).items()) or "greedy"
    if named:
        console.print(Text(file.name, style="bold underline"))
    console.print(Text.assemble((bench.model, "bold"), f" · {config.get('lengths')} lengths · {sampling}"))
    console.print(Text(file.machine, style="dim"))
    _print_ceiling(console, file)
    console.print(_starts(file))
    for workload in WORKLOADS:
        rows = [row for row in file.rows if row.cell.workload == workload]
        if rows:
            console.print(Text(_title(workload, file), style="bold"))
            _print_rows(console, workload, rows)
    for row in file.rows:
        _print_remarks(console, row)
    criterion = (config.get("criterion") or {}).get("in_words")
    if criterion:
        console.print(Text(criterion, style="dim"))
    for note in file.notes:
        console.print(Text.assemble(("note  ", "yellow"), note))


def _title(workload: str, file: FileReport) -> str:
    cache = "repeated" if file.bench.config.get("repeat_prompts") else "unique"
    if any(c.source != "made" for c in file.bench.cells):
        cache = "repeated (a file)"
    limits = [
        f"{name.upper()} ≤ {duration(limit)}"
        for name in ("ttft", "tpot")
        if (limit := file.bench.config.get(f"{name}_limit")) is not None
    ]
    goodput = f"; goodput: {' and '.join(limits)}" if limits else ""
    how = {
        "latency": "one request at a time",
        "throughput": "all requests at once",
        "users": f"closed loop, each user asks again when answered{goodput}",
        "load": f"open loop, Poisson arrivals{goodput}",
    }[workload]
    return f"{workload}: {how}; {cache} prompts"


def _print_ceiling(console: Console, file: FileReport) -> None:
    from rich.text import Text

    ceiling = file.bench.ceiling
    if "read_bytes_per_s" not in ceiling:
        return
    flops = ", ".join(f"{d} {v / 1e9:.3g} GFLOP/s" for d, v in ceiling["matmul_flops_per_s"].items())
    console.print(Text(f"ceiling: reads {ceiling['read_bytes_per_s'] / 1e9:.3g} GB/s, multiplies {flops}", style="dim"))


def _starts(file: FileReport) -> Table:
    table = _empty()
    engines = file.bench.engines
    table.add_column("start, once")
    for engine in engines:
        table.add_column(engine.engine, justify="right")
    table.add_row("version", *(e.version or "–" for e in engines))
    table.add_row("dtype, device", *(f"{e.dtype} {e.device}".strip() or "did not run" for e in engines))
    found = [words.phase_medians(e) for e in engines]
    names = [n for n in words.PHASES if any(n in f for f in found)]
    names += [n for f in found for n in f if n not in names]
    for name in dict.fromkeys(names):
        table.add_row(name, *(duration(f.get(name)) for f in found))
    table.add_row("in all", *(duration(words.in_all(e)) for e in engines))
    if any(e.peak_memory_bytes is not None for e in engines):
        table.add_row("peak memory", *(words.memory(e) for e in engines))
    return table


def _print_rows(console: Console, workload: str, rows: Sequence[Row]) -> None:
    """Few cells in full, one table each; a sweep as one line per cell and engine."""
    from rich.text import Text

    cells = list(dict.fromkeys(row.cell for row in rows))
    if len(cells) > FEW_CELLS:
        console.print(_sweep(workload, rows, cells))
        return
    for cell in cells:
        console.print(Text(f"  {words.cell_words(cell)}"))
        console.print(_detail(workload, [row for row in rows if row.cell == cell]))


def _detail(workload: str, rows: Sequence[Row]) -> Table:
    """Figures down, engines across."""
    table = _empty()
    table.add_column("p50, spread of rounds")
    for row in rows:
        table.add_column(row.engine.engine, justify="right")
    for name in words.columns(workload):
        found = [None if row.void else row.figures.get(name) for row in rows]
        if not any(found):
            continue
        table.add_row(words.LABELS[name], *(words.spread_words(name, f) for f in found))
        if name in words.TAILS:
            tails = (f"{words.value(name, f.p90)} · {words.value(name, f.p99)}" if f else "–" for f in found)
            table.add_row("  p90 · p99", *tails)
    client = [None if row.void else row.figures.get("client_e2e") for row in rows]
    if any(client):
        table.add_row("E2E seen by the client", *(words.value("client_e2e", f.median if f else None) for f in client))
    if any(row.prepare_s for row in rows):
        table.add_row("preparation, not in TTFT", *(duration(row.prepare_s) for row in rows))
    if any(row.queue_s for row in rows):
        table.add_row("of TTFT in the queue", *(duration(row.queue_s) for row in rows))
    table.add_row("first request: TTFT", *(duration(row.cold_ttft) for row in rows))
    table.add_row("first request: E2E", *(duration(row.cold_e2e) for row in rows))
    table.add_row("warm-up rounds", *(str(row.warm_up_rounds) for row in rows))
    for title, part in (("read while decoding", words.reading), ("computed for the prompt", words.computing)):
        if any(part(row) != "–" for row in rows):
            table.add_row(title, *(part(row) for row in rows))
    if any(row.void for row in rows):
        table.add_row("", *("void" if row.void else "" for row in rows), style="red")
    return table


def _sweep(workload: str, rows: Sequence[Row], cells: Sequence[Cell]) -> Table:
    table = _empty()
    common = set.intersection(*(set(words.cell_parts(cell)) for cell in cells))
    kept = ", ".join(part for part in words.cell_parts(cells[0]) if part in common)
    table.add_column(kept or "", no_wrap=False)
    table.add_column("engine")
    shown = [n for n in words.SHORT[workload] if any(n in row.figures for row in rows)]
    for name in shown:
        table.add_column(words.LABELS[name], justify="right", no_wrap=True)
    table.add_column("spread", justify="right", no_wrap=True)
    last = ""
    for row in rows:
        name = ", ".join(part for part in words.cell_parts(row.cell) if part not in common)
        first = [name if name != last else "", row.engine.engine]
        last = name
        if row.void:
            table.add_row(*first, "void", style="red")
            continue
        cells_of = [words.value(n, row.figures[n].median if n in row.figures else None) for n in shown]
        table.add_row(*first, *cells_of, words.spread_share(row.figures.get(shown[0]) if shown else None))
    return table


def _print_remarks(console: Console, row: Row) -> None:
    from rich.text import Text

    name = f"{row.engine.engine}, {row.cell.id}"
    if row.void:
        console.print(Text.assemble(("void  ", "red"), f"{name}: {row.void}"))
        for failure in row.failures[1:SHOWN_FAILURES]:
            console.print(Text(f"      {failure}", style="dim"))
        if len(row.failures) > SHOWN_FAILURES:
            console.print(Text(f"      … and {len(row.failures) - SHOWN_FAILURES} more; the file has all", style="dim"))
    for mark in row.marks:
        console.print(Text.assemble(("mark  ", "yellow"), f"{name}: {mark}"))


def _print_against(console: Console, found: Against) -> None:
    from rich.text import Text

    console.print(Text(f"{found.new_name} against {found.old_name}", style="bold"))
    for reason in found.not_comparable:
        console.print(Text.assemble(("not comparable: ", "yellow"), reason))
    for change in found.rows:
        where = f"{change.row.engine.engine}, {change.row.cell.workload}: {words.cell_words(change.row.cell)}"
        console.print(Text(f"  {where}"))
        table = _empty()
        for name in ("", "old", "new", "new / old, 95 %", ""):
            table.add_column(name, justify="right" if name in ("old", "new") else "left")
        for figure in change.figures:
            c = figure.change
            table.add_row(
                words.LABELS[figure.name],
                words.value(figure.name, figure.old),
                words.value(figure.name, figure.new),
                f"{c.ratio:.3g} ({c.low:.3g}–{c.high:.3g})",
                "not comparable" if change.not_comparable or found.not_comparable else figure.verdict,
            )
        console.print(table)
    for change in found.rows:
        if change.not_comparable:
            where = f"{change.row.engine.engine}, {change.row.cell.id}"
            console.print(
                Text.assemble(("note  ", "yellow"), f"{where}: not comparable: {'; '.join(change.not_comparable)}")
            )
    for side, names in (("only in the new", found.only_new), ("only in the old", found.only_old)):
        if names:
            console.print(Text(f"{side} result: {'; '.join(names)}", style="dim"))
    console.print(Text(TEST_IN_WORDS, style="dim"))


def _empty() -> Table:
    from rich import box
    from rich.table import Table

    return Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
