"""`compare`: each backend in turn, the same prepared prompts for all, one `Comparison` out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from visavis.backends.base import ModelInterface
from visavis.backends.worker import WorkerModel
from visavis.compare.cases import Case
from visavis.compare.explain import explain_pair
from visavis.compare.lab import Lab, Opener
from visavis.compare.measure import Say, logprobs_at, measure, record_logprobs, repeated_logprobs
from visavis.compare.notes import add_notes
from visavis.compare.pairs import pair_up
from visavis.compare.result import Answer, BackendResult, Comparison, SkippedBackend
from visavis.compare.settings_apart import View
from visavis.compare.setups import Setup
from visavis.compare.times import times_in_words
from visavis.compare.verdict import verdict
from visavis.compare.words import of
from visavis.completion import TokenLogprobs
from visavis.errors import BackendError, InputError, OptionError
from visavis.report.machine import describe
from visavis.sampling import SamplingParams

__all__ = ["Opener", "Plan", "compare"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to compare and how. `setups`: in their order; the first one that runs is the reference."""

    model: str
    setups: tuple[Setup, ...]
    sampling: SamplingParams = field(default_factory=SamplingParams)  # what holds for all
    rounds: int = 1
    batch: bool = True  # also all prompts at once
    rerun: bool = True  # ask again with equal settings where answers and settings differ
    optional: bool = False  # the backends were not asked for by name: one that cannot take the model is skipped
    skipped: tuple[SkippedBackend, ...] = ()
    folder: Path | None = None  # the model's files, watched for changes between the backends
    notes: tuple[str, ...] = ()  # what was decided before, e.g. caches that were switched off
    command: str = ""


def compare(plan: Plan, cases: Sequence[Case], open_model: Opener, say: Say) -> Comparison:
    """Runs every backend, one after the other, so that none competes with another for the machine.

    Every backend is compared with every other. One that cannot be loaded, or dies, is part of the result with its
    error; bad options of the first one raise InputError at once.
    """
    from visavis import __version__

    if not cases:
        raise OptionError("compare: no prompts")
    if any(setup.sampling.n not in (None, 1) for setup in plan.setups):
        raise OptionError("compare: n above 1 has no meaning here; leave it out")
    result = Comparison(
        model=plan.model,
        visavis_version=__version__,
        machine=describe(),
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        rounds=plan.rounds,
        requested_sampling=plan.sampling.asked(),
        prompts=tuple(case.record() for case in cases),
        skipped=list(plan.skipped),
        notes=list(plan.notes),
        command=plan.command,
    )
    files = _files(plan.folder)
    views: list[View] = []
    for setup in plan.setups:
        mine = BackendResult(setup.name, engine=setup.backend, own=dict(setup.own))
        result.backends.append(mine)
        last = setup is plan.setups[-1]
        try:
            with Lab(setup, open_model, say) as lab:
                view = _run(setup, mine, cases, lab, plan, say, result, views, last)
        except InputError as error:
            if plan.optional and mine.load_s is None and not (last and not views):
                result.backends.remove(mine)
                result.skipped.append(SkippedBackend(setup.name, str(error), ""))
            elif not views:
                raise
            else:
                mine.error = str(error)
        except BackendError as error:
            mine.error = str(error)
        else:
            views.append(view)
    if _files(plan.folder) != files:
        result.notes.append(f"the files of {plan.folder} changed meanwhile: not every backend had the same model")
    add_notes(result)
    result.times = times_in_words(result.backends)
    result.verdict = verdict(result)
    return result


def _run(
    setup: Setup,
    mine: BackendResult,
    cases: Sequence[Case],
    lab: Lab,
    plan: Plan,
    say: Say,
    result: Comparison,
    earlier: Sequence[View],
    last: bool,
) -> View:
    """Everything about one backend: loaded, measured, compared with those before it, differences explained."""

    def by_label(engine: str, what: str, done: int, total: int) -> None:
        say(setup.name, what, done, total)

    own_cases = [case.under(setup.pixels, setup.system) for case in cases]
    if setup.pixels is not None or setup.system is not None:
        mine.prompts = tuple(case.record() for case in own_cases)
    model = lab.model(setup.engine)
    _describe(model, mine, lab)
    early = measure(
        model, own_cases, setup.sampling, mine, rounds=plan.rounds, batch=plan.batch, record=not last, say=by_label
    )
    mine.answers = [_with_origins(answer, setup) for answer in mine.answers]
    _memory(model, mine)
    recorded = {} if last else record_logprobs(model, own_cases, setup.sampling, early, by_label)
    by_id = {case.id: case for case in own_cases}
    answers = mine.first_round()

    def logprobs(prompt: str, position: int) -> TokenLogprobs | None:
        if recorded:
            return repeated_logprobs(recorded.get(prompt), answers[prompt], position)
        return logprobs_at(lab.model(setup.engine), by_id[prompt], setup.sampling, answers[prompt], position)

    view = View(setup, mine, by_id, logprobs)
    if not earlier:
        return view
    if model.family is None:
        raise BackendError(f"{model.name} has no tokenizer to show differences with")
    tokenizer = model.family.tokenizer
    # All pairs are judged before any re-run: a re-run may need the engine loaded anew.
    pairs = [pair_up(first, view, by_id, tokenizer) for first in earlier]
    for first, pair in zip(earlier, pairs, strict=True):
        if pair.differences:
            say(setup.name, f"re-runs with {of(first.name)} settings (untimed)" if plan.rerun else "causes", 0, 1)
        done = explain_pair(first, view, pair, lab, tokenizer, rerun=plan.rerun)
        result.pairs.append(done)
    return view


def _describe(model: ModelInterface, mine: BackendResult, lab: Lab) -> None:
    """How it was loaded."""
    mine.load_s = lab.load_s
    info = model.info
    if info is not None:
        mine.version, mine.device, mine.dtype = info.version, info.device, info.dtype
        mine.interpreter = info.interpreter
        mine.phases_s, mine.settings, mine.marks = dict(info.phases), dict(info.settings), info.marks


def _with_origins(answer: Answer, setup: Setup) -> Answer:
    """Settings that were given for this backend alone say so."""
    if not setup.said:
        return answer
    settings = {
        name: {**entry, "origin": str(entry["origin"]).replace("request", f"set for {setup.name}")}
        if name in setup.said
        else entry
        for name, entry in answer.sampling["settings"].items()
    }
    return replace(answer, sampling={**answer.sampling, "settings": settings})


def _files(folder: Path | None) -> list[tuple[str, int, int]]:
    """Name, size and time of change of each file of the model."""
    if folder is None or not folder.is_dir():
        return []
    stats = [(p.name, p.stat()) for p in sorted(folder.iterdir()) if p.is_file()]
    return [(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats]


def _memory(model: ModelInterface, mine: BackendResult) -> None:
    """Peak memory, where the model runs in a process of its own and can say."""
    if isinstance(model, WorkerModel):
        usage = model.usage()
        mine.peak_memory_bytes, mine.peak_device_memory_bytes = usage.peak_rss_bytes, usage.gpu_peak_bytes
