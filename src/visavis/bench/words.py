"""Figures, cells and phases as people read them: shared by terminal and HTML."""

from __future__ import annotations

from collections.abc import Mapping

from visavis.bench.result import Cell, EngineRecord
from visavis.bench.rows import Row
from visavis.bench.stats import Spread
from visavis.report.units import bytes_, duration, rate

__all__ = [
    "DEFINED",
    "LABELS",
    "PHASES",
    "SHORT",
    "TAILS",
    "cell_parts",
    "cell_words",
    "columns",
    "computing",
    "in_all",
    "memory",
    "phase_medians",
    "reading",
    "spread_share",
    "spread_words",
    "start_parts",
    "value",
]

LABELS = {
    "ttft": "TTFT",
    "tpot": "TPOT",
    "itl": "ITL",
    "e2e": "E2E",
    "client_ttft": "client TTFT",
    "client_e2e": "client E2E",
    "tokens_per_s": "tokens/s",
    "requests_per_s": "requests/s",
    "goodput": "goodput/s",
}
DEFINED = LABELS | {"client_ttft": "client", "client_e2e": "client", "goodput": "goodput"}
"""Figure → what `figures.DEFINITIONS` calls it."""
PHASES = ("start", "tokenizer", "import", "load", "compile", "capture", "warm-up")
"""Phases of a start in their usual order; an engine's other ones follow."""
REST = "the rest"
SHORT = {
    "latency": ("ttft", "tpot", "e2e", "tokens_per_s"),
    "throughput": ("tokens_per_s", "ttft", "tpot", "e2e"),
    "users": ("tokens_per_s", "ttft", "tpot", "e2e", "goodput"),
    "load": ("ttft", "tpot", "requests_per_s", "goodput"),
}
"""Figures of a sweep's one line per row; the spread shown is that of the first."""
TAILS = ("ttft", "tpot", "itl", "e2e")
"""Figures whose p90 and p99 are shown."""
_RATES = ("tokens_per_s", "requests_per_s", "goodput")


def value(name: str, number: float | None) -> str:
    """A figure by its name in `rows.FIGURES`; "–" for None."""
    if name not in _RATES:
        return duration(number)
    if name == "tokens_per_s" or number is None:
        return rate(number)
    return f"{number:.3g}"


def spread_words(name: str, found: Spread | None) -> str:
    """`12.3 ms (12.1–12.8 ms)`: the median and the spread of the rounds."""
    if found is None:
        return "–"
    if len(found.rounds) < 2:
        return value(name, found.median)
    low, high = value(name, found.low), value(name, found.high)
    if low.split()[1:] == high.split()[1:]:
        low = low.split()[0]
    return f"{value(name, found.median)} ({low}–{high})"


def spread_share(found: Spread | None) -> str:
    """`±3%`: half the spread of the rounds over the median."""
    if found is None or len(found.rounds) < 2 or found.median <= 0:
        return "–"
    return f"±{(found.high - found.low) / 2 / found.median:.1%}"


def cell_words(cell: Cell) -> str:
    """Without the workload, for a table of that workload."""
    return ", ".join(cell_parts(cell))


def cell_parts(cell: Cell) -> list[str]:
    """What a cell is, axis by axis."""
    parts = []
    if cell.source != "made":
        parts.append(cell.source)
    if cell.image is not None:
        parts.append(f"{cell.image[0]}×{cell.image[1]}")
    if cell.prompt_tokens is not None:
        parts.append(f"{cell.prompt_tokens} in")
    parts.append(f"{cell.output_tokens} out")
    if cell.workload == "throughput":
        parts.append(f"{cell.concurrency} at once")
    if cell.workload == "users":
        parts.append(f"{cell.concurrency} user{'s' if cell.concurrency > 1 else ''}")
    if cell.rate is not None:
        parts.append(f"{cell.rate:g}/s")
    return parts


def columns(workload: str) -> tuple[str, ...]:
    """Figures of a workload's table, in order."""
    return {
        "latency": ("ttft", "tpot", "itl", "e2e", "tokens_per_s"),
        "throughput": ("tokens_per_s", "requests_per_s", "ttft", "tpot", "e2e"),
        "users": ("tokens_per_s", "requests_per_s", "goodput", "ttft", "tpot", "itl", "e2e"),
        "load": ("requests_per_s", "goodput", "ttft", "tpot", "itl", "e2e"),
    }[workload]


def phase_medians(engine: EngineRecord) -> dict[str, float]:
    """Each phase of the starts, the median where there were several; those of 0 s left out."""
    names = [n for n in PHASES if any(n in s for s in engine.sessions)]
    names += [n for s in engine.sessions for n in s if n not in names and n != "in all"]
    found: Mapping[str, list[float]] = {n: sorted(s[n] for s in engine.sessions if n in s) for n in names}
    return {n: v[len(v) // 2] for n, v in found.items() if v[len(v) // 2] > 0}


def in_all(engine: EngineRecord) -> float | None:
    """Seconds of a start, unlisted moments included: the median where there were several; None where it never did."""
    values = sorted(s["in all"] for s in engine.sessions if "in all" in s)
    return values[len(values) // 2] if values else None


def start_parts(engine: EngineRecord) -> dict[str, float]:
    """`phase_medians`, and what they leave of the start in all as `the rest`."""
    found = phase_medians(engine)
    rest = (in_all(engine) or 0.0) - sum(found.values())
    return {**found, REST: rest} if found and rest > 0 else found


def memory(engine: EngineRecord) -> str:
    """Peak of the host, and of the device where there is one."""
    host, device = engine.peak_memory_bytes, engine.peak_device_memory_bytes
    return bytes_(host) if device is None else f"{bytes_(host)}, GPU {bytes_(device)}"


def reading(row: Row) -> str:
    """Bytes read a second while decoding, and the share of the ceiling."""
    return _achieved(row.read_bytes_per_s, row.read_share, "GB/s")


def computing(row: Row) -> str:
    """Operations a second for the prompt, and the share of the ceiling."""
    return _achieved(row.flops_per_s, row.flops_share, "GFLOP/s")


def _achieved(amount: float | None, part: float | None, unit: str) -> str:
    if amount is None:
        return "–"
    return f"{amount / 1e9:.3g} {unit}" + (f", {part:.0%} of the ceiling" if part is not None else "")
