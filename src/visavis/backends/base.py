"""`ModelInterface`: what every backend is. A backend turns `EngineRequest`s into `TokenEvent`s; preparing, sampling
rules, detokenising, stop strings, timings and `Completion`s are shared and live here and in `runner.py`."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Self

from visavis.backends.memory_hint import with_plan
from visavis.backends.options import EngineOptions, for_backend
from visavis.completion import Completion, Delta, FinishReason, TokenLogprobs
from visavis.errors import OptionError, RequestError
from visavis.families.budget import naming_what_fits
from visavis.prompt import Prompt
from visavis.sampling import ResolvedSampling, SamplingParams

if TYPE_CHECKING:
    from visavis.detokenize import Vocabulary
    from visavis.families import Family

__all__ = ["Capabilities", "EngineRequest", "LoadInfo", "ModelInterface", "Progress", "TokenEvent"]

Progress = Callable[[str, float], None]
"""Called as (phase, seconds since the load began) when a phase begins: tokenizer, import, load, compile, warm-up,
ready."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    images: bool = True
    videos: bool = True
    logprobs: bool = True
    prompt_logprobs: bool = False
    batching: str = "continuous"  # "continuous" | "static" | "none"
    arrivals: bool = False  # takes requests while it answers others (`EngineRequest.arrival_s`)
    sampling: frozenset[str] = frozenset()  # names of ResolvedSampling fields the engine can honour


@dataclass(frozen=True, slots=True)
class LoadInfo:
    """What was loaded and how long each phase took (seconds, in order)."""

    backend: str
    model: str
    version: str  # of the engine
    device: str
    dtype: str
    max_model_len: int
    phases: Mapping[str, float] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)  # effective engine options
    marks: tuple[str, ...] = ()  # what makes its results not directly comparable: "offloaded", "int8", …
    interpreter: str = ""


@dataclass(frozen=True, slots=True)
class EngineRequest:
    index: int
    prompt: Prompt
    sampling: ResolvedSampling  # its `n` is 1: the runner makes n requests of one prompt
    arrival_s: float = 0.0  # seconds after the start of the run at which it is submitted
    after: int | None = (
        None  # index of the request of this run whose end it waits for; `arrival_s` then counts from there
    )


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """News of one request. `times` are the model's `clock()` in this process, one per token in `token_ids`.

    The last event of a request carries `finish_reason`. An engine reports EOS and stop-token-id ends itself (the
    ending token included in `token_ids`, its id in `stop_reason`) and "length"; stop strings are found by the runner,
    which then calls `_abort`.
    """

    index: int
    token_ids: tuple[int, ...] = ()
    times: tuple[float, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    error: str | None = None
    queue_s: float | None = None  # from submission to the first step it took part in
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None
    text: str | None = None
    """Only from servers that give text and no ids: the next piece of the answer. `token_ids` are then empty and
    `times` holds one stamp per piece."""
    usage: tuple[int | None, int | None] | None = None
    """(prompt tokens, answer tokens) as such a server counted them; with the last event."""


class ModelInterface(ABC):
    """A model behind an engine. Use as a context manager, or call `close()`."""

    name: str
    takes_arrivals: ClassVar[bool] = False
    """Whether the engine takes requests while it answers others (`EngineRequest.arrival_s`): known before it loads."""

    def __init__(self) -> None:
        self.family: Family | None = None
        self.info: LoadInfo | None = None
        self.sampling_defaults: SamplingParams | None = None
        self.use_generation_config = False
        self.limit_per_prompt: Mapping[str, int] | None = None  # of the options it was loaded with
        self.clock: Callable[[], float] = time.perf_counter  # what `TokenEvent.times` are measured with
        self._vocabulary: Vocabulary | None = None
        self.serving = threading.Lock()  # held while a batch runs: one at a time

    # ---- what an engine provides -------------------------------------------------------------------------------

    @abstractmethod
    def _load(self, options: EngineOptions, progress: Progress) -> LoadInfo:
        """Loads `self.family.folder`. Raises OptionError for options it cannot honour, ModelError for the folder."""

    @abstractmethod
    def _run(self, requests: Sequence[EngineRequest]) -> Iterator[TokenEvent]:
        """Serves the requests together; yields news as it comes, until each has a `finish_reason`."""

    @abstractmethod
    def _abort(self, index: int) -> None:
        """Stops a request of the running `_run`; it then yields a last event with finish_reason "abort".

        Called between two events, in the thread that takes them. Unknown and finished indices change nothing."""

    @abstractmethod
    def _close(self) -> None:
        """Frees everything, also what a `_load` that failed left behind."""

    @abstractmethod
    def capabilities(self) -> Capabilities: ...

    # ---- what users call ---------------------------------------------------------------------------------------

    def load(
        self, model: str | None = None, options: EngineOptions | None = None, progress: Progress | None = None
    ) -> Self:
        """Loads a folder, a hub id, or (None) the bundled model. What was loaded before is closed first.

        With `options.warmup` a short answer (to a small image where the model takes images) is generated before this
        returns, so that the first request pays no lazy initialisation; its time is the phase "warm-up".
        """
        from visavis.backends.registry import NAMES

        report = progress or (lambda phase, seconds: None)
        options = for_backend(options or EngineOptions(), self.name, {*NAMES, self.name})
        self.close()
        self.limit_per_prompt = options.limit_per_prompt
        start = self.clock()
        report("tokenizer", 0.0)
        self._open(model, options)
        try:
            opened = self.clock()
            info = self._load(options, lambda phase, seconds: report(phase, seconds + opened - start))
            phases = dict(info.phases)
            if "tokenizer" not in phases:  # a worker tells its own
                phases = {"tokenizer": opened - start, **phases}
            self.info = replace(info, phases=phases)
            if options.warmup and "warm-up" not in phases:
                report("warm-up", self.clock() - start)
                began = self.clock()
                self._warm_up()
                self.info = replace(info, phases={**phases, "warm-up": self.clock() - began})
        except BaseException as error:
            self.info = None
            self._close()
            if isinstance(error, Exception) and (told := with_plan(error, self.name, model, options)) is not error:
                raise told from None
            raise
        report("ready", self.clock() - start)
        return self

    def open(self, model: str | None = None, options: EngineOptions | None = None) -> Family:
        """The text side alone, without an engine: what preparing and counting need. `load` may follow."""
        from visavis.backends.registry import NAMES

        self._open(model, for_backend(options or EngineOptions(), self.name, {*NAMES, self.name}))
        return self._family()

    def _open(self, model: str | None, options: EngineOptions) -> None:
        """Sets `self.family`."""
        from visavis.families import load_family

        self.family = load_family(model, trust_remote_code=options.trust_remote_code)

    def _warm_up(self) -> None:
        from visavis.backends.runner import warm_up

        warm_up(self)

    def prepare(self, messages: Any, **options: Any) -> Prompt:
        """Messages in any spelling → Prompt. `options` as in `visavis.prepare`."""
        return self._family().prepare_messages(messages, **options)

    def resolve(self, prompt: Prompt, sampling: SamplingParams | None = None) -> ResolvedSampling:
        """What will hold for this prompt, each value with its origin."""
        from visavis import sampling as rules

        family, info = self._family(), self._info()
        with naming_what_fits(family, prompt, info.max_model_len):
            return rules.resolve(
                sampling,
                prompt_tokens=len(prompt),
                max_model_len=info.max_model_len,
                eos_token_ids=family.eos_token_ids,
                vocab_size=family.vocab_size,
                encode=family.tokenizer.encode,
                user_config=self.sampling_defaults,
                generation_config=family.folder.generation_config if self.use_generation_config else None,
            )

    def stream_batch(
        self,
        prompts: Sequence[Prompt],
        sampling: SamplingParams | Sequence[SamplingParams] | None = None,
        arrivals: Sequence[float] | None = None,
        users: int | None = None,
    ) -> Generator[Delta, None, None]:
        """Answers all prompts together; deltas of different prompts come interleaved. Closing the iterator aborts.

        `arrivals`: seconds from the start at which each prompt is submitted, whether or not the ones before it are
        answered; its times count from there. `users`: so many are asked at first, and each of the others when the one
        `users` places before it is answered, as people do who wait for an answer before they ask again. Raises
        OptionError for an engine that cannot take requests while it answers others.
        """
        from visavis.backends.runner import run_batch

        return run_batch(self, prompts, self._per_prompt(prompts, sampling), arrivals, users)

    def complete(
        self, prompts: Sequence[Prompt], sampling: SamplingParams | Sequence[SamplingParams] | None = None
    ) -> list[Completion]:
        """Answers all prompts together, in their order. A failed request is a Completion with `error` set."""
        done: dict[int, Completion] = {}
        with closing(self.stream_batch(prompts, sampling)) as deltas:
            for delta in deltas:
                if delta.completion is not None:
                    done[delta.index] = delta.completion
        return [done[i] for i in range(len(prompts))]

    def chat(self, messages: Any, **sampling: Any) -> Completion:
        """One conversation, one answer. Keyword arguments are sampling options. Raises RequestError if it failed."""
        prompt = self.prepare(messages)
        completion = self.complete([prompt], SamplingParams.from_mapping(sampling))[0]
        if completion.error is not None:
            raise RequestError(completion.error)
        return completion

    def stream(self, messages: Any, **sampling: Any) -> Generator[Delta, None, None]:
        """As `chat`, piece by piece; the last Delta has `.completion`."""
        params = SamplingParams.from_mapping(sampling)
        with closing(self.stream_batch([self.prepare(messages)], params)) as deltas:
            for delta in deltas:
                yield delta
                if delta.completion is not None and delta.completion.error is not None:
                    raise RequestError(delta.completion.error)

    def generate(self, prompts: Sequence[str], images: Sequence[Any] | None = None, **sampling: Any) -> list[str]:
        """One text per prompt, batched. `images[i]` is None, one image, or a list of images for `prompts[i]`."""
        if images is not None and len(images) != len(prompts):
            raise OptionError(f"generate: {len(prompts)} prompts but {len(images)} entries in images; give one each")
        prepared = []
        for i, text in enumerate(prompts):
            item = images[i] if images is not None else None
            items = [] if item is None else list(item) if isinstance(item, list | tuple) else [item]
            content = [*({"type": "image", "image": image} for image in items), {"type": "text", "text": text}]
            prepared.append(self.prepare([{"role": "user", "content": content}]))
        completions = self.complete(prepared, SamplingParams.from_mapping(sampling))
        for i, completion in enumerate(completions):
            if completion.error is not None:
                raise RequestError(f"prompt {i}: {completion.error}")
        return [c.text for c in completions]

    def close(self) -> None:
        """Frees the engine and its memory. May be called twice."""
        if self.info is not None:
            self._close()
            self.info = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ---- helpers -----------------------------------------------------------------------------------------------

    def _family(self) -> Family:
        if self.family is None:
            raise OptionError(f"{self.name}: call load() first")
        return self.family

    def vocabulary(self) -> Vocabulary:
        """The text of single tokens, remembered for as long as the tokenizer is the same."""
        tokenizer = self._family().tokenizer
        if self._vocabulary is None or self._vocabulary.tokenizer is not tokenizer:
            from visavis.detokenize import Vocabulary

            self._vocabulary = Vocabulary(tokenizer)
        return self._vocabulary

    def _info(self) -> LoadInfo:
        if self.info is None:
            raise OptionError(f"{self.name}: call load() first (or it was closed)")
        return self.info

    @staticmethod
    def _per_prompt(
        prompts: Sequence[Prompt], sampling: SamplingParams | Sequence[SamplingParams] | None
    ) -> list[SamplingParams]:
        if sampling is None:
            return [SamplingParams()] * len(prompts)
        if isinstance(sampling, SamplingParams):
            return [sampling] * len(prompts)
        if len(sampling) != len(prompts):
            raise OptionError(f"{len(prompts)} prompts but {len(sampling)} sampling settings; give one each or one")
        return list(sampling)
