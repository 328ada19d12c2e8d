"""What shows in two answers themselves, settings apart: the class of a difference without a re-run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from visavis.compare.agreement import Judgement
from visavis.compare.pair_result import Cause
from visavis.compare.settings_apart import View
from visavis.compare.words import of

if TYPE_CHECKING:
    from visavis.families import TextTokenizer

__all__ = ["seen_causes"]


def seen_causes(
    first: View,
    second: View,
    prompt: str,
    ids: tuple[Sequence[int], Sequence[int]],
    texts: tuple[str, str],
    finish: tuple[str, str],
    judgement: Judgement | None,
    tokenizer: TextTokenizer,
) -> list[Cause]:
    """The causes that two answers to the same request show. `judgement`: of the tokens where they part, if they do."""
    found = _prompt_ids(first, second, prompt)
    if found:
        return found
    nameless = any(text and not mine for mine, text in zip(ids, texts, strict=True))
    if ids[0] != ids[1] and not nameless:
        shorter = 0 if len(ids[0]) < len(ids[1]) else 1
        is_prefix = ids[0][: len(ids[shorter])] == ids[1][: len(ids[shorter])]
        if is_prefix and finish[shorter] == "length":
            found.append(_length(first, second, ids, finish, shorter))
        elif _without(ids[0], tokenizer) == _without(ids[1], tokenizer):
            names = (first.name, second.name)
            found.append(
                Cause(
                    "special tokens",
                    "seen",
                    f"the answers differ in special tokens alone: {names[shorter]} leaves out "
                    f"{_named(ids[1 - shorter], ids[shorter], tokenizer)}",
                )
            )
        elif is_prefix:
            found.append(_length(first, second, ids, finish, shorter))
        elif judgement is not None:
            kind = {"near tie": "near tie", "real": "real disagreement"}.get(judgement.kind, "unknown")
            found.append(Cause(kind, "seen", judgement.why))  # type: ignore[arg-type]
    elif texts[0] != texts[1]:
        found.append(_texts(first, second, texts, tokenizer, nameless))
    marks = [(v.name, v.result.marks) for v in (first, second)]
    if found and set(marks[0][1]) != set(marks[1][1]):
        said = "; ".join(f"{name}: {', '.join(mine)}" for name, mine in marks if mine)
        found.append(Cause("precision", "not tested", f"the engines compute differently ({said})"))
    return found


def _prompt_ids(first: View, second: View, prompt: str) -> list[Cause]:
    """An engine that counted other prompt tokens than it was given did not take our ids."""
    wrong = []
    for view in (first, second):
        answer, given = view.answer(prompt), len(view.cases[prompt].prompt)
        if answer is not None and answer.prompt_tokens != given:
            wrong.append(f"{view.name} counted {answer.prompt_tokens} prompt tokens and was given {given}")
    return [Cause("prompt ids", "seen", "; ".join(wrong))] if wrong else []


def _length(
    first: View, second: View, ids: tuple[Sequence[int], Sequence[int]], finish: tuple[str, str], shorter: int
) -> Cause:
    names = (first.name, second.name)
    return Cause(
        "length",
        "seen",
        f"{names[shorter]} ended after {len(ids[shorter])} tokens ({finish[shorter]}), {names[1 - shorter]} went on to "
        f"{len(ids[1 - shorter])} ({finish[1 - shorter]})",
    )


def _texts(first: View, second: View, texts: tuple[str, str], tokenizer: TextTokenizer, nameless: bool) -> Cause:
    """Equal ids (or none, from a server), another text."""
    spellings = [s for i in sorted(tokenizer.special_ids) if (s := tokenizer.id_to_token(i))]
    bare = list(texts)
    for spelling in spellings:
        bare = [text.replace(spelling, "") for text in bare]
    if bare[0].split() == bare[1].split():
        shorter = first.name if len(texts[0]) < len(texts[1]) else second.name
        return Cause("special tokens", "seen", f"{of(shorter)} text leaves out special tokens; nothing else differs")
    if nameless:
        return Cause("unknown", "seen", "the texts differ, and without token ids a near tie cannot be told")
    return Cause("real disagreement", "seen", "the texts differ although all known token ids are the same")


def _without(ids: Sequence[int], tokenizer: TextTokenizer) -> list[int]:
    return [i for i in ids if i not in tokenizer.special_ids]


def _named(more: Sequence[int], fewer: Sequence[int], tokenizer: TextTokenizer) -> str:
    left = [i for i in dict.fromkeys(more) if i in tokenizer.special_ids and list(more).count(i) > list(fewer).count(i)]
    return ", ".join(tokenizer.id_to_token(i) or str(i) for i in left[:4]) + (", …" if len(left) > 4 else "")
