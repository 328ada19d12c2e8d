"""`compare`: each backend in turn, the same prepared prompts for all, one `Comparison` out."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from visavis.backends.base import ModelInterface, Progress
from visavis.backends.worker import WorkerModel
from visavis.compare.cases import Case
from visavis.compare.measure import Say, logprobs_at, measure, record_logprobs, repeated_logprobs
from visavis.compare.pairs import pair_up
from visavis.compare.result import BackendResult, Comparison, SkippedBackend
from visavis.compare.verdict import verdict
from visavis.completion import Completion, TokenLogprobs
from visavis.errors import BackendError, InputError, OptionError
from visavis.report.machine import describe
from visavis.sampling import SamplingParams

__all__ = ["Opener", "Plan", "compare"]

BUSY = 0.75
"""Load average per core above which the machine is called busy."""

Opener = Callable[[str, Progress], AbstractContextManager[ModelInterface]]
"""(backend, progress) → the loaded model, closed at the end. `compare` gives each a process of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to compare and how."""

    model: str
    backends: tuple[str, ...]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    rounds: int = 1
    batch: bool = True  # also all prompts at once
    optional: bool = False  # the backends were not asked for by name: one that cannot take the model is skipped
    skipped: tuple[SkippedBackend, ...] = ()
    folder: Path | None = None  # the model's files, watched for changes between the backends


def compare(plan: Plan, cases: Sequence[Case], open_model: Opener, say: Say) -> Comparison:
    """Runs every backend, one after the other, so that none competes with another for the machine.

    The first backend that runs is the reference of "same tokens". A backend that cannot be loaded, or dies, is part of
    the result with its error; bad options of the first one raise InputError at once.
    """
    from visavis import __version__

    if not cases:
        raise OptionError("compare: no prompts")
    if plan.sampling.n not in (None, 1):
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
    )
    files = _files(plan.folder)
    reference: BackendResult | None = None
    recorded: dict[str, Completion] = {}
    several = len(plan.backends) > 1
    for name in plan.backends:
        mine = BackendResult(name)
        result.backends.append(mine)
        try:
            with _loaded(name, mine, open_model, say) as model:
                measure(model, cases, plan.sampling, mine, rounds=plan.rounds, batch=plan.batch, say=say)
                _memory(model, mine)
                if reference is None:
                    if several:
                        recorded = record_logprobs(model, cases, plan.sampling, say)
                else:
                    _compare_with(reference, mine, model, cases, plan, recorded, result)
        except InputError as error:
            last = name == plan.backends[-1]
            if plan.optional and mine.load_s is None and not (last and reference is None):
                result.backends.remove(mine)
                result.skipped.append(SkippedBackend(name, str(error), ""))
            elif reference is None:
                raise
            else:
                mine.error = str(error)
        except BackendError as error:
            mine.error = str(error)
        if reference is None and mine.answers and mine.error is None:
            reference = mine
    if _files(plan.folder) != files:
        result.notes.append(f"the files of {plan.folder} changed meanwhile: not every backend had the same model")
    _add_notes(result)
    result.verdict = verdict(result)
    return result


@contextmanager
def _loaded(name: str, mine: BackendResult, open_model: Opener, say: Say) -> Iterator[ModelInterface]:
    """The model behind one backend; how it was loaded goes into the result."""
    start = time.perf_counter()
    say(name, "start", 0, 1)
    with open_model(name, lambda phase, seconds: say(name, phase, 0, 1)) as model:
        mine.load_s = time.perf_counter() - start
        info = model.info
        if info is not None:
            mine.version, mine.device, mine.dtype = info.version, info.device, info.dtype
            mine.phases_s, mine.settings, mine.marks = dict(info.phases), dict(info.settings), info.marks
        yield model


def _compare_with(
    reference: BackendResult,
    mine: BackendResult,
    model: ModelInterface,
    cases: Sequence[Case],
    plan: Plan,
    recorded: Mapping[str, Completion],
    result: Comparison,
) -> None:
    by_id = {case.id: case for case in cases}
    theirs, ours = reference.first_round(), mine.first_round()

    def of_reference(prompt: str, position: int) -> TokenLogprobs | None:
        return repeated_logprobs(recorded.get(prompt), theirs[prompt], position)

    def of_mine(prompt: str, position: int) -> TokenLogprobs | None:
        return logprobs_at(model, by_id[prompt], plan.sampling, ours[prompt], position)

    family = model.family
    if family is None:
        raise BackendError(f"{model.name} has no tokenizer to show differences with")
    sampled = any(not _greedy(a.sampling) for a in theirs.values())
    result.pairs.append(pair_up(reference, mine, by_id, of_reference, of_mine, family.tokenizer, sampled=sampled))


def _greedy(sampling: Mapping[str, Any]) -> bool:
    return bool(sampling["settings"]["temperature"]["value"] == 0)


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


def _add_notes(result: Comparison) -> None:
    """What limits the comparison, in words."""
    ran = [b for b in result.backends if b.error is None]
    load, cores = result.machine["load_average"], result.machine["cores"]
    if load is not None and load > BUSY * cores:
        result.notes.append(
            f"other work was running (load average {load:.1f} on {cores} cores before the start): "
            "the times are not to be trusted"
        )
    dtypes = {b.dtype for b in ran}
    if len(dtypes) > 1:
        said = ", ".join(f"{b.backend} {b.dtype}" for b in ran)
        result.notes.append(f"not the same arithmetic: {said}; speed and tokens are not directly comparable")
    for b in ran:
        if b.marks:
            result.notes.append(f"{b.backend} is marked {', '.join(b.marks)}: not directly comparable")
        if not b.steady:
            result.notes.append(f"{b.backend} did not give the same tokens in every round")
        if b.batch is not None and b.batch.same_as_alone < b.batch.prompts:
            changed = b.batch.prompts - b.batch.same_as_alone
            result.notes.append(
                f"{b.backend}: {changed} of {b.batch.prompts} answers change when all are asked at once"
            )
        wrong = [a for a in b.answers if a.error is None and a.prompt_tokens != _prompt_tokens(result, a.prompt)]
        if wrong:
            result.notes.append(
                f"{b.backend} counted {wrong[0].prompt_tokens} prompt tokens for {wrong[0].prompt}, "
                f"it was given {_prompt_tokens(result, wrong[0].prompt)}"
            )
    if any(not _greedy(a.sampling) for b in ran for a in b.answers):
        result.notes.append("tokens are drawn at random (temperature above 0): different tokens are expected")
    lengths = {b.backend: sum(len(a.token_ids) for a in b.answers) for b in ran}
    if len(lengths) > 1 and max(lengths.values()) > 1.1 * min(lengths.values()):
        said = ", ".join(f"{name} {count}" for name, count in lengths.items())
        result.notes.append(f"answers differ in length ({said} tokens in all): tokens/s compare unequal work")


def _prompt_tokens(result: Comparison, prompt: str) -> int:
    return next(record.prompt_tokens for record in result.prompts if record.id == prompt)
