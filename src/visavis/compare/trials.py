"""One prompt's re-runs, each made once, and how each answer compares with the first backend's."""

from __future__ import annotations

from typing import Any, Literal

from visavis.compare.agreement import first_difference
from visavis.compare.distance import edit_distance
from visavis.compare.lab import Lab
from visavis.compare.pair_result import Rerun
from visavis.compare.settings_apart import View, draws
from visavis.completion import Completion
from visavis.errors import BackendError

__all__ = ["Trials"]


class Trials:
    """Answers of the second backend to one prompt by the names of the settings that were made equal."""

    def __init__(self, first: View, second: View, prompt: str, lab: Lab) -> None:
        one, two = first.answer(prompt), second.answer(prompt)
        if one is None or two is None:
            raise BackendError(f"{prompt}: no answer to compare with")
        self.one, self.two, self.prompt = one, two, prompt
        self._first, self._second, self._lab = first, second, lab
        self._runs: dict[frozenset[str], Rerun] = {}
        self._done: dict[frozenset[str], Completion] = {}

    def run(self, names: frozenset[str]) -> Rerun:
        if names not in self._runs:
            self._runs[names] = self._run(names)
        return self._runs[names]

    def ids(self, names: frozenset[str]) -> tuple[int, ...]:
        self.run(names)
        return self._done[names].token_ids if names in self._done else ()

    def finish(self, names: frozenset[str]) -> str:
        self.run(names)
        return self._done[names].finish_reason if names in self._done else "error"

    def value(self, side: Literal["first", "second"], name: str) -> Any:
        """An effective sampling value of one side."""
        answer = self.one if side == "first" else self.two
        return answer.sampling["settings"][name]["value"]

    def made(self) -> list[Rerun]:
        """All but the control, in the order in which they were made."""
        return [run for names, run in self._runs.items() if names]

    def _run(self, names: frozenset[str]) -> Rerun:
        variant = self._lab.variant(self._second, self._first, self.prompt, names)
        done = self._lab.ask(variant)
        equalised = tuple(sorted(names))
        if isinstance(done, str):
            return Rerun(self.prompt, equalised, error=done, changed=True)
        self._done[names] = done
        nameless = not done.token_ids or not self.one.token_ids  # a server that gives text alone
        same = done.token_ids == self.one.token_ids or (nameless and done.text == self.one.text)
        return Rerun(
            self.prompt,
            equalised,
            drawn=draws(done.sampling.as_dict()) and not draws(self.one.sampling),
            same_tokens=same,
            same_text=done.text == self.one.text,
            position=first_difference(self.one.token_ids, done.token_ids),
            edit_distance=edit_distance(self.one.text, done.text),
            changed=done.token_ids != self.two.token_ids or done.text != self.two.text,
            text=done.text,
        )
