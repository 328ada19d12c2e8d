"""`compare` over scripted engines: the same, planted differences, failures, and figures known beforehand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from visavis.compare.result import as_dict
from visavis.errors import ModelError, OptionError
from visavis.sampling import SamplingParams

if TYPE_CHECKING:
    from tests.unit.compare.conftest import Bench


def test_same_tokens_on_all_prompts(bench: Bench) -> None:
    bench.add("native", answers="Settings", per_token_s=0.01)
    bench.add("hf", answers="Settings", per_token_s=0.04)
    result = bench.run()
    (pair,) = result.pairs
    assert (pair.first, pair.second, pair.same, pair.total, pair.differences) == ("native", "hf", 3, 3, ())
    assert result.all_same
    assert result.verdict.startswith(
        "native and hf gave the same tokens on all 3 prompts; native was 4.0× faster per token"
    )


def test_figures_are_those_of_the_scripted_clock(bench: Bench) -> None:
    engine = bench.add("native", answers=[11, 12, 13, 14, 15], first_token_s=0.5, per_token_s=0.02)
    result = bench.run(rounds=2).backends[0]
    assert result.first_token_s == pytest.approx(0.5)
    assert result.per_token_s == pytest.approx(0.02)
    # 5 tokens take 0.5 + 4 · 0.02 = 0.58 s
    assert result.tokens_per_s == pytest.approx(5 / 0.58)
    # three prompts together take as long as one here: 15 tokens in 0.58 s
    assert result.batch is not None
    assert result.batch.tokens_per_s == pytest.approx(15 / 0.58)
    assert [len(batch) for batch in engine.batches] == [1] + [1] * 6 + [3, 3]  # warm-up, 2 rounds, batch warm-up, batch
    assert engine.closed == 1


def test_engine_that_gives_several_tokens_at_a_time_is_not_called_infinitely_fast(bench: Bench) -> None:
    bench.add("native", answers=[11, 12, 13, 14, 15, 16], chunk=2, first_token_s=0.1, per_token_s=0.03)
    # tokens at 0.1 0.1 0.13 0.13 0.16 0.16: 0.06 s over 5 gaps
    assert bench.run().backends[0].per_token_s == pytest.approx(0.012)


def test_warm_up_and_rounds_do_not_count_into_the_median(bench: Bench) -> None:
    bench.add("native", answers="Settings", first_token_s=0.25)
    result = bench.run(rounds=3).backends[0]
    assert len(result.answers) == 9
    assert result.warm_up_s == pytest.approx(0.25 + (min(8, len(bench.ids("Settings")) + 1) - 1) * 0.01)


def test_real_disagreement_is_found_with_position_tokens_and_margin(bench: Bench) -> None:
    bench.add("native", answers=[11, 12, 13], tops={12: ((12, -0.1), (22, -2.6))})
    bench.add("hf", answers=[11, 22, 13], tops={22: ((22, -0.2), (12, -1.9))})
    result = bench.run()
    difference = result.pairs[0].differences[0]
    assert (difference.kind, difference.position) == ("real", 1)
    assert difference.first is not None
    assert difference.second is not None
    assert (difference.first.token_id, difference.second.token_id) == (12, 22)
    assert (difference.first.logprob, difference.first.logprob_of_other) == (-0.1, -2.6)
    assert (difference.second.logprob, difference.second.logprob_of_other) == (-0.2, -1.9)
    assert difference.margin == pytest.approx(2.5)
    assert difference.before == bench.family.tokenizer.decode([11])
    assert "0 of 3 prompts (3 real disagreements)" in result.verdict


def test_bfloat16_near_tie_is_told_from_a_disagreement(bench: Bench) -> None:
    bench.add("native", dtype="bfloat16", answers=[11, 12], tops={12: ((12, -0.7), (22, -0.8))})
    bench.add("hf", dtype="bfloat16", answers=[11, 22], tops={22: ((22, -0.7), (12, -0.75))})
    result = bench.run()
    assert {d.kind for d in result.pairs[0].differences} == {"near tie"}
    assert "3 near ties" in result.verdict
    assert not result.all_same


def test_float32_tie_is_judged_by_transformers_own_logits(bench: Bench) -> None:
    bench.add("native", answers=[11, 12], tops={12: ((12, -0.7), (22, -0.9))})
    bench.add("hf", answers=[11, 22], tops={22: ((22, -0.70000), (12, -0.70005))})
    assert bench.run().pairs[0].differences[0].kind == "near tie"


def test_answer_that_ends_early_is_a_difference_of_length(bench: Bench) -> None:
    bench.add("native", answers=[11, 12, 13, 14])
    bench.add("hf", answers=[11, 12])
    difference = bench.run().pairs[0].differences[0]
    assert (difference.kind, difference.position) == ("length", 2)
    assert difference.second is not None
    assert difference.second.token_id is None
    assert "hf ended after 2 tokens" in difference.why


def test_log_probabilities_are_never_asked_for_in_timed_runs(bench: Bench) -> None:
    first = bench.add("native", answers=[11, 12])
    second = bench.add("hf", answers=[11, 22])
    bench.run()
    alone, untimed, together = first.batches[1:4], first.batches[4], first.batches[5]
    timed = [request for batch in [*alone, together] for request in batch]
    assert len(timed) == 3 + 3
    assert all(request.sampling.logprobs == 5 for request in untimed)  # the warm-up of the batch brings them
    assert all(request.sampling.logprobs is None for request in timed)
    asked = [r for batch in second.batches for r in batch if r.sampling.logprobs is not None]
    assert [r.sampling.max_tokens for r in asked] == [2, 2, 2]  # only up to the difference at position 1


def test_failed_request_is_listed_and_counts_nowhere(bench: Bench) -> None:
    bench.add("native", answers=[11, 12])
    bench.add("hf", answers=[11, 12], fail={1: "out of memory"})  # the second of a batch
    result = bench.run()
    assert result.backends[1].batch is not None
    assert result.backends[1].batch.failed == 1
    assert result.backends[1].batch.tokens == 4


def test_engine_that_dies_is_a_result_with_its_error_and_the_others_go_on(bench: Bench) -> None:
    bench.add("native", answers=[11, 12])
    bench.add("hf", answers=[11, 12], fail_load="no room on the device")
    bench.add("vllm", answers=[11, 12])
    result = bench.run()
    assert [b.error for b in result.backends] == [None, "no room on the device", None]
    assert [(p.first, p.second) for p in result.pairs] == [("native", "vllm")]
    assert result.failed
    assert "hf did not run (no room on the device)" in result.verdict


def test_reference_is_the_first_backend_that_runs(bench: Bench) -> None:
    bench.add("native", answers=[11], fail_load="broken")
    bench.add("hf", answers=[11])
    bench.add("vllm", answers=[11])
    assert [(p.first, p.second) for p in bench.run().pairs] == [("hf", "vllm")]


class _Refuses:
    def __init__(self, bench: Bench, name: str) -> None:
        self.bench, self.name, self.usual = bench, name, bench.open

    def __call__(self, setup: Any, engine: Any, progress: Any) -> Any:
        if setup.name == self.name:
            raise ModelError("LLaVA is not among the models native runs")
        return self.usual(setup, engine, progress)


def test_backend_that_cannot_take_the_model_is_skipped_unless_it_was_named(bench: Bench) -> None:
    bench.add("native", answers=[11])
    bench.add("hf", answers=[11])
    bench.open = _Refuses(bench, "native")  # type: ignore[method-assign]
    result = bench.run(optional=True)
    assert [b.backend for b in result.backends] == ["hf"]
    assert result.skipped[0].reason == "LLaVA is not among the models native runs"
    assert not result.failed
    with pytest.raises(ModelError, match="LLaVA"):
        bench.run()


def test_sampled_answers_are_not_called_disagreements(bench: Bench) -> None:
    bench.add("native", answers=[11, 12])
    bench.add("hf", answers=[11, 22])
    result = bench.run(sampling=SamplingParams(max_tokens=8, temperature=0.8, seed=1))
    assert {d.kind for d in result.pairs[0].differences} == {"unknown"}
    assert any("drawn at random" in note for note in result.notes)


def test_unequal_dtypes_and_lengths_are_said(bench: Bench) -> None:
    bench.add("native", answers=[11, 12, 13, 14, 15, 16])
    bench.add("hf", answers=[11], dtype="bfloat16")
    notes = " ".join(bench.run().notes)
    assert "native float32, hf bfloat16" in notes
    assert "differ in length" in notes


def test_answers_that_change_in_a_batch_are_said(bench: Bench) -> None:
    bench.add("native", answers=[[11, 12], [11, 13], [11, 14]])  # by place in the batch; alone it is always the first
    result = bench.run()
    assert result.backends[0].batch is not None
    assert result.backends[0].batch.same_as_alone == 1
    assert "native: 2 of 3 answers change when all are asked at once" in result.notes


def test_right_answers_are_counted_by_exact_text(bench: Bench) -> None:
    bench.add("native", answers={"alpha": "Settings", "beta": "settings", "gamma": " Settings\n"})
    assert bench.run().backends[0].right == 2


def test_everything_is_json(bench: Bench) -> None:
    bench.add("native", answers=[11, 12])
    bench.add("hf", answers=[11, 22])
    plain = json.loads(json.dumps(as_dict(bench.run()), allow_nan=False))
    assert plain["schema"] == "visavis.compare/2"
    assert plain["backends"][0]["answers"][0]["token_ids"] == [11, 12]
    assert plain["backends"][0]["answers"][0]["first_token_s"] == pytest.approx(0.1)
    assert plain["pairs"][0]["differences"][0]["second"]["token_id"] == 22
    assert plain["backends"][0]["answers"][0]["sampling"]["settings"]["max_tokens"]["origin"] == "request"


def test_no_prompts_and_several_answers_are_refused(bench: Bench) -> None:
    bench.add("native", answers=[11])
    with pytest.raises(OptionError, match="n above 1"):
        bench.run(sampling=SamplingParams(n=2))
    bench.cases.clear()
    with pytest.raises(OptionError, match="no prompts"):
        bench.run()


def test_busy_machine_is_said(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.add("native", answers=[11])
    for load, said in ((7.5, True), (0.2, False)):
        machine = {"load_average": load, "cores": 2}
        monkeypatch.setattr("visavis.compare.runner.describe", lambda machine=machine: machine)
        assert any("load average 7.5 on 2 cores" in note for note in bench.run().notes) is said


def test_model_that_changes_between_the_backends_is_said(bench: Bench, tmp_path: Path) -> None:
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(b"old")
    bench.add("native", answers=[11])
    bench.add("hf", answers=[11])
    assert not any("changed meanwhile" in note for note in bench.run(folder=tmp_path).notes)
    usual = bench.open

    def retrain(setup: Any, engine: Any, progress: Any) -> Any:
        if setup.name == "hf":
            weights.write_bytes(b"newer")
        return usual(setup, engine, progress)

    bench.open = retrain  # type: ignore[method-assign]
    assert any("changed meanwhile" in note for note in bench.run(folder=tmp_path).notes)
