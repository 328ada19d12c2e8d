"""`Lab`: one backend, loaded, and asked again with some of its settings made equal to another's."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Self

from visavis.backends.base import ModelInterface, Progress
from visavis.compare.agreement import TOP_K
from visavis.compare.cases import Case
from visavis.compare.measure import Say
from visavis.compare.settings_apart import View
from visavis.compare.setups import ENGINE, SAMPLING, Setup
from visavis.completion import Completion
from visavis.errors import BackendError, InputError
from visavis.sampling import SamplingParams

__all__ = ["Lab", "Opener", "Variant"]

Opener = Callable[[Setup, Mapping[str, Any], Progress], AbstractContextManager[ModelInterface]]
"""(setup, its engine options, progress) → the loaded model, closed at the end."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A request of a backend with some settings made equal to another's."""

    case: Case
    sampling: SamplingParams
    engine: Mapping[str, Any]


class Lab:
    """Keeps one engine at a time: one with other engine options is loaded only after this one is closed."""

    def __init__(self, setup: Setup, open_model: Opener, say: Say) -> None:
        self.setup = setup
        self.load_s: float | None = None  # of the first load
        self._open, self._say = open_model, say
        self._stack: ExitStack | None = None
        self._model: ModelInterface | None = None
        self._engine: Mapping[str, Any] = {}
        self._answers: dict[Any, Completion | str] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._stack is not None:
            self._stack.close()

    def model(self, engine: Mapping[str, Any]) -> ModelInterface:
        """The engine with these options, loaded when it is not the one at hand. Raises what loading raises."""
        if self._model is not None and engine == self._engine:
            return self._model
        if self._stack is not None:
            self._stack.close()
            self._stack = self._model = None
        self._say(self.setup.name, "start", 0, 1)
        start = time.perf_counter()
        with ExitStack() as stack:
            progress = lambda phase, seconds: self._say(self.setup.name, phase, 0, 1)  # noqa: E731
            model = stack.enter_context(self._open(self.setup, engine, progress))
            self._stack = stack.pop_all()
        self._model, self._engine = model, dict(engine)
        if self.load_s is None:
            self.load_s = time.perf_counter() - start
        return model

    def variant(self, mine: View, first: View, prompt: str, names: Collection[str]) -> Variant:
        """The request of `mine` to `prompt` with the settings `names` as `first` has them."""
        answer = first.answer(prompt)
        effective = {} if answer is None else answer.sampling["settings"]
        equal = {name: effective[name]["value"] for name in names if name in SAMPLING}
        pixels = first.setup.pixels if "pixels" in names else mine.setup.pixels
        system = first.setup.system if "system" in names else mine.setup.system
        engine = dict(mine.setup.engine)
        for name in names:
            if name == "dtype":
                engine["dtype"] = first.result.dtype
            elif name in ENGINE or name in first.setup.engine or name in engine:
                engine.pop(name, None)
                if first.setup.engine.get(name) is not None:
                    engine[name] = first.setup.engine[name]
        return Variant(mine.cases[prompt].under(pixels, system), replace(mine.setup.sampling, **equal), engine)

    def ask(self, variant: Variant, *, logprobs_to: int | None = None) -> Completion | str:
        """Its answer, remembered; text says why there is none. `logprobs_to`: with log-probabilities, so far."""
        sampling = variant.sampling
        if logprobs_to is not None:
            least = min(sampling.min_tokens or 0, logprobs_to + 1)
            sampling = replace(sampling, logprobs=TOP_K, max_tokens=logprobs_to + 1, min_tokens=least)
        key = (variant.case.id, id(variant.case.prompt), sampling, repr(sorted(variant.engine.items())))
        if key not in self._answers:
            try:
                model = self.model(variant.engine)
                (done,) = model.complete([variant.case.prompt], sampling)
                self._answers[key] = done if done.error is None else done.error
            except (InputError, BackendError) as error:
                self._answers[key] = str(error)
        return self._answers[key]
