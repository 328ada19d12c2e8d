"""Why two answers differ, by re-run: the second backend is asked again with its settings made equal to the first's,
one at a time, and as few together as it takes. What equal settings do not remove is judged as it shows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from visavis.compare.agreement import Judgement, Kind, first_difference
from visavis.compare.causes import seen_causes
from visavis.compare.judging import judge_at
from visavis.compare.lab import Lab
from visavis.compare.pair_result import Cause, Difference, How, PairResult, Part, SettingDifference
from visavis.compare.settings_apart import View, settings_apart, shown
from visavis.compare.setups import SAMPLING
from visavis.compare.trials import Trials
from visavis.compare.words import findings, of

if TYPE_CHECKING:
    from visavis.families import TextTokenizer

__all__ = ["explain_pair", "smallest_sets"]

REQUEST_LEVEL = SAMPLING | {"system", "pixels"}
"""Settings that need no other engine."""
_LAW: dict[str, Kind] = {"near tie": "near tie", "real disagreement": "real", "length": "length", "failed": "failed"}


def explain_pair(
    first: View, second: View, pair: PairResult, lab: Lab, tokenizer: TextTokenizer, *, rerun: bool
) -> PairResult:
    """`pair` with the causes of each difference. `rerun` False: settings that differ are named, not tested."""
    apart = {prompt: settings_apart(first, second, prompt) for prompt in first.cases}
    settings: dict[tuple[str, str, str], SettingDifference] = {}
    for s in (s for found in apart.values() for s in found):
        settings.setdefault((s.name, shown(s.first), shown(s.second)), s)
    searches = {
        d.prompt: _Search(first, second, d, apart[d.prompt], lab, tokenizer)
        for d in pair.differences
        if rerun and d.kind != "failed" and apart[d.prompt]
    }
    _ask_in_order(list(searches.values()))
    explained = []
    for difference in pair.differences:
        if difference.kind == "failed":
            explained.append(replace(difference, causes=(Cause("failed", "seen", difference.why),)))
        elif difference.prompt in searches:
            explained.append(searches[difference.prompt].explain())
        elif found := apart[difference.prompt]:
            causes = tuple(Cause(s.kind, "not tested", _apart_words(first, second, s), (s.name,)) for s in found)
            explained.append(replace(difference, causes=causes))
        else:
            explained.append(_as_seen(first, second, difference, tokenizer))
    reruns = tuple(run for search in searches.values() for run in search.trials.made())
    done = replace(pair, differences=tuple(explained), settings=tuple(settings.values()), reruns=reruns)
    return replace(done, findings=tuple(findings(done)))


def _ask_in_order(searches: Sequence[_Search]) -> None:
    """Each setting alone, for all prompts. Those that need the engine loaded anew come last, once for each and not for
    each prompt, and only where the others leave something to explain."""
    names = list(dict.fromkeys(name for search in searches for name in search.names))
    for name in (None, *(name for name in names if name in REQUEST_LEVEL)):
        for search in searches:
            search.try_alone(name)
    left = [search for search in searches if not search.solved]
    for name in (name for name in names if name not in REQUEST_LEVEL):
        for search in left:
            search.try_alone(name)


def smallest_sets(names: Sequence[str], good: Callable[[frozenset[str]], bool]) -> list[frozenset[str]]:
    """Every single name that is `good` alone; else one set of which none can be left out; [] when not even all are."""
    alone = [frozenset({name}) for name in names if good(frozenset({name}))]
    if alone or len(names) < 2:
        return alone
    kept = frozenset(names)
    if not good(kept):
        return []
    for name in names:
        if len(kept) > 1 and good(kept - {name}):
            kept -= {name}
    return [kept]


def _as_seen(first: View, second: View, difference: Difference, tokenizer: TextTokenizer) -> Difference:
    one, two = first.answer(difference.prompt), second.answer(difference.prompt)
    assert one is not None  # failed answers are told apart before
    assert two is not None
    kind = "unknown" if difference.kind == "text" else difference.kind
    causes = seen_causes(
        first,
        second,
        difference.prompt,
        (one.token_ids, two.token_ids),
        (one.text, two.text),
        (one.finish_reason, two.finish_reason),
        Judgement(kind, difference.why, difference.margin),
        tokenizer,
    )
    return replace(difference, causes=tuple(causes))


class _Search:
    """One prompt's difference, taken apart."""

    def __init__(
        self,
        first: View,
        second: View,
        difference: Difference,
        apart: Sequence[SettingDifference],
        lab: Lab,
        tokenizer: TextTokenizer,
    ) -> None:
        self.first, self.second, self.difference, self.tokenizer, self.lab = first, second, difference, tokenizer, lab
        self.apart = {s.name: s for s in apart}
        self.names = list(self.apart)
        self.trials = Trials(first, second, difference.prompt, lab)
        self.one = self.trials.one
        # Which special tokens stay in the text changes no token, unless a stop string is looked for in that text.
        stops = any(self.trials.value(name, "stop") for name in ("first", "second"))
        self.for_tokens = [name for name in self.names if name != "special_tokens" or stops]

    def try_alone(self, name: str | None) -> None:
        """One setting made equal; None: the control, with none."""
        if name is None or name in self.apart:
            self.trials.run(frozenset() if name is None else frozenset({name}))

    @property
    def solved(self) -> bool:
        """Whether settings that need no other engine explain the tokens."""
        return self.trials.run(frozenset()).same_tokens or bool(self._explaining(self._by_request(self.for_tokens)))

    def _by_request(self, names: Sequence[str]) -> list[str]:
        return [name for name in names if name in REQUEST_LEVEL]

    def _explaining(self, names: Sequence[str]) -> list[frozenset[str]]:
        return smallest_sets(
            names, lambda chosen: self.trials.run(chosen).proves and self.trials.run(chosen).same_tokens
        )

    def explain(self) -> Difference:
        trials = self.trials
        control = trials.run(frozenset())
        if control.error is not None or control.changed:
            why = control.error or "asked the same again, its answer is another one"
            unsure = Cause("unknown", "seen", f"re-runs of {self.second.name} prove nothing: {why}")
            untested = [
                Cause(s.kind, "not tested", _apart_words(self.first, self.second, s), (s.name,))
                for s in self.apart.values()
            ]
            return replace(self.difference, kind="unknown", causes=(unsure, *untested))
        causes: list[Cause] = []
        best: frozenset[str] = frozenset()
        tokens_left = not control.same_tokens
        if tokens_left:
            best, tokens_left = self._tokens(self.for_tokens, causes)
        text_left = self._text(best, tokens_left, causes)
        if not tokens_left and not text_left:
            return replace(self.difference, kind="settings", why=causes[0].text, causes=tuple(causes))
        rest = self._rest()
        law: Kind = next((_LAW[c.kind] for c in rest if c.kind in _LAW), "unknown")
        return replace(self.difference, kind=law, why=rest[0].text, causes=(*causes, *rest))

    def _tokens(self, names: list[str], causes: list[Cause]) -> tuple[frozenset[str], bool]:
        """(settings that were made equal, whether the tokens still differ)."""
        trials = self.trials
        if found := self._explaining(self._by_request(names)) or self._explaining(names):
            causes += [self._cause(chosen, "tokens") for chosen in found]
            return found[0], False
        everything = frozenset(names)
        if not names or not trials.run(everything).proves or not trials.run(everything).changed:
            return frozenset(), True
        # Equal settings bring another answer that still is not the first's: they explain some of it.
        parts = smallest_sets(
            names, lambda chosen: trials.run(chosen).proves and trials.ids(chosen) == trials.ids(everything)
        )
        causes += [self._cause(chosen, "some") for chosen in parts[:1]]
        return everything, True

    def _text(self, best: frozenset[str], tokens_left: bool, causes: list[Cause]) -> bool:
        """Whether texts differ that settings do not explain; of the same tokens."""
        trials = self.trials
        if tokens_left:
            if "special_tokens" in self.apart and "special_tokens" not in best:
                before, after = trials.run(best), trials.run(best | {"special_tokens"})
                if before.text != after.text and trials.ids(best) == trials.ids(best | {"special_tokens"}):
                    causes.append(self._cause(frozenset({"special_tokens"}), "text"))
            return False
        if trials.run(best).same_text:
            return False
        left = [name for name in self.names if name not in best]

        def same_text(chosen: frozenset[str]) -> bool:
            done = trials.run(best | chosen)
            return done.proves and done.same_text

        # The text follows from the tokens and the policy: where that alone suffices, no other need be tried.
        policy = frozenset({"special_tokens"} & set(left))
        if policy and same_text(policy):
            found = [policy]
        else:
            found = smallest_sets(self._by_request(left), same_text) or smallest_sets(left, same_text)
        causes += [self._cause(chosen, "text") for chosen in found]
        return not found

    def _rest(self) -> list[Cause]:
        """What is left with every setting equal, as it shows."""
        trials, everything = self.trials, frozenset(self.names)
        done = trials.run(everything)
        if done.error is not None:
            return [Cause("unknown", "seen", f"with equal settings {self.second.name} did not answer: {done.error}")]
        ids = (self.one.token_ids, trials.ids(everything))
        position = first_difference(*ids)
        judgement = None
        if position is not None and position < min(len(ids[0]), len(ids[1])):
            judgement = judge_at(self.first, self.second, self.difference.prompt, everything, ids, position, self.lab)
        return seen_causes(
            self.first,
            self.second,
            self.difference.prompt,
            ids,
            (self.one.text, done.text),
            (self.one.finish_reason, trials.finish(everything)),
            judgement,
            self.tokenizer,
        ) or [Cause("unknown", "seen", "with every setting equal the answers are the same, and no re-run tells which")]

    def _cause(self, chosen: frozenset[str], part: Part) -> Cause:
        ordered = tuple(name for name in self.names if name in chosen)
        apart = [self.apart[name] for name in ordered]
        said = "; ".join(_apart_words(self.first, self.second, s) for s in apart)
        effect = {
            "tokens": f"{self.second.name} gives {of(self.first.name)} tokens",
            "text": f"{of(self.second.name)} text keeps what {of(self.first.name)} keeps",
            "some": f"{self.second.name} gives another answer, which still is not {of(self.first.name)}",
        }[part]
        how = "made equal," if len(ordered) == 1 else "made equal together, and not one by one,"
        kind = apart[0].kind
        known: How = "alone" if len(ordered) == 1 else "jointly"
        return Cause(kind, known, f"{said}: {how} {effect}", ordered, part)


def _apart_words(first: View, second: View, s: SettingDifference) -> str:
    def side(name: str, value: object, origin: str) -> str:
        return f"{name} {shown(value)}{f' ({origin})' if origin else ''}"

    return f"{s.name}: {side(first.name, s.first, s.origin_first)}, {side(second.name, s.second, s.origin_second)}"
