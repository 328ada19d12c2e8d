"""What one request does must not touch another: aborts, broken logits, seeds, ends, images."""

from __future__ import annotations

import math
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.engines.native.drive import drain, greedy, make_engine
from tests.engines.native.reference import Part, Reference
from visavis.engine import NativeEngine
from visavis.errors import BackendError, OptionError
from visavis.sampling import ResolvedSampling

pytestmark = pytest.mark.engines

MIXED: list[list[Part]] = [[9], [3, ("image", (1, 8, 6)), 4], [40], [2, ("image", (1, 4, 4)), ("image", (1, 6, 8)), 3]]


@pytest.fixture(scope="module")
def ref(reference: Callable[..., Reference]) -> Reference:
    return reference("qwen2_5_vl", seed=3)


def prompts_of(ref: Reference, parts: list[list[Part]] = MIXED) -> list[Any]:
    return [ref.prompt(p, seed=50 + i) for i, p in enumerate(parts)]


def test_an_aborted_request_leaves_the_others_and_no_block_behind(ref: Reference) -> None:
    prompts = prompts_of(ref)
    expected = greedy(make_engine(ref), prompts, 20)
    for when in range(1, 20, 3):  # while waiting, inside an image, while decoding
        engine = make_engine(ref, max_num_batched_tokens=9, max_num_seqs=3)
        for i, prompt in enumerate(prompts):
            engine.add_request(str(i), prompt, ResolvedSampling(max_tokens=20))
        answers: list[list[int]] = [[] for _ in prompts]
        steps = 0
        while engine.has_work:
            for output in engine.step():
                answers[int(output.request_id)] += output.token_ids
            steps += 1
            if steps == when:
                assert engine.abort("1")
                assert not engine.abort("1")
        assert answers[1] == expected[1][: len(answers[1])]
        assert [a for i, a in enumerate(answers) if i != 1] == [e for i, e in enumerate(expected) if i != 1]
        assert engine.pool.num_free == engine.pool.num_blocks
        assert engine.runner.encoder is not None
        assert engine.runner.encoder.cache.num_read == 0


@pytest.mark.parametrize("kernels", ["torch", "auto"])
def test_a_request_with_broken_logits_fails_alone(ref: Reference, kernels: str) -> None:
    prompts = prompts_of(ref)
    expected = greedy(make_engine(ref), prompts, 12)
    engine = make_engine(ref, kernels=kernels)
    poison = 250  # no random prompt holds ids from 200 on
    embed = engine.runner.model.embed
    engine.runner.model.embed = lambda ids: embed(ids).masked_fill((ids == poison)[:, None], math.nan)  # type: ignore[method-assign]
    bad = ref.prompt([5], seed=1)
    ids = (*bad.token_ids[:4], poison)
    broken = replace(bad, token_ids=ids, canonical_ids=ids)
    for round_ in range(3):  # rows and blocks of the broken one are used again
        answers: dict[str, list[int]] = {}
        errors = {}
        engine.add_request("0", prompts[0], ResolvedSampling(max_tokens=12))
        engine.add_request("broken", broken, ResolvedSampling(max_tokens=12))
        for i in (1, 2, 3):
            engine.add_request(str(i), prompts[i], ResolvedSampling(max_tokens=12))
        while engine.has_work:
            for output in engine.step():
                answers.setdefault(output.request_id, []).extend(output.token_ids)
                if output.finish_reason == "error":
                    errors[output.request_id] = output.error
        assert list(errors) == ["broken"], round_
        assert "not finite" in errors["broken"]
        assert [answers[str(i)] for i in range(4)] == expected, round_
        assert answers["broken"] == []


@pytest.mark.parametrize("how", ["aborted", "going on"])
@pytest.mark.parametrize("kernels", ["torch", "auto"])
def test_a_prefix_spoiled_by_what_stands_behind_it_is_computed_anew(ref: Reference, kernels: str, how: str) -> None:
    """A NaN reaches tokens before it in attention, whose blocks have names before the logits tell."""
    engine = make_engine(ref, kernels=kernels, max_num_batched_tokens=32)
    poison = 250
    embed = engine.runner.model.embed
    engine.runner.model.embed = lambda ids: embed(ids).masked_fill((ids == poison)[:, None], math.nan)  # type: ignore[method-assign]
    long, short = ref.prompt([97], seed=1), ref.prompt([26], seed=2)
    same = long.token_ids[:16]
    ids = (*same, poison, *long.token_ids[17:])
    broken = replace(long, token_ids=ids, canonical_ids=ids)
    ids = (*same, *short.token_ids[16:])
    good = replace(short, token_ids=ids, canonical_ids=ids)
    expected = ref.answer(good).token_ids[:12]
    engine.add_request("broken", broken, ResolvedSampling(max_tokens=12))
    engine.step()
    if how == "aborted":
        engine.abort("broken")
    engine.add_request("good", good, ResolvedSampling(max_tokens=12))
    answer: list[int] = []
    errors, cached = {}, []
    while engine.has_work:
        for output in engine.step():
            if output.finish_reason == "error":
                errors[output.request_id] = output.error
            elif output.request_id == "good":
                answer += output.token_ids
                cached.append(output.num_cached_tokens)
    assert answer == expected
    assert cached[0] == 0
    assert list(errors) == ([] if how == "aborted" else ["broken"])
    assert engine.pool.num_free == engine.pool.num_blocks


def test_an_engine_may_be_closed_while_another_thread_steps(ref: Reference) -> None:
    prompts = prompts_of(ref, [[300], [9], [150]])
    for wait_s in (0.0, 0.01, 0.03, 0.06):
        engine = make_engine(ref, max_num_batched_tokens=32)
        for i, prompt in enumerate(prompts):
            engine.add_request(str(i), prompt, ResolvedSampling(max_tokens=7000, ignore_eos=True))
        said: list[str] = []

        def run(engine: NativeEngine = engine, said: list[str] = said) -> None:
            try:
                while engine.has_work:
                    engine.step()
            except BackendError as error:
                said.append(str(error))

        thread = threading.Thread(target=run)
        thread.start()
        time.sleep(wait_s)
        engine.close()
        thread.join(30)
        assert not thread.is_alive()
        assert said == ["the engine is closed"]


def test_a_batch_that_grows_over_and_shrinks_under_the_compiled_steps_limit_stays_right(ref: Reference) -> None:
    """Decodes change from one path to the other and back; neither may use what it kept from before."""
    prompts = prompts_of(ref, [[9], [11], [8], [10], [12], [9], [7], [10]])  # even enough for torch's dense copy
    lengths = [30, 5, 24, 11, 8, 27, 3, 16]
    alone = greedy(make_engine(ref, kernels="torch"), prompts, 30)
    engine = make_engine(ref, max_num_batched_tokens=20, block_size=4)
    if engine.runner.whole_step is None:
        pytest.skip(f"no compiled step here: {engine.kernels}")
    engine.runner.whole_step.max_batch = 3
    for together in (8, 5):  # the second time newcomers come in when two are left, after steps of the compiled kind
        answers: list[list[int]] = [[] for _ in prompts]
        waiting = list(range(len(prompts)))
        unfinished: set[str] = set()
        while waiting or engine.has_work:
            while waiting and len(unfinished) <= 2:
                for i in waiting[: together - len(unfinished)]:
                    engine.add_request(str(i), prompts[i], ResolvedSampling(max_tokens=lengths[i]))
                    unfinished.add(str(i))
                waiting = [i for i in waiting if str(i) not in unfinished]
            for output in engine.step():
                answers[int(output.request_id)] += output.token_ids
                if output.finish_reason is not None:
                    unfinished.remove(output.request_id)
        assert answers == [answer[:length] for answer, length in zip(alone, lengths, strict=True)]


def test_sampled_answers_do_not_depend_on_batch_chunks_or_preemption(ref: Reference) -> None:
    prompts = prompts_of(ref)
    kinds: list[dict[str, Any]] = [
        {"temperature": 1.2, "seed": 1},
        {"temperature": 0.8, "top_p": 0.9, "seed": 2, "repetition_penalty": 1.2},
        {"temperature": 1.0, "top_k": 20, "seed": 3, "frequency_penalty": 0.5},
        {"temperature": 1.5, "min_p": 0.02, "seed": 4},
    ]

    def run(engine: Any, which: list[int]) -> list[list[int]]:
        for place, i in enumerate(which):
            engine.add_request(str(place), prompts[i], ResolvedSampling(max_tokens=40, **kinds[i]))
        return [[t for t, _ in a] for a in drain(engine, len(which))]

    alone = [run(make_engine(ref), [i])[0] for i in range(4)]
    assert run(make_engine(ref), [0, 1, 2, 3]) == alone
    assert run(make_engine(ref), [3, 1, 0, 2]) == [alone[i] for i in (3, 1, 0, 2)]
    tight = make_engine(ref, block_size=4, num_blocks=28, max_num_batched_tokens=10)
    assert run(tight, [0, 1, 2, 3]) == alone
    assert tight.scheduler.num_preemptions > 0


@pytest.mark.parametrize("penalty", [1.1, 1.5])
def test_repetition_penalty_equals_transformers_placeholders_included(ref: Reference, penalty: float) -> None:
    prompts = prompts_of(ref)
    engine = make_engine(ref)
    for i, prompt in enumerate(prompts):
        engine.add_request(str(i), prompt, ResolvedSampling(max_tokens=32, repetition_penalty=penalty))
    ours = [[t for t, _ in a] for a in drain(engine, len(prompts))]
    for prompt, mine in zip(prompts, ours, strict=True):
        ref.model.model.rope_deltas = None
        with torch.inference_mode():
            out = ref.model.generate(
                **ref.inputs(prompt),
                max_new_tokens=32,
                do_sample=False,
                eos_token_id=None,
                pad_token_id=0,
                repetition_penalty=penalty,
            )
        assert mine == out[0, len(prompt) :].tolist()


def test_logprobs_equal_the_log_softmax_of_transformers_logits(ref: Reference) -> None:
    prompts = prompts_of(ref)
    engine = make_engine(ref)
    for i, prompt in enumerate(prompts):
        engine.add_request(str(i), prompt, ResolvedSampling(max_tokens=8, logprobs=5))
    for prompt, answer in zip(prompts, drain(engine, len(prompts)), strict=True):
        reference = ref.answer(prompt, 8)
        expected = torch.log_softmax(reference.logits, -1)
        for (token, logprobs), row in zip(answer, expected, strict=True):
            assert logprobs.token_id == token
            assert logprobs.logprob == pytest.approx(row[token].item(), abs=1e-4)
            best = row.topk(5)
            assert [t for t, _ in logprobs.top] == best.indices.tolist()
            assert [v for _, v in logprobs.top] == pytest.approx(best.values.tolist(), abs=1e-4)


def test_an_answer_ends_at_eos_stop_ids_or_length(ref: Reference) -> None:
    prompt = prompts_of(ref)[0]
    engine = make_engine(ref)
    full = greedy(engine, [prompt], 20)[0]
    end = next(i for i in range(3, 20) if full[i] not in full[:i])

    def run(**sampling: Any) -> tuple[list[int], Any, Any]:
        engine.add_request("0", prompt, ResolvedSampling(**{"max_tokens": 20, **sampling}))
        tokens: list[int] = []
        while engine.has_work:
            for output in engine.step():
                tokens += output.token_ids
                last = output
        return tokens, last.finish_reason, last.stop_reason

    stopped = (full[: end + 1], "stop", full[end])
    assert run() == (full, "length", None)
    assert run(eos_token_ids=(full[end],)) == stopped
    assert run(stop_token_ids=(full[end],)) == stopped
    assert run(stop_token_ids=(full[end],), ignore_eos=True) == stopped
    assert run(eos_token_ids=(full[end],), ignore_eos=True) == (full, "length", None)
    tokens, reason, _ = run(eos_token_ids=(full[end],), min_tokens=end + 2)
    assert tokens[:end] == full[:end]
    assert tokens[end] != full[end]
    assert len(tokens) >= end + 2
    assert reason in ("stop", "length")


class CountingTower:
    """The tower, and the grids it was asked to encode."""

    def __init__(self, tower: Any) -> None:
        self.tower, self.config, self.device, self.ops = tower, tower.config, tower.device, tower.ops
        self.seen: list[Any] = []

    def __call__(self, patches: torch.Tensor, grids: list[Any]) -> Any:
        self.seen += grids
        return self.tower(patches, grids)


@pytest.mark.parametrize("cache_bytes", [0, 1 << 20])
def test_an_image_is_encoded_once_whatever_the_chunks_and_let_go_when_consumed(
    ref: Reference, cache_bytes: int
) -> None:
    engine = make_engine(ref, max_num_batched_tokens=5, encoder_cache_bytes=cache_bytes)
    encoder = engine.runner.encoder
    assert encoder is not None
    encoder.tower = tower = CountingTower(encoder.tower)  # type: ignore[assignment]
    for i, prompt in enumerate(prompts_of(ref)):
        engine.add_request(str(i), prompt, ResolvedSampling(max_tokens=8))
    while engine.has_work:
        engine.step()
        reading = {seq.uid for seq in engine.scheduler.running if seq.num_computed_tokens < seq.num_prompt_tokens}
        assert {uid for uid, _ in encoder._reading} <= reading
        assert encoder.cache.num_read <= 2 * len(reading)
    assert sorted(tower.seen) == [(1, 4, 4), (1, 6, 8), (1, 8, 6)]
    assert encoder.cache.num_read == 0
    assert (encoder.cache.num_bytes == 0) == (cache_bytes == 0)


@pytest.mark.parametrize("cache_bytes", [0, 1 << 20])
def test_images_of_a_preempted_request_are_let_go_and_encoded_again_unless_kept(
    ref: Reference, cache_bytes: int
) -> None:
    text, image = ref.prompt([30], seed=1), ref.prompt([2, ("image", (1, 16, 16)), 2], seed=2)
    expected = greedy(make_engine(ref), [text, image], 20)
    engine = make_engine(
        ref,
        block_size=4,
        num_blocks=40,
        max_num_batched_tokens=12,
        encoder_cache_bytes=cache_bytes,
        enable_prefix_caching=False,
    )
    encoder = engine.runner.encoder
    assert encoder is not None
    encoder.tower = tower = CountingTower(encoder.tower)  # type: ignore[assignment]
    engine.add_request("0", text, ResolvedSampling(max_tokens=20))
    engine.add_request("1", image, ResolvedSampling(max_tokens=20))
    answers: list[list[int]] = [[], []]

    def step() -> None:
        for output in engine.step():
            answers[int(output.request_id)] += output.token_ids

    while not encoder._reading:  # until the image is being read
        step()
    taken: list[int] = []
    assert engine.pool.grow(taken, engine.pool.num_free * 4)  # memory is gone: the next block must come from someone
    while not engine.scheduler.num_preemptions:
        step()
    assert encoder.cache.num_read == 0
    engine.pool.release(taken)
    while engine.has_work:
        step()
    assert tower.seen == [(1, 16, 16)] * (1 if cache_bytes else 2)
    assert answers == expected


def test_times_in_the_queue_are_told_with_the_first_token(ref: Reference) -> None:
    engine = make_engine(ref, max_num_seqs=1)
    prompt = prompts_of(ref)[0]  # made before the clocks run
    for i in range(2):
        engine.add_request(str(i), prompt, ResolvedSampling(max_tokens=3))
    told: dict[str, list[float | None]] = {"0": [], "1": []}
    while engine.has_work:
        for output in engine.step():
            told[output.request_id].append(output.queue_s)
    assert all(queue[0] is not None and queue[1:] == [None, None] for queue in told.values())
    assert told["1"][0] > told["0"][0]  # type: ignore[operator]


def test_request_ids_are_unique_and_a_closed_engine_says_so(ref: Reference) -> None:
    engine = make_engine(ref)
    prompt = prompts_of(ref)[0]
    engine.add_request("same", prompt, ResolvedSampling(max_tokens=3))
    with pytest.raises(OptionError, match="'same' is already running"):
        engine.add_request("same", prompt, ResolvedSampling(max_tokens=3))
    assert engine.step()
    engine.close()
    engine.close()
    with pytest.raises(BackendError, match="closed"):
        engine.step()


def test_loading_reports_its_phases_in_order(ref: Reference) -> None:
    from visavis.engine import NativeEngine

    phases: list[tuple[str, float]] = []
    NativeEngine(ref.folder, ref.config, progress=lambda phase, seconds: phases.append((phase, seconds)))
    assert [name for name, _ in phases] == ["compile", "load", "ready"]
    assert [seconds for _, seconds in phases] == sorted(seconds for _, seconds in phases)


def test_importing_the_engine_imports_little_more_than_torch() -> None:
    code = (
        "import sys, torch; before = set(sys.modules); import visavis.engine; "
        "heavy = ('torch._dynamo', 'torch._inductor', 'torchvision', 'transformers', 'PIL', 'huggingface_hub'); "
        "print([m for m in set(sys.modules) - before if m.startswith(heavy)])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
