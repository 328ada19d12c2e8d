"""Observations → rows: one per cell and engine, void where a request failed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import mean, median
from typing import Any

from visavis.bench import figures
from visavis.bench.result import Bench, Cell, CellRun, EngineRecord, RequestRecord, Round
from visavis.bench.roofline import decode_bytes, prefill_flops
from visavis.bench.stats import Spread, spread

__all__ = ["FIGURES", "Row", "fault", "make_rows"]

FIGURES = ("ttft", "tpot", "itl", "e2e", "client_ttft", "client_e2e", "tokens_per_s", "requests_per_s", "goodput")
"""Names of `Row.figures`; the last three have one value a round."""
SLOW_TAKE = 0.95
"""Share of the offered rate below which an engine does not keep up."""
_ABOVE = 1.05
"""Share of the ceiling from which it is said that the ceiling does not hold."""
_CHUNK = 1.5  # tokens a delivery from which an engine is said to answer in chunks


@dataclass(slots=True, kw_only=True)
class Row:
    """Figures in seconds and per second. `void` says why there are none to trust; they are then left out."""

    cell: Cell
    engine: EngineRecord
    void: str = ""
    failures: list[str] = field(default_factory=list)  # each failed request of the timed rounds
    marks: list[str] = field(default_factory=list)  # what to know about the figures
    rounds: int = 0
    requests: int = 0
    figures: dict[str, Spread] = field(default_factory=dict)
    prompt_tokens: tuple[int, int] = (0, 0)  # fewest and most
    image_tokens: tuple[int, int] = (0, 0)
    output_tokens: tuple[int, int] = (0, 0)
    prepare_s: float = 0.0
    queue_s: float | None = None  # median
    tokens_per_delivery: float | None = None
    cold_ttft: float | None = None  # of the very first request of this shape
    cold_e2e: float | None = None
    warm_up_rounds: int = 0
    steady: bool | None = None
    read_bytes_per_s: float | None = None  # achieved while decoding
    read_share: float | None = None  # of the ceiling
    flops_per_s: float | None = None  # achieved while reading the prompt
    flops_share: float | None = None


def make_rows(bench: Bench) -> list[Row]:
    """In the order of the cells, then of the engines."""
    runs = {(run.cell, run.engine): run for run in bench.runs}
    return [
        _row(bench, cell, engine, runs[cell.id, engine.engine])
        for cell in bench.cells
        for engine in bench.engines
        if (cell.id, engine.engine) in runs
    ]


def fault(request: RequestRecord, cell: Cell, *, fixed: bool) -> str | None:
    """Why a request does not count; None when it does."""
    if request.error is not None:
        return request.error
    if fixed and request.tokens != cell.output_tokens:
        return f"{request.tokens} of {cell.output_tokens} tokens ({request.finish_reason})"
    if not request.token_times_s:
        return f"no token came ({request.finish_reason})"
    return None


def _row(bench: Bench, cell: Cell, engine: EngineRecord, run: CellRun) -> Row:
    row = Row(cell=cell, engine=engine, steady=run.steady)
    timed = run.timed()
    row.rounds, row.requests = len(timed), sum(len(r.requests) for r in timed)
    row.warm_up_rounds = sum(r.kind == "warm-up" for r in run.rounds)
    _cold(row, run)
    fixed = bench.config.get("lengths") != "natural"
    for done in timed:
        for i, request in enumerate(done.requests):
            if why := fault(request, cell, fixed=fixed):
                row.failures.append(f"round {done.number + 1}, request {i + 1}: {why}")
    planned = int(bench.config.get("rounds", len(timed)))
    if run.refused:
        row.void = f"refused: {run.refused}"
    elif row.failures:
        row.void = f"{len(row.failures)} of {row.requests} requests failed; first: {row.failures[0]}"
    elif not timed:
        row.void = engine.error or ("not measured" if bench.complete else "not measured yet: interrupted")
    elif engine.error is not None and len(timed) < planned:
        row.void = f"the engine failed after {len(timed)} of {planned} rounds: {engine.error}"
    if row.void:
        return row
    if len(timed) < planned:
        row.marks.append(f"interrupted after {len(timed)} of {planned} rounds")
    _fill(row, timed, bench)
    _achieved(row, bench)
    _mark(row, bench)
    return row


def _cold(row: Row, run: CellRun) -> None:
    cold = run.cold()
    if cold is not None and cold.requests and cold.requests[0].error is None:
        row.cold_ttft, row.cold_e2e = figures.ttft(cold.requests[0]), figures.e2e(cold.requests[0])


def _fill(row: Row, timed: Sequence[Round], bench: Bench) -> None:
    single: dict[str, Callable[[RequestRecord], float | None]] = {
        "ttft": figures.ttft,
        "tpot": figures.tpot,
        "e2e": figures.e2e,
        "client_ttft": lambda r: r.client_first_s,
        "client_e2e": lambda r: r.client_total_s,
    }
    for name, figure in single.items():
        per_round = [[v for r in done.requests if (v := figure(r)) is not None] for done in timed]
        _put(row, name, per_round)
    _put(row, "itl", [[gap for r in done.requests for gap in figures.itl(r)] for done in timed])
    whole: dict[str, Callable[[Round], float]] = {
        "tokens_per_s": lambda done: sum(r.tokens for r in done.requests) / done.seconds,
        "requests_per_s": lambda done: len(done.requests) / done.seconds,
    }
    limits = (bench.config.get("ttft_limit"), bench.config.get("tpot_limit"))
    if row.cell.workload in ("load", "users") and any(limit is not None for limit in limits):
        whole["goodput"] = lambda done: sum(_kept(r, *limits) for r in done.requests) / done.seconds
    for name, value in whole.items():
        _put(row, name, [[value(done)] for done in timed if done.seconds > 0])
    everything = [r for done in timed for r in done.requests]
    row.prompt_tokens = _range([r.prompt_tokens for r in everything])
    row.image_tokens = _range([r.image_tokens for r in everything])
    row.output_tokens = _range([r.tokens for r in everything])
    row.prepare_s = median(r.prepare_s for r in everything)
    row.queue_s = median(r.queue_s for r in everything)
    chunks = [v for r in everything if (v := figures.tokens_per_delivery(r)) is not None]
    row.tokens_per_delivery = mean(chunks) if chunks else None


def _put(row: Row, name: str, per_round: Sequence[Sequence[float]]) -> None:
    filled = [values for values in per_round if values]
    found = spread([v for values in filled for v in values], [median(values) for values in filled])
    if found is not None:
        row.figures[name] = found


def _range(values: Sequence[int]) -> tuple[int, int]:
    return min(values), max(values)


def _kept(request: RequestRecord, ttft: float | None, tpot: float | None) -> bool:
    """Whether a request kept the limits; one with a single token has no TPOT to miss."""
    first, per_token = figures.ttft(request), figures.tpot(request)
    return (ttft is None or (first is not None and first <= ttft)) and (
        tpot is None or per_token is None or per_token <= tpot
    )


def _achieved(row: Row, bench: Bench) -> None:
    """See `roofline`. Only where all requests run together and alone: latency, throughput."""
    if row.cell.workload in ("load", "users"):
        return
    ceiling: dict[str, Any] = dict(bench.ceiling)
    together = row.cell.concurrency
    context = row.prompt_tokens[1] + row.output_tokens[1] / 2
    tpot = row.figures.get("tpot")
    needed = decode_bytes(bench.model_shape, row.engine.dtype, context, together)
    if tpot is not None and needed is not None and not row.engine.marks:
        row.read_bytes_per_s = needed / tpot.median
        if ceiling.get("read_bytes_per_s"):
            row.read_share = row.read_bytes_per_s / float(ceiling["read_bytes_per_s"])
    ttft = row.figures.get("ttft")
    flops = prefill_flops(bench.model_shape, row.prompt_tokens[1], row.image_tokens[1])
    if ttft is not None and flops is not None and together == 1 and ttft.median > 0:
        row.flops_per_s = flops / ttft.median
        best = ceiling.get("matmul_flops_per_s", {}).get(row.engine.dtype)
        if best:
            row.flops_share = row.flops_per_s / float(best)


def _mark(row: Row, bench: Bench) -> None:
    if row.steady is False:
        row.marks.append(f"not steady after {row.warm_up_rounds} warm-up rounds")
    if row.read_share is not None and row.read_share > _ABOVE:
        row.marks.append(
            f"reads {row.read_share:.0%} of what the memory gave: the weights fit into a cache, or the ceiling was "
            "measured while other work was running"
        )
    if row.flops_share is not None and row.flops_share > _ABOVE:
        row.marks.append(
            f"computes {row.flops_share:.0%} of what torch's product of two matrices gave: the engine's own are faster "
            "here, or the ceiling was measured while other work was running"
        )
    chunk = row.tokens_per_delivery
    if chunk is not None and chunk >= _CHUNK:
        row.marks.append(f"answers in chunks of {chunk:.3g} tokens: ITL is per chunk, TPOT per token")
    if row.prompt_tokens[0] != row.prompt_tokens[1] and row.cell.source == "made":
        row.marks.append(f"prompts of {row.prompt_tokens[0]} to {row.prompt_tokens[1]} tokens")
    offered, took = row.cell.rate, row.figures.get("requests_per_s")
    if offered is not None and took is not None:
        # The last answers of a finite round end after the last arrival: that tail is allowed for.
        e2e = row.figures["e2e"].median if "e2e" in row.figures else 0.0
        requests = row.requests / max(1, row.rounds)
        fair = requests / (requests / offered + e2e) if offered > 0 else 0.0
        if took.median < SLOW_TAKE * fair and _growing(row, bench):
            row.marks.append(f"does not keep up: took {took.median:.3g} of {offered:g} requests a second")


def _growing(row: Row, bench: Bench) -> bool:
    """Whether the later half of the requests waited much longer for their first token than the earlier half."""
    run = bench.run_of(row.cell.id, row.engine.engine)
    early: list[float] = []
    late: list[float] = []
    for done in run.timed():
        first = [v for r in done.requests if (v := figures.ttft(r)) is not None]
        half = len(first) // 2
        early += first[:half]
        late += first[half:]
    return bool(early and late) and median(late) > 1.5 * median(early)
