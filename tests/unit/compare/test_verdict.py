"""The sentence at the end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from visavis.compare.verdict import verdict

if TYPE_CHECKING:
    from tests.unit.compare.conftest import Bench


@pytest.mark.parametrize(
    ("per_token", "said"),
    [
        (0.041, "native was 4.1× faster per token"),
        (0.005, "hf was 2.0× faster per token"),
        (0.0102, "they were equally fast per token (within 5 % or the noise)"),
    ],
)
def test_who_was_faster(bench: Bench, per_token: float, said: str) -> None:
    bench.add("native", answers="Settings", per_token_s=0.01, first_token_s=0.01)
    bench.add("hf", answers="Settings", per_token_s=per_token, first_token_s=0.01)
    assert said in bench.run(batch=False).verdict


def test_all_at_once_is_said_apart(bench: Bench) -> None:
    # 5 tokens: 0.1 + 4 · 0.1 = 0.5 s against 0.5 + 4 · 0.5 = 2.5 s, for all three together: 5×
    bench.add("native", answers=[11, 12, 13, 14, 15], per_token_s=0.1, first_token_s=0.1)
    bench.add("hf", answers=[11, 12, 13, 14, 15], per_token_s=0.5, first_token_s=0.5)
    assert bench.run().verdict == (
        "native and hf gave the same tokens on all 3 prompts; "
        "native was 5.0× faster per token and 5.0× with all 3 at once."
    )


def test_one_backend_alone(bench: Bench) -> None:
    # 2 tokens in 0.1 + 0.1 s
    bench.add("native", answers=[11, 12], first_token_s=0.1, per_token_s=0.1)
    assert bench.run(batch=False).verdict == "native answered 3 prompts at 10 tokens/s, one at a time."


def test_kinds_of_differences_are_counted(bench: Bench) -> None:
    bench.add(
        "native", answers={"alpha": [11, 12], "beta": [11, 12], "gamma": [11]}, tops={12: ((12, -0.1), (22, -2.0))}
    )
    bench.add(
        "hf", answers={"alpha": [11, 22], "beta": [11, 12], "gamma": [11, 12]}, tops={22: ((22, -0.1), (12, -2.0))}
    )
    assert "on 1 of 3 prompts (1 real disagreement, 1 answer ended early)" in bench.run().verdict


def test_a_slower_first_token_of_the_faster_engine_is_said(bench: Bench) -> None:
    # whole answers of 5 tokens: 0.5 + 4 · 0.01 = 0.54 s against 0.1 + 4 · 0.05 = 0.3 s
    bench.add("native", answers=[11, 12, 13, 14, 15], per_token_s=0.01, first_token_s=0.5)
    bench.add("hf", answers=[11, 12, 13, 14, 15], per_token_s=0.05, first_token_s=0.1)
    assert bench.run(batch=False).verdict.endswith(
        "; native was 5.0× faster per token, but native's first token came 5.0× later (500 ms against 100 ms) and "
        "native's whole answer took 1.8× longer (540 ms against 300 ms)."
    )


def test_it_is_said_of_the_second_engine_too(bench: Bench) -> None:
    bench.add("native", answers=[11, 12], per_token_s=0.05, first_token_s=0.1)
    bench.add("hf", answers=[11, 12], per_token_s=0.01, first_token_s=0.2)
    assert "hf was 5.0× faster per token, but hf's first token came 2.0× later" in bench.run(batch=False).verdict


def test_of_equally_fast_engines_the_later_first_token_is_said(bench: Bench) -> None:
    bench.add("native", answers=[11, 12], per_token_s=0.05, first_token_s=0.1)
    bench.add("hf", answers=[11, 12], per_token_s=0.05, first_token_s=0.2)
    said = bench.run(batch=False).verdict
    assert "equally fast per token (within 5 % or the noise), but hf's first token came 2.0× later" in said


def test_no_but_where_the_faster_engine_is_faster_throughout(bench: Bench) -> None:
    bench.add("native", answers=[11, 12], per_token_s=0.01, first_token_s=0.1)
    bench.add("hf", answers=[11, 12], per_token_s=0.05, first_token_s=0.104)  # within 5 % the other way round
    assert ", but" not in bench.run(batch=False).verdict


def four(bench: Bench, answers: dict[str, list[int]], **more: object) -> list[str]:
    for number, (name, ids) in enumerate(answers.items(), start=1):
        bench.add(name, answers=ids, per_token_s=0.01 * number, first_token_s=0.1, **more)  # type: ignore[arg-type]
    return bench.run().verdict.split(". ")


def test_four_engines_that_agree_are_one_sentence_and_a_ranking(bench: Bench) -> None:
    said = four(bench, {name: [11, 12, 13] for name in ("native", "hf", "vllm", "sglang")})
    assert said[0] == "native, hf, vllm and sglang all gave the same answers on all 3 prompts"
    assert said[1] == "Per token: native 10.0 ms, hf 20.0 ms (2.0×), vllm 30.0 ms (3.0×), sglang 40.0 ms (4.0×)"
    assert said[2] == "First token: native 100 ms, hf 100 ms, vllm 100 ms, sglang 100 ms"
    # 0.1 + 2 · 0.01 s and so on
    assert said[3] == "Whole answer: native 120 ms, hf 140 ms (1.2×), vllm 160 ms (1.3×), sglang 180 ms (1.5×)"
    # 9 tokens in 0.12 s = 75, 64.3, 56.25, 50
    assert said[4] == "Tokens/s, all at once: native 75.0, hf 64.3 (0.86×), vllm 56.3 (0.75×), sglang 50.0 (0.67×)."
    assert len(said) == 5


def test_of_four_engines_the_odd_one_is_named(bench: Bench) -> None:
    said = four(
        bench,
        {"native": [11, 12, 13], "hf": [11, 22, 13], "vllm": [11, 12, 13], "sglang": [11]},
        tops={12: ((12, -0.1), (22, -2.0)), 22: ((22, -0.1), (12, -2.0))},
    )
    assert said[0] == (
        "native and vllm gave the same answers on all 3 prompts; hf differs from native on 3 (3 real disagreements); "
        "sglang differs from native on 3 (3 answers ended early)"
    )


def test_that_no_two_of_four_agree_is_said(bench: Bench) -> None:
    said = four(bench, {"native": [11], "hf": [11, 12], "vllm": [11, 12, 13], "sglang": [11, 12, 13, 14]})
    assert said[0].startswith(
        "No two of native, hf, vllm and sglang gave the same answers on all 3 prompts; hf differs"
    )


def test_what_did_not_run_is_named_beside_four_that_did(bench: Bench) -> None:
    for name in ("native", "hf", "vllm", "sglang"):
        bench.add(name, answers=[11, 12])
    bench.add("fifth", answers=[11], fail_load="no room")
    assert bench.run().verdict.endswith("fifth did not run (no room).")


def test_a_longer_start_of_the_faster_engine_is_said_as_who_times_a_script_sees_it(bench: Bench) -> None:
    """Document 000: vLLM took 81 s where transformers took 12.7 s, and answered faster."""
    bench.add("hf", answers=[11, 12], phases={"import": 9.0, "load": 1.0}, first_token_s=0.5, per_token_s=0.5)
    bench.add("vllm", answers=[11, 12], phases={"import": 19.0, "load": 56.0}, first_token_s=0.25, per_token_s=0.25)
    # warm-up is a request of 2 tokens: 1 s and 0.5 s; then an answer: 10 + 1 + 1 = 12 s, 75 + 0.5 + 0.5 = 76 s
    assert bench.run(batch=False).verdict.endswith(
        "vllm was 2.0× faster per token. From nothing to one answer vllm took 76.0 s against 12.0 s: its start takes "
        "64.5 s longer, its answer does not."
    )


def test_a_start_that_makes_most_of_a_run_is_said_whoever_answers_faster(bench: Bench) -> None:
    bench.add("native", answers=[11, 12], phases={"load": 1.0}, first_token_s=0.1, per_token_s=0.1)
    bench.add("hf", answers=[11, 12], phases={"load": 9.0}, first_token_s=0.5, per_token_s=0.5)
    # 1 + 0.2 + 0.2 s and 9 + 1 + 1 s, warm-up and answer of 2 tokens each
    assert bench.run(batch=False).verdict.endswith(
        "From nothing to one answer hf took 11.0 s against 1.40 s: its start takes 8.80 s longer, its answer 800 ms "
        "longer."
    )


@pytest.mark.parametrize(("load", "answer"), [(1.0, 0.1), (1.0, 5.0), (1.05, 0.102)])
def test_a_start_that_makes_no_difference_is_not_worth_a_word(bench: Bench, load: float, answer: float) -> None:
    bench.add("native", answers=[11, 12], phases={"load": 1.0}, first_token_s=0.1, per_token_s=0.1)
    bench.add("hf", answers=[11, 12], phases={"load": load}, first_token_s=answer, per_token_s=answer)
    result = bench.run(batch=False)
    for b in result.backends:
        b.warm_up_s = 0.0
    assert "From nothing" not in verdict(result)


def test_one_prompt_whose_answers_settings_explain_is_said_in_the_users_words(bench: Bench) -> None:
    del bench.cases[1:]
    bench.add("hf", answers="<|box_start|>(1,2)<|box_end|>")
    bench.add("vllm", answers="<|box_start|>(1,2)<|box_end|>")
    said = bench.run(batch=False, own={"vllm": {"skip_special_tokens": True}}).verdict
    assert said.startswith("hf and vllm gave the same tokens on 1 prompt, but not the same text: special_tokens (")
    bench.engines["vllm"].rule = lambda request, engine: [5] if request.sampling.repetition_penalty != 1 else [6]
    bench.engines["hf"].rule = bench.engines["vllm"].rule
    said = bench.run(batch=False, own={"vllm": {"repetition_penalty": 1.05}}).verdict
    assert said.startswith("hf and vllm gave different answers: repetition_penalty explains the tokens")
