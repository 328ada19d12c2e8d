"""What a bench measured: plain dataclasses, the same tree as JSON (`to_json`, `from_json`), one versioned schema.

Only raw observations are kept; medians, percentiles and verdicts are made of them by `rows`, so that an old file can
be read by a newer rule. All times are seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from visavis.errors import InputError, shorten

__all__ = [
    "SCHEMA",
    "WORKLOADS",
    "Bench",
    "Cell",
    "CellRun",
    "EngineRecord",
    "Kind",
    "RequestRecord",
    "Round",
    "Workload",
    "from_json",
    "to_json",
]

SCHEMA = "visavis.bench/1"

Workload = Literal["latency", "throughput", "users", "load"]
WORKLOADS: tuple[Workload, ...] = ("latency", "throughput", "users", "load")
"""In the order of every report."""
Kind = Literal["cold", "warm-up", "timed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One kind of work: a point of the sweep."""

    workload: Workload
    image: tuple[int, int] | None = None  # (width, height) before the resize; None: no image
    prompt_tokens: int | None = None  # of the text, template included; None: as the messages file has it
    output_tokens: int = 64  # exactly (fixed length) or at most (natural length)
    concurrency: int = 1  # requests submitted together; users, each of whom waits for the answer before asking again
    rate: float | None = None  # load: requests a second
    source: str = "made"  # or the name of the messages file

    @property
    def id(self) -> str:
        """Short and stable: the name of a row in files, tables and comparisons."""
        parts: list[str] = [self.workload]
        if self.source != "made":
            parts.append(f"file={self.source}")
        if self.image is not None:
            parts.append(f"image={self.image[0]}x{self.image[1]}")
        if self.prompt_tokens is not None:
            parts.append(f"prompt={self.prompt_tokens}")
        parts.append(f"output={self.output_tokens}")
        if self.workload == "throughput":
            parts.append(f"concurrency={self.concurrency}")
        if self.workload == "users":
            parts.append(f"users={self.concurrency}")
        if self.rate is not None:
            parts.append(f"rate={self.rate:g}")
        return " ".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    """One request, answered once. `token_times_s` are the engine's stamps, counted from the submission (from the
    arrival under load); `client_…` are what this process saw, transfer between the processes included."""

    arrival_s: float = 0.0  # after the start of its round
    prompt_tokens: int
    image_tokens: int
    prepare_s: float
    tokens: int  # of the answer, by the engine's ids; by the server's count where it gives none
    counted_by: Literal["ids", "server"]
    queue_s: float
    token_times_s: tuple[float, ...]  # one per token; one per piece of text from a server without ids
    client_first_s: float | None
    client_total_s: float
    finish_reason: str
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One pass over a cell by one engine."""

    number: int  # from 0 for each kind
    kind: Kind
    session: int  # which start of the engine
    seconds: float  # busy time: first submission to last token; of several waves the sum
    client_seconds: float
    requests: tuple[RequestRecord, ...]


@dataclass(slots=True, kw_only=True)
class CellRun:
    """One cell on one engine."""

    cell: str  # Cell.id
    engine: str
    steady: bool | None = None  # None: not warmed up to the end
    refused: str = ""  # why the engine does not do this at all
    rounds: list[Round] = field(default_factory=list)

    def timed(self) -> list[Round]:
        return [r for r in self.rounds if r.kind == "timed"]

    def cold(self) -> Round | None:
        """The very first of this shape, in the first session."""
        return next((r for r in self.rounds if r.kind == "cold"), None)


@dataclass(slots=True, kw_only=True)
class EngineRecord:
    """One engine. `sessions` are the phases of each start, in seconds."""

    engine: str
    version: str = ""
    device: str = ""
    dtype: str = ""
    max_model_len: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)
    marks: tuple[str, ...] = ()
    interpreter: str = ""
    sessions: list[dict[str, float]] = field(default_factory=list)
    peak_memory_bytes: int | None = None
    peak_device_memory_bytes: int | None = None
    error: str | None = None


@dataclass(slots=True, kw_only=True)
class Bench:
    """Everything one `visavis bench` measured. `complete` is False while it runs and after an interruption."""

    model: str
    visavis_version: str
    started: str  # ISO 8601, UTC
    command: tuple[str, ...]  # what repeats it
    machine: Mapping[str, Any]
    config: Mapping[str, Any]  # of the bench: lengths, rounds, seed, sampling, limits
    model_shape: Mapping[str, Any] | None = None  # bytes and operations by which the ceilings are judged
    ceiling: Mapping[str, Any] = field(default_factory=dict)  # what this machine reads and multiplies at best
    cells: tuple[Cell, ...] = ()
    engines: list[EngineRecord] = field(default_factory=list)
    runs: list[CellRun] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    complete: bool = False
    finished: str = ""
    schema: str = SCHEMA

    def run_of(self, cell: str, engine: str) -> CellRun:
        """The record of a cell on an engine, made when it is new."""
        for run in self.runs:
            if run.cell == cell and run.engine == engine:
                return run
        self.runs.append(CellRun(cell=cell, engine=engine))
        return self.runs[-1]

    def engine(self, name: str) -> EngineRecord:
        for record in self.engines:
            if record.engine == name:
                return record
        self.engines.append(EngineRecord(engine=name))
        return self.engines[-1]


def to_json(bench: Bench) -> dict[str, Any]:
    """JSON-ready; `schema` and `complete` first. Times are kept to the microsecond."""
    plain: dict[str, Any] = _plain(bench)
    return {"schema": plain.pop("schema"), "complete": plain.pop("complete"), **plain}


def from_json(value: Any, where: str) -> Bench:
    """The other way. Raises InputError naming `where` for anything that is not a result of this schema."""
    schema = value.get("schema") if isinstance(value, Mapping) else None
    if not isinstance(schema, str) or not schema.startswith("visavis.bench/"):
        raise InputError(f"{where} is not a bench result (its schema is {shorten(schema)}, not {SCHEMA})")
    if schema != SCHEMA:
        raise InputError(
            f"{where} has schema {shorten(schema)}; this visavis reads {SCHEMA}: use the one that wrote it"
        )
    try:
        return _bench(value)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{where} is a damaged bench result: {type(error).__name__}: {shorten(str(error))}") from None


def _plain(value: Any) -> Any:
    if hasattr(value, "__dataclass_fields__"):
        return {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, float):
        return round(value, 6)
    if value is None or isinstance(value, str | int | bool):
        return value
    return str(value)


def _bench(value: Mapping[str, Any]) -> Bench:
    given = _known(Bench, value)
    given["command"] = tuple(given["command"])
    given["cells"] = tuple(_cell(v) for v in given["cells"])
    given["engines"] = [
        EngineRecord(**{**(known := _known(EngineRecord, v)), "marks": tuple(known["marks"])}) for v in given["engines"]
    ]
    given["runs"] = [
        CellRun(**{**_known(CellRun, v), "rounds": [_round(r) for r in v["rounds"]]}) for v in given["runs"]
    ]
    return Bench(**given)


def _cell(value: Mapping[str, Any]) -> Cell:
    given = _known(Cell, value)
    image = given["image"]
    return Cell(**{**given, "image": None if image is None else (int(image[0]), int(image[1]))})


def _round(value: Mapping[str, Any]) -> Round:
    requests = []
    for entry in value["requests"]:
        given = _known(RequestRecord, entry)
        requests.append(RequestRecord(**{**given, "token_times_s": tuple(float(t) for t in given["token_times_s"])}))
    return Round(**{**_known(Round, value), "requests": tuple(requests)})


def _known(kind: Any, value: Mapping[str, Any]) -> dict[str, Any]:
    """Fields a newer minor version may have added are left out."""
    return {f.name: value[f.name] for f in fields(kind) if f.name in value}
