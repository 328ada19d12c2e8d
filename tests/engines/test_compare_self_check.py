"""The self-check of `compare` on a real pair: the native engine twice, on a bundled screen, one difference planted."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from visavis.backends.base import ModelInterface, Progress
from visavis.backends.native import NativeModel
from visavis.backends.options import EngineOptions
from visavis.chat import normalize
from visavis.compare.cases import Case
from visavis.compare.prepare import preparer
from visavis.compare.result import Comparison
from visavis.compare.runner import Plan, compare
from visavis.compare.setups import Setup, make_setup, options_of
from visavis.families import Family, load_family
from visavis.sampling import SamplingParams

pytestmark = pytest.mark.engines

SCREEN = Path(__file__).parents[2] / "examples" / "document-000" / "screen.png"
QUESTION = (
    "In this UI screenshot, what is the position of the element corresponding to the command "
    '"create a new account" (with bbox)?'
)
COMMON = SamplingParams(max_tokens=48)


@pytest.fixture(scope="module")
def family() -> Family:
    return load_family(None)


@pytest.fixture(scope="module")
def case(family: Family) -> Case:
    content = [{"type": "image", "image": str(SCREEN)}, {"type": "text", "text": QUESTION}]
    conversation = normalize([{"role": "user", "content": content}])
    return Case("settings", QUESTION, family.prepare(conversation), prepare=preparer(family, conversation))


def opened(setup: Setup, engine: Mapping[str, Any], progress: Progress) -> AbstractContextManager[ModelInterface]:
    return NativeModel().load(None, options_of(EngineOptions(threads=1, warmup=False), engine), progress)


def planted(case: Case, own: Mapping[str, Any]) -> Comparison:
    setups = (make_setup("a", "native", {}, COMMON), make_setup("b", "native", own, COMMON))
    plan = Plan(model="tiny-screen", setups=setups, sampling=COMMON, batch=False)
    return compare(plan, [case], opened, lambda *said: None)


def test_nothing_planted(case: Case) -> None:
    result = planted(case, {})
    assert result.all_same
    assert result.pairs[0].settings == ()


@pytest.mark.parametrize(
    ("own", "cause"),
    [
        ({"skip_special_tokens": True}, ("special tokens", "alone", ("special_tokens",))),
        ({"max_new_tokens": 5}, ("length", "alone", ("max_tokens",))),
        ({"repetition_penalty": 1.3}, ("sampling", "alone", ("repetition_penalty",))),
        ({"system": "Answer in one word: yes or no."}, ("prompt ids", "alone", ("system",))),
        ({"max_pixels": "112*112"}, ("pixels", "alone", ("pixels",))),
    ],
)
def test_what_was_planted_is_named_and_nothing_else(
    case: Case, own: dict[str, Any], cause: tuple[str, str, tuple[str, ...]]
) -> None:
    result = planted(case, own)
    assert result.pairs[0].differences, "the plant changed nothing: choose a stronger one"
    found = {(c.kind, c.how, c.settings) for c in result.pairs[0].differences[0].causes}
    assert found == {cause}


def test_precision_is_no_cause_where_it_changes_no_answer_and_the_only_one_where_it_does(case: Case) -> None:
    result = planted(case, {"dtype": "bfloat16"})
    assert {s.name for s in result.pairs[0].settings} == {"dtype"}
    found = {(c.kind, c.how, c.settings) for d in result.pairs[0].differences for c in d.causes}
    assert found in (set(), {("precision", "alone", ("dtype",))})
