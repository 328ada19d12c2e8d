"""Engines of one command line: which ones, each in a process of its own, and what is seen while they work."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from visavis.cli.fitting import saying_what_fits
from visavis.errors import OptionError

if TYPE_CHECKING:
    from visavis.backends.base import ModelInterface, Progress
    from visavis.backends.options import EngineOptions
    from visavis.backends.registry import Availability
    from visavis.cli.output import Output

__all__ = ["Opener", "Say", "choose_backends", "progress_display", "refuse_engines"]

Say = Callable[[str, str, int, int], None]
"""Called as (backend, what it does, done, total)."""


class Opener:
    """Loads a backend in a child process, with the interpreter it needs: its memory and its start are its own, and
    end with it. A server is talked to from here."""

    def __init__(
        self,
        model: str | None,
        options: EngineOptions,
        use_generation_config: bool,
        python: Mapping[str, str] | None = None,
    ) -> None:
        """`python`: interpreters named for some backends."""
        from visavis.backends.registry import availability

        self.model, self.options, self.use_generation_config = model, options, use_generation_config
        self.interpreters = {entry.name: entry.interpreter for entry in availability(python)}

    @contextmanager
    def open(self, backend: str, progress: Progress, python: str | None = None) -> Iterator[ModelInterface]:
        """`python`: another interpreter than the backend's usual one."""
        from visavis.backends.registry import new
        from visavis.backends.worker import WorkerModel

        if python is not None or backend == "openai":
            made = new(backend, python=python)
        else:
            made = WorkerModel(backend, python=self.interpreters.get(backend) or None)
        with made as model:
            model.use_generation_config = self.use_generation_config
            with saying_what_fits(self.model, backend, self.options):
                model.load(self.model, self.options, progress)
            yield model


def choose_backends(
    asked: str | None, usual: Collection[str], python: Mapping[str, str] | None = None
) -> tuple[tuple[str, ...], list[Availability]]:
    """The backends `asked` for (A,B), else those of the `usual` ones that can run here; and what was left out.

    `python`: interpreters named for some. Raises OptionError.
    """
    from visavis.backends.registry import availability, new

    if asked is not None:
        names = tuple(name.strip() for name in asked.split(",") if name.strip())
        if not names:
            raise OptionError("--backends names none; e.g. --backends native,hf")
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise OptionError(f"--backends names {twice} twice")
        known = {entry.name: entry for entry in availability(python)}
        for name in names:
            if name not in known:
                new(name)  # raises for what does not exist
            elif not known[name].can_run:
                fix = f"; to add it: {known[name].fix}" if known[name].fix else ""
                raise OptionError(f"backend {name} cannot run here: {known[name].missing}{fix}")
        return names, []
    found = [entry for entry in availability(python) if entry.name in usual]
    skipped = [e for e in found if not e.can_run]
    if not (names := tuple(e.name for e in found if e.can_run)):
        raise OptionError("no backend can run here; visavis backends says what adds them")
    return names, skipped


def refuse_engines(command: str, *words: str) -> None:
    """Raises OptionError where words that belong to no option are names of engines."""
    from visavis.backends.registry import NAMES

    names = [name.strip() for word in words for name in word.split(",")]
    if names and all(name in NAMES for name in names):
        raise OptionError(f"engines are named by a flag: visavis {command} --backends {','.join(names)}")


@contextmanager
def progress_display(output: Output, unit: str | None = "prompts") -> Iterator[Say]:
    """A bar on a terminal; a line for each new phase elsewhere. `unit`: what a phase counts, in the plural; None where
    the count is of the whole work, which no single phase does."""
    console = output.progress_console()
    if console is None:
        seen: set[tuple[str, str]] = set()

        def line(backend: str, what: str, done: int, total: int) -> None:
            if (backend, what) not in seen:
                seen.add((backend, what))
                output.say(f"{backend}: {what}{f', {total} {unit}' if unit and total > 1 and not done else ''}")

        yield line
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("starting", total=None)

        def show(backend: str, what: str, done: int, total: int) -> None:
            bar.update(task, description=f"{backend}: {what}", completed=done, total=total if total > 1 else None)

        yield show
