"""`Report`: what every form of a report shows (terminal, HTML, CSV), worked out once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from visavis.bench.changes import Against, against
from visavis.bench.comparable import between_engines, between_files
from visavis.bench.result import Bench
from visavis.bench.rows import Row, make_rows
from visavis.report.machine import busy_words, one_line

__all__ = ["FileReport", "Report", "make_report"]


@dataclass(frozen=True, slots=True)
class FileReport:
    name: str
    bench: Bench
    rows: tuple[Row, ...]
    notes: tuple[str, ...]

    @property
    def machine(self) -> str:
        return one_line(dict(self.bench.machine))


@dataclass(frozen=True, slots=True)
class Report:
    files: tuple[FileReport, ...]
    notes: tuple[str, ...] = ()  # on the files together
    against: tuple[Against, ...] = field(default=())  # one per file, when there is something old to compare with


def make_report(files: Sequence[tuple[str, Bench]], old: tuple[str, Bench] | None = None) -> Report:
    """`files` and `old` as (name, result)."""
    reports = tuple(_file(name, bench) for name, bench in files)
    notes = []
    for name, bench in files[1:]:
        notes += [f"{files[0][0]} and {name}: not comparable: {reason}" for reason in between_files(files[0][1], bench)]
    compared = tuple(against(old[1], bench, old[0], name) for name, bench in files) if old is not None else ()
    return Report(reports, tuple(notes), compared)


def _file(name: str, bench: Bench) -> FileReport:
    rows = make_rows(bench)
    notes = list(bench.notes)
    if not bench.complete:
        notes.insert(0, f"interrupted: this is what was measured until then; visavis bench --resume {name} goes on")
    if busy := busy_words(bench.machine):
        notes.append(busy)
    threads = {e.engine: e.settings["threads"] for e in bench.engines if e.device == "cpu" and "threads" in e.settings}
    if len(set(threads.values())) > 1:
        chosen = ", ".join(f"{engine} {number}" for engine, number in threads.items())
        notes.append(f"threads: each chose its own number: {chosen}; --threads N makes them equal")
    notes += between_engines(bench, rows)
    notes += [f"{e.engine}: {e.error}" for e in bench.engines if e.error is not None]
    if "error" in bench.ceiling:
        notes.append(f"the machine's ceiling was {bench.ceiling['error']}")
    return FileReport(name, bench, tuple(rows), tuple(notes))
