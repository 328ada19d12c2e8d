"""Why the times differ, in words: every number is the scripted clock's."""

from __future__ import annotations

import pytest

from visavis.compare.result import BackendResult
from visavis.compare.times import phases_of, times_in_words


def backend(name: str, phases: dict[str, float], *, warm_up: float, answer: float, per_token: float) -> BackendResult:
    return BackendResult(
        name,
        phases_s=phases,
        load_s=sum(phases.values()),
        warm_up_s=warm_up,
        answer_s=answer,
        per_token_s=per_token,
        per_token_spread_s=(per_token * 0.99, per_token * 1.01),
    )


def test_a_start_is_the_sum_of_its_phases() -> None:
    vllm = backend(
        "vllm", {"import": 10, "load": 3, "compile": 20, "capture": 7}, warm_up=8, answer=0.9, per_token=0.002
    )
    (said,) = times_in_words([vllm])
    # 10 + 3 + 20 + 7 + 8 + 0.9 = 48.9
    assert said == (
        "vllm: 48.9 s = import 10 + load 3.0 + compile 20 + capture 7.0 + warm-up 8.0 + 900 ms of answering"
    )


def test_a_longer_start_pays_back_after_so_many_questions() -> None:
    hf = backend("hf", {"import": 5, "load": 2}, warm_up=1, answer=3.0, per_token=0.021)
    vllm = backend("vllm", {"import": 10, "load": 30}, warm_up=8, answer=0.9, per_token=0.002)
    said = times_in_words([hf, vllm])[-1]
    # 48 − 8 = 40 s more, 2.1 s saved on each: 19.05 → 20 questions
    assert said == (
        "vllm against hf: its start takes 40.0 s longer; per token 2.00 ms against 21.0 ms; "
        "it pays back after 20 questions of this kind (2.10 s saved on each)"
    )


def test_a_longer_start_and_slower_answers_leave_the_other_ahead() -> None:
    one = backend("a", {"load": 1}, warm_up=0, answer=1.0, per_token=0.01)
    two = backend("b", {"load": 9}, warm_up=0, answer=1.5, per_token=0.01)
    said = times_in_words([one, two])[-1]
    assert said.endswith("for questions of this kind a stays ahead, as its answers take 500 ms less")
    two.answer_s = 1.0
    assert times_in_words([one, two])[-1].endswith("a stays ahead, as its answers take as long")


def test_times_inside_the_noise_are_called_so() -> None:
    one = backend("a", {"load": 1}, warm_up=0, answer=1.0, per_token=0.0100)
    two = backend("b", {"load": 1}, warm_up=0, answer=1.0, per_token=0.0101)
    assert "inside the noise" in times_in_words([one, two])[-1]


def test_what_a_load_took_beyond_its_phases_is_not_hidden() -> None:
    b = backend("a", {"load": 1.0}, warm_up=0.5, answer=1.0, per_token=0.01)
    b.load_s = 3.5
    assert phases_of(b) == {"load": 1.0, "other": pytest.approx(2.5), "warm-up": 0.5, "answer": 1.0}
