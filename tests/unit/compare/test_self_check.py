"""Two engines that are the same but for one planted difference: compare names it, and invents no other."""

from __future__ import annotations

from collections.abc import Sequence
from io import StringIO
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from rich.console import Console

from visavis.backends.base import EngineRequest
from visavis.chat import normalize
from visavis.compare.cases import Case
from visavis.compare.explain import smallest_sets
from visavis.compare.html.page import render
from visavis.compare.prepare import preparer
from visavis.compare.result import Cause, Comparison
from visavis.compare.table import print_result
from visavis.families import Family
from visavis.sampling import SamplingParams

if TYPE_CHECKING:
    from tests.unit.compare.conftest import Bench, Scripted

SAME = (11, 12, 13, 14, 15)
OTHER = (11, 12, 23, 14, 15)
TOPS = {13: ((13, -0.1), (23, -2.6)), 23: ((23, -0.1), (13, -2.6))}


def causes(result: Comparison) -> set[tuple[str, str, tuple[str, ...]]]:
    """(class, how it is known, settings) of every difference of the only pair."""
    (pair,) = result.pairs
    return {(c.kind, c.how, c.settings) for d in pair.differences for c in d.causes}


def always(*ids: int) -> Any:
    return lambda request, engine: ids


def of_both(bench: Bench, rule: Any, **engine: Any) -> None:
    """Two engines with the same rule."""
    bench.add("native", rule=rule, tops=TOPS, **engine)
    bench.add("hf", rule=rule, tops=TOPS, **engine)


def test_nothing_planted_nothing_found(bench: Bench) -> None:
    of_both(bench, always(*SAME))
    result = bench.run()
    assert result.all_same
    assert causes(result) == set()
    assert result.pairs[0].settings == result.pairs[0].reruns == result.pairs[0].findings == ()


def test_settings_that_differ_and_change_nothing_are_no_cause(bench: Bench) -> None:
    of_both(bench, always(*SAME))
    result = bench.run(own={"hf": {"repetition_penalty": 1.2, "max_tokens": 64}})
    assert result.all_same
    assert causes(result) == set()
    assert {s.name for s in result.pairs[0].settings} == {"repetition_penalty", "max_tokens"}


def test_sampling(bench: Bench) -> None:
    of_both(bench, lambda request, engine: OTHER if request.sampling.repetition_penalty > 1 else SAME)
    result = bench.run(own={"hf": {"repetition_penalty": 1.05}})
    assert causes(result) == {("sampling", "alone", ("repetition_penalty",))}
    (setting,) = result.pairs[0].settings
    assert (setting.first, setting.second) == (1.0, 1.05)
    assert (setting.origin_first, setting.origin_second) == ("neutral", "set for hf")
    assert {d.kind for d in result.pairs[0].differences} == {"settings"}
    assert "repetition_penalty explains the tokens (3 of 3)" in result.verdict


def test_length(bench: Bench) -> None:
    of_both(bench, always(*SAME))
    result = bench.run(own={"hf": {"max_new_tokens": 3}})
    assert causes(result) == {("length", "alone", ("max_tokens",))}


def test_special_token_policy(bench: Bench) -> None:
    marked = bench.ids("<|box_start|>(1,2)<|box_end|>")
    of_both(bench, always(*marked))
    result = bench.run(own={"hf": {"skip_special_tokens": True}})
    (pair,) = result.pairs
    assert (pair.same, pair.same_text) == (3, 0)
    assert causes(result) == {("special tokens", "alone", ("special_tokens",))}
    assert pair.differences[0].causes[0].part == "text"


def test_prompt_ids(bench: Bench, family: Family) -> None:
    conversation = normalize([{"role": "user", "content": "say alpha"}])
    prompt = family.prepare(conversation)
    bench.cases[:] = [Case("a", "say alpha", prompt, prepare=preparer(family, conversation))]
    of_both(bench, lambda request, engine: OTHER if "pirate" in request.prompt.text else SAME)
    result = bench.run(own={"hf": {"system": "You are a pirate."}})
    assert causes(result) == {("prompt ids", "alone", ("system",))}
    assert result.notes == [n for n in result.notes if "counted" not in n]


def test_pixels(bench: Bench, family: Family) -> None:
    picture = np.full((280, 280, 3), 200, np.uint8)
    conversation = normalize([{"role": "user", "content": [{"type": "image", "image": picture}, "where?"]}])
    prompt = family.prepare(conversation)
    bench.cases[:] = [Case("a", "where?", prompt, prepare=preparer(family, conversation))]
    of_both(bench, lambda request, engine: SAME if request.prompt.media[0].size == (280, 280) else OTHER)
    result = bench.run(own={"hf": {"max_pixels": "140*140", "min_pixels": 3136}})
    assert causes(result) == {("pixels", "alone", ("pixels",))}
    (setting,) = result.pairs[0].settings
    assert (setting.first, setting.second) == (["280×280"], ["140×140"])
    assert "100 tokens, hash" in setting.origin_first  # (280 / 28)²


def test_precision_is_tested_by_loading_the_engine_in_the_other_dtype(bench: Bench) -> None:
    of_both(bench, lambda request, engine: OTHER if engine.info.dtype == "bfloat16" else SAME)
    result = bench.run(own={"hf": {"torch_dtype": "bfloat16"}})
    assert causes(result) == {("precision", "alone", ("dtype",))}
    assert [options.dtype for options in bench.engines["hf"].loads] == ["bfloat16", "float32"]


def test_engines_own_choice_of_dtype_counts_as_a_difference(bench: Bench) -> None:
    rule: Any = lambda request, engine: OTHER if engine.info.dtype == "bfloat16" else SAME  # noqa: E731
    bench.add("native", rule=rule)
    bench.add("hf", rule=rule, dtype="bfloat16")
    result = bench.run()
    assert causes(result) == {("precision", "alone", ("dtype",))}
    assert result.pairs[0].settings[0].origin_second == "the engine's choice"


def test_near_tie_and_real_disagreement(bench: Bench) -> None:
    near = {13: ((13, -0.7), (23, -0.8)), 23: ((23, -0.7), (13, -0.9))}
    for name, tops, kind in (("tie", near, "near tie"), ("real", TOPS, "real disagreement")):
        bench.engines.clear()
        bench.add("native", rule=always(*SAME), tops=tops, dtype="bfloat16")
        bench.add("hf", rule=always(*OTHER), tops=tops, dtype="bfloat16")
        result = bench.run()
        assert causes(result) == {(kind, "seen", ())}, name
        assert result.pairs[0].reruns == ()


def test_engine_that_ends_early_by_itself(bench: Bench) -> None:
    bench.add("native", rule=always(*SAME))
    bench.add("hf", rule=always(*SAME[:3]))
    assert causes(bench.run()) == {("length", "seen", ())}


def test_engine_that_drops_special_ids(bench: Bench) -> None:
    marked = bench.ids("<|box_start|>(1,2)<|box_end|>")
    plain = [i for i in marked if i not in bench.family.tokenizer.special_ids]
    bench.add("native", rule=always(*marked))
    bench.add("hf", rule=always(*plain))
    result = bench.run()
    assert causes(result) == {("special tokens", "seen", ())}
    assert "hf leaves out <|box_start|>, <|box_end|>" in result.pairs[0].differences[0].causes[0].text


def test_engine_that_did_not_take_the_prompts_ids(bench: Bench) -> None:
    bench.add("native", rule=always(*SAME))
    bench.add("hf", rule=always(*OTHER)).counted = 3
    result = bench.run()
    assert causes(result) == {("prompt ids", "seen", ())}
    assert "hf counted 3 prompt tokens" in result.pairs[0].differences[0].causes[0].text


def test_failure(bench: Bench) -> None:
    bench.add("native", rule=always(*SAME))
    bench.add("hf", rule=always(*SAME), fail={0: "out of memory"})
    bench.engines["hf"].script = bench.engines["hf"].script.__class__(fail={0: "out of memory"})
    bench.add("vllm", rule=always(*SAME))
    result = bench.run(batch=False)
    found = {(p.first, p.second): {c.kind for d in p.differences for c in d.causes} for p in result.pairs}
    assert found == {("native", "hf"): {"failed"}, ("native", "vllm"): set(), ("hf", "vllm"): {"failed"}}


def test_two_settings_that_work_only_together(bench: Bench) -> None:
    def rule(request: EngineRequest, engine: Scripted) -> Sequence[int]:
        asked = request.sampling
        return OTHER if asked.repetition_penalty > 1 or asked.presence_penalty > 0 else SAME

    of_both(bench, rule)
    result = bench.run(own={"hf": {"repetition_penalty": 1.1, "presence_penalty": 0.5, "frequency_penalty": 0.1}})
    assert causes(result) == {("sampling", "jointly", ("repetition_penalty", "presence_penalty"))}
    assert any("jointly explain" in f for f in result.pairs[0].findings)
    assert any("made equal, frequency_penalty changed nothing" in f for f in result.pairs[0].findings)


def test_difference_that_no_setting_explains(bench: Bench) -> None:
    bench.add("native", rule=always(*SAME), tops=TOPS)
    bench.add("hf", rule=always(*OTHER), tops=TOPS)
    result = bench.run(own={"hf": {"presence_penalty": 0.5}})
    assert causes(result) == {("real disagreement", "seen", ())}
    (pair,) = result.pairs
    assert any(f.startswith("unexplained by settings: 3 of 3 differences, a real disagreement") for f in pair.findings)
    assert any(f == "made equal, presence_penalty changed nothing" for f in pair.findings)
    assert [r.equalised for r in pair.reruns if r.prompt == "a"] == [("presence_penalty",)]


def test_setting_that_explains_a_part_and_a_near_tie_that_is_left(bench: Bench) -> None:
    near = {13: ((13, -0.70000), (23, -0.70001)), 23: ((23, -0.70000), (13, -0.70001))}
    bench.add("native", rule=always(*SAME), tops=near)
    penalised = lambda request, engine: (11, 99) if request.sampling.repetition_penalty > 1 else OTHER  # noqa: E731
    bench.add("hf", rule=penalised, tops=near)
    result = bench.run(own={"hf": {"repetition_penalty": 1.3}})
    assert causes(result) == {("sampling", "alone", ("repetition_penalty",)), ("near tie", "seen", ())}
    assert {d.kind for d in result.pairs[0].differences} == {"near tie"}
    parts = {c.kind: c.part for c in result.pairs[0].differences[0].causes}
    assert parts["sampling"] == "some"


def test_document_000s_two_parts_are_told_apart(bench: Bench) -> None:
    marked, shifted = bench.ids("<|box_start|>(1,2)<|box_end|>"), bench.ids("<|box_start|>(1,3)<|box_end|>")
    of_both(bench, lambda request, engine: shifted if request.sampling.repetition_penalty > 1 else marked)
    result = bench.run(
        own={
            "native": {"skip_special_tokens": False, "max_new_tokens": 128},
            "hf": {"skip_special_tokens": True, "repetition_penalty": 1.05, "max_tokens": 256},
        }
    )
    found: list[Cause] = list(result.pairs[0].differences[0].causes)
    assert [(c.kind, c.how, c.settings, c.part) for c in found] == [
        ("sampling", "alone", ("repetition_penalty",), "tokens"),
        ("special tokens", "alone", ("special_tokens",), "text"),
    ]
    assert any(f == "made equal, max_tokens changed nothing" for f in result.pairs[0].findings)


def test_marks_that_no_re_run_can_remove_are_named(bench: Bench) -> None:
    bench.add("native", rule=always(*SAME), tops=TOPS)
    bench.add("hf", rule=always(*OTHER), tops=TOPS).marks = ("offloaded",)
    assert causes(bench.run()) == {("real disagreement", "seen", ()), ("precision", "not tested", ())}


def test_engine_that_does_not_repeat_itself_proves_nothing(bench: Bench) -> None:
    count = iter(range(100))
    bench.add("native", rule=always(*SAME))
    bench.add("hf", rule=lambda request, engine: (11, 30 + next(count)))
    result = bench.run(own={"hf": {"presence_penalty": 0.5}})
    assert causes(result) == {("unknown", "seen", ()), ("sampling", "not tested", ("presence_penalty",))}


def test_without_re_runs_settings_are_named_and_not_blamed(bench: Bench) -> None:
    of_both(bench, lambda request, engine: OTHER if request.sampling.repetition_penalty > 1 else SAME)
    asked = len(bench.cases)
    result = bench.run(own={"hf": {"repetition_penalty": 1.05}}, rerun=False, batch=False)
    assert causes(result) == {("sampling", "not tested", ("repetition_penalty",))}
    requests = [r for batch in bench.engines["hf"].batches for r in batch if r.sampling.logprobs is None]
    assert len(requests) == 1 + asked  # warm-up and one round


def test_every_backend_is_compared_with_every_other(bench: Bench) -> None:
    bench.add("native", rule=always(*SAME), tops=TOPS)
    bench.add("hf", rule=always(*SAME), tops=TOPS)
    bench.add("vllm", rule=always(*OTHER), tops=TOPS)
    result = bench.run()
    assert [(p.first, p.second, p.same) for p in result.pairs] == [
        ("native", "hf", 3),
        ("native", "vllm", 0),
        ("hf", "vllm", 0),
    ]
    assert {c.kind for p in result.pairs for d in p.differences for c in d.causes} == {"real disagreement"}


@pytest.mark.parametrize(
    ("good", "found"),
    [
        ([{"a"}], [{"a"}]),
        ([{"a"}, {"b"}], [{"a"}, {"b"}]),
        ([{"a", "c"}], [{"a", "c"}]),
        ([{"a", "b", "c"}], [{"a", "b", "c"}]),
        ([], []),
    ],
)
def test_smallest_sets(good: list[set[str]], found: list[set[str]]) -> None:
    sets = smallest_sets(["a", "b", "c"], lambda chosen: any(g <= chosen for g in good))
    assert [set(s) for s in sets] == found


def test_sampling_of_one_backend_alone_draws_are_told(bench: Bench) -> None:
    of_both(bench, always(*SAME))
    result = bench.run(own={"hf": {"temperature": 0.8, "seed": 1}}, sampling=SamplingParams(max_tokens=8))
    assert any("drawn at random" in note for note in result.notes)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("<|box_start|>(1,2)<|box_end|>", set()),
        ("(1,2)", {("special tokens", "seen", ())}),
        ("(1,3)", {("unknown", "seen", ())}),
    ],
)
def test_server_that_gives_text_alone(bench: Bench, text: str, found: set[Any]) -> None:
    bench.add("native", rule=always(*bench.ids("<|box_start|>(1,2)<|box_end|>")))
    bench.add("openai", rule=always(*bench.ids(text))).gives_ids = False
    result = bench.run()
    assert causes(result) == found
    assert "openai gives no token ids: its texts are compared" in result.notes
    (pair,) = result.pairs
    same_text = 0 if found else 3
    assert (pair.without_ids, pair.same, pair.same_text) == ("openai", 0, same_text)
    assert [(a.same_tokens, a.share_before) for a in pair.agreement] == [(None, None)] * 3
    on = "0 of 3 prompts" if found else "all 3 prompts"
    assert f"native and openai gave the same text on {on} (openai gives no token ids to compare)" in result.verdict
    assert "same tokens" not in result.verdict
    console = Console(record=True, width=120, file=StringIO())
    print_result(console, result)
    assert f"no ids, text {same_text}/3" in console.export_text()
    page = render(result, {})
    assert "gives no token ids: texts alone are compared" in page
    assert "the same tokens on" not in page


def test_engine_options_that_hold_mappings_can_be_made_equal(bench: Bench) -> None:
    rule: Any = lambda request, engine: OTHER if engine.script.phases else SAME  # noqa: E731
    bench.add("fake", rule=rule)
    bench.add("theirs", rule=rule)
    result = bench.run(own={"theirs": {"phases": {"load": 1.0}}}, backend="fake")
    assert causes(result) == {("engine option", "alone", ("phases",))}
