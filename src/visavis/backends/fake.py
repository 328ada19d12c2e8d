"""`FakeModel`: scripted answers on a scripted clock, to test what stands on a backend. Hidden from users."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from visavis.backends.arrivals import Arrivals
from visavis.backends.base import Capabilities, EngineRequest, LoadInfo, ModelInterface, Progress, TokenEvent
from visavis.backends.option_map import check_extra
from visavis.backends.options import EngineOptions
from visavis.completion import TokenLogprobs
from visavis.errors import BackendError, OptionError
from visavis.sampling import ResolvedSampling

if TYPE_CHECKING:
    from visavis.families import Family

__all__ = ["FakeModel", "FakeScript", "ScriptedClock"]

Answer = str | Sequence[int]
EVERYTHING = frozenset(ResolvedSampling.__dataclass_fields__) - {"origins", "notes"}


class ScriptedClock:
    """A clock that stands still until it is moved."""

    def __init__(self, now: float = 100.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def move(self, seconds: float) -> None:
        self.now += seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeScript:
    """What a FakeModel does. Every field may also be given in `EngineOptions.extra`, so that it crosses a process."""

    answers: Mapping[str, Answer] | Sequence[Answer] | Answer = "ok"
    """One answer for all; a list by the request's place in its batch; or a mapping, where the first key that occurs in
    the rendered prompt counts. Text is encoded with special tokens understood, ids are taken as they are, and the
    model's first EOS id is added to text."""
    chunk: int = 1  # tokens per event
    load_s: float = 0.5
    queue_s: float = 0.0
    first_token_s: float = 0.1  # of a step that takes up new requests, all that are due together
    per_token_s: float = 0.01  # of a step, which gives each running request `chunk` tokens
    phases: Mapping[str, float] = field(default_factory=dict)  # instead of {"load": load_s}
    logprobs: Mapping[int, float] = field(default_factory=dict)  # token id → logprob; others -1.0
    fail: Mapping[int, str] = field(default_factory=dict)  # request's place → its error
    fail_load: str = ""
    fail_after: int | None = None  # steps until the whole engine raises
    sampling: frozenset[str] | None = None  # what it says it honours; None: all
    # Misbehaviour, for tests of the worker. `at` counts steps; "load" means while loading.
    exit_at: int | str | None = None
    hang_at: int | str | None = None
    noise: bool = False  # prints to stdout and stderr, as engines do
    real_step_s: float = 0.0  # really sleeps this long at each step


class FakeModel(ModelInterface):
    """Generates what its script says; honours max_tokens, EOS and stop ids as an engine must."""

    takes_arrivals = True

    def __init__(self, script: FakeScript | None = None, *, family: Family | None = None, name: str = "fake") -> None:
        """`family`: used instead of loading a model folder."""
        super().__init__()
        self.name = name
        self.script = script or FakeScript()
        self.scripted_clock = ScriptedClock()
        self.clock = self.scripted_clock
        self.batches: list[tuple[EngineRequest, ...]] = []  # everything it was asked, for tests to look at
        self.aborted: list[int] = []
        self.closed = 0
        self._given_family = family
        self._stopping: set[int] = set()

    def capabilities(self) -> Capabilities:
        sampling = EVERYTHING if self.script.sampling is None else self.script.sampling
        return Capabilities(prompt_logprobs=False, arrivals=self.takes_arrivals, sampling=sampling)

    def _open(self, model: str | None, options: EngineOptions) -> None:
        if self._given_family is not None:
            self.family = self._given_family
        else:
            super()._open(model, options)

    def _warm_up(self) -> None:
        """Nothing: warm-up would use up what the script counts."""

    def _load(self, options: EngineOptions, progress: Progress) -> LoadInfo:
        self._take_extra(options.extra)
        script, family = self.script, self._family()
        progress("load", 0.0)
        if script.noise:
            print("fake engine: loading", flush=True)
            print("fake engine: a warning", file=sys.stderr, flush=True)
        self._misbehave("load")
        if script.fail_load:
            raise BackendError(script.fail_load)
        phases = dict(script.phases) or {"load": script.load_s}
        self.scripted_clock.move(sum(phases.values()))
        return LoadInfo(
            backend=self.name,
            model=family.folder.name,
            version="0",
            device="cpu" if options.device == "auto" else options.device,
            dtype="float32" if options.dtype == "auto" else options.dtype,
            max_model_len=options.max_model_len or family.max_model_len,
            phases=phases,
            settings={"chunk": script.chunk},
        )

    def _run(self, requests: Sequence[EngineRequest]) -> Iterator[TokenEvent]:
        arrivals = Arrivals(requests, self.scripted_clock)
        return arrivals.watching(self._serve(requests, arrivals))

    def _serve(self, requests: Sequence[EngineRequest], arrivals: Arrivals) -> Generator[TokenEvent, None, None]:
        script = self.script
        self.batches.append(tuple(requests))
        self._stopping.clear()
        left: dict[int, list[int]] = {}
        places = {request.index: place for place, request in enumerate(requests)}
        made = dict.fromkeys(places, 0)
        queued: dict[int, float] = {}  # what is told with the first token
        step = 0
        while left or arrivals:
            new = False
            for request in arrivals.due():
                place = places[request.index]
                if place in script.fail:
                    yield TokenEvent(request.index, finish_reason="error", error=script.fail[place])
                else:
                    new = True
                    left[request.index] = self._answer(place, request)
                    queued[request.index] = arrivals.late_s(request) + (0.0 if step else script.queue_s)
            for index in [index for index in self._stopping if arrivals.drop(index)]:
                yield TokenEvent(index, finish_reason="abort")
            if not left:
                self.scripted_clock.move(arrivals.next_in_s or 0.0)
                continue
            if not step:
                self.scripted_clock.move(script.queue_s)
            self.scripted_clock.move(script.first_token_s if new else script.per_token_s)
            if script.real_step_s:
                time.sleep(script.real_step_s)
            if script.noise:
                print("fake engine: step", step, flush=True)
            if script.fail_after is not None and step >= script.fail_after:
                raise BackendError("the fake engine broke down")
            self._misbehave(step)
            now = self.scripted_clock.now
            for index in list(left):
                if index in self._stopping:
                    del left[index]
                    yield TokenEvent(index, finish_reason="abort")
                    continue
                request = requests[places[index]]
                event = self._step(request, left[index], made[index], now, queued.pop(index, None))
                made[index] += len(event.token_ids)
                del left[index][: len(event.token_ids)]
                if event.finish_reason is not None:
                    del left[index]
                yield event
            step += 1

    def _step(
        self, request: EngineRequest, left: list[int], made: int, now: float, queue_s: float | None
    ) -> TokenEvent:
        sampling, script = request.sampling, self.script
        ids: list[int] = []
        reason: Any = None
        stop_reason = None
        for token_id in left[: script.chunk]:
            ids.append(token_id)
            if token_id in sampling.end_token_ids and made + len(ids) > sampling.min_tokens:
                reason, stop_reason = "stop", token_id
                break
            if made + len(ids) >= sampling.max_tokens:
                reason = "length"
                break
        if reason is None and len(ids) == len(left):
            reason = "length"  # the script says no more
        logprobs: tuple[TokenLogprobs, ...] = ()
        if sampling.logprobs is not None:
            logprobs = tuple(
                TokenLogprobs(i, p := script.logprobs.get(i, -1.0), ((i, p),)[: sampling.logprobs]) for i in ids
            )
        return TokenEvent(
            request.index,
            token_ids=tuple(ids),
            times=(now,) * len(ids),
            logprobs=logprobs,
            finish_reason=reason,
            stop_reason=stop_reason,
            queue_s=queue_s,
        )

    def _answer(self, place: int, request: EngineRequest) -> list[int]:
        answers, family = self.script.answers, self._family()
        answer: Answer
        if isinstance(answers, str):
            answer = answers
        elif isinstance(answers, Mapping):
            answer = next((a for key, a in answers.items() if key in request.prompt.text), "")
        elif answers and isinstance(answers[0], int):
            answer = answers  # type: ignore[assignment]
        else:
            answer = answers[place % len(answers)]  # type: ignore[assignment]
        if isinstance(answer, str):
            return [*family.tokenizer.encode(answer, allow_special=True), *family.eos_token_ids[:1]]
        return list(answer)

    def _misbehave(self, at: int | str) -> None:
        if self.script.exit_at == at:
            print("fake engine: dying now", file=sys.stderr, flush=True)
            os._exit(41)
        if self.script.hang_at == at:
            while True:
                time.sleep(3600)

    def _take_extra(self, extra: Mapping[str, Any]) -> None:
        if not extra:
            return
        known = {f.name for f in fields(FakeScript)}
        values = {f.name: getattr(self.script, f.name) for f in fields(FakeScript)}
        values |= check_extra(self.name, extra, known, {})
        try:
            for name in ("fail", "logprobs"):  # JSON has no whole numbers for keys
                values[name] = {int(k): v for k, v in values[name].items()}
        except (TypeError, ValueError, AttributeError):
            raise OptionError("fake: fail and logprobs need a mapping from whole numbers") from None
        self.script = FakeScript(**values)

    def _abort(self, index: int) -> None:
        self.aborted.append(index)
        self._stopping.add(index)

    def _close(self) -> None:
        self.closed += 1
