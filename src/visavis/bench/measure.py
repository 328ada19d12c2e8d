"""One round of one cell on one loaded engine."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

from visavis.backends.base import ModelInterface
from visavis.bench.result import Kind, RequestRecord, Round
from visavis.bench.work import Schedule
from visavis.completion import Completion
from visavis.prompt import Prompt
from visavis.sampling import SamplingParams

__all__ = ["measure_round"]


def measure_round(
    model: ModelInterface,
    schedule: Schedule,
    sampling: SamplingParams,
    *,
    kind: Kind,
    number: int,
    session: int,
) -> Round:
    """Submits each wave when the one before has ended, the requests of a wave as the schedule says.

    A request that fails is a record with `error`. Raises BackendError when the engine dies, OptionError for what it
    cannot do.
    """
    seconds = client_seconds = 0.0
    records: list[RequestRecord] = []
    one_user = schedule.users == 1  # which an engine of static batches can do too, one request after the other
    waves = [(prompt,) for wave in schedule.waves for prompt in wave] if one_user else schedule.waves
    for wave in waves:
        found, busy, seen = _wave(model, wave, sampling, schedule.arrivals, None if one_user else schedule.users)
        records += found
        seconds += busy
        client_seconds += seen
    return Round(
        number=number,
        kind=kind,
        session=session,
        seconds=seconds,
        client_seconds=client_seconds,
        requests=tuple(records),
    )


def _wave(
    model: ModelInterface,
    prompts: Sequence[Prompt],
    sampling: SamplingParams,
    arrivals: Sequence[float] | None,
    users: int | None,
) -> tuple[list[RequestRecord], float, float]:
    due = [0.0] * len(prompts) if arrivals is None else list(arrivals)
    first: dict[int, float] = {}
    last: dict[int, float] = {}
    done: dict[int, Completion] = {}
    start = model.clock()
    with closing(model.stream_batch(prompts, sampling, arrivals, users)) as deltas:
        for delta in deltas:
            now = model.clock() - start
            if delta.token_ids or delta.text:
                first.setdefault(delta.index, now)
            if delta.completion is not None:
                done[delta.index], last[delta.index] = delta.completion, now
    client_seconds = model.clock() - start
    if users is not None:  # asked when the answer before was whole, which is where the engine's times count from
        for i in range(users, len(prompts)):
            times = done[i - users].timings.token_times
            due[i] = due[i - users] + times[-1] if times else last[i - users]
    records = [_record(done[i], due[i], first.get(i), last[i]) for i in range(len(prompts))]
    ends = [r.arrival_s + r.token_times_s[-1] for r in records if r.token_times_s]
    return records, max(ends) if ends else client_seconds, client_seconds


def _record(completion: Completion, arrival_s: float, first: float | None, last: float) -> RequestRecord:
    times = completion.timings
    error = completion.error
    if error is None and completion.finish_reason == "abort":
        error = "aborted"
    return RequestRecord(
        arrival_s=arrival_s,
        prompt_tokens=completion.prompt_tokens,
        image_tokens=completion.image_tokens,
        prepare_s=times.prepare_s,
        tokens=completion.completion_tokens,
        counted_by="ids" if completion.reported_tokens is None else "server",
        queue_s=times.queue_s,
        token_times_s=times.token_times,
        client_first_s=None if first is None else first - arrival_s,
        client_total_s=last - arrival_s,
        finish_reason=completion.finish_reason,
        error=error,
    )
