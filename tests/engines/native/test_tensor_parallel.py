"""A model over several processes (gloo on the CPU) answers as transformers does, and ends in order whatever happens."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.engines.native import worker_short_of_memory
from tests.engines.native.drive import drain, forced_logits, greedy, make_engine
from tests.engines.native.reference import Part, Reference, Tally
from tests.engines.native.test_quantized_weights import quantised
from tests.reference.quantized import Format
from tests.reference.tiny_models import FAMILIES, VL_FAMILIES
from visavis.engine import NativeEngine
from visavis.engine.parallel import group as group_module
from visavis.engine.parallel.group import WorkerGroup
from visavis.errors import BackendError, ModelError
from visavis.sampling import ResolvedSampling

pytestmark = pytest.mark.engines

TOKENS = 24
TEXT: list[list[Part]] = [[1], [33], [120]]
VISUAL: list[list[Part]] = [
    [3, ("image", (1, 4, 12)), 2, ("image", (1, 12, 4)), ("image", (1, 16, 8)), 5],
    [1, ("image", (1, 8, 6)), 7, ("video", (2, 4, 6)), 3],
]


@pytest.fixture(scope="module")
def kept(reference: Callable[..., Reference]) -> Iterator[tuple[Reference, NativeEngine]]:
    """Two ranks that several tests use one after the other."""
    ref = reference("qwen2_5_vl", seed=5)
    subject = make_engine(ref, tensor_parallel_size=2, device="cpu", max_model_len=512)
    yield ref, subject
    subject.close()


@pytest.fixture
def engine() -> Iterator[Callable[..., NativeEngine]]:
    """Engines of two ranks, closed behind the test."""
    made: list[NativeEngine] = []

    def make(ref: Reference, **settings: Any) -> NativeEngine:
        settings = {"tensor_parallel_size": 2, "device": "cpu", "max_model_len": 512, **settings}
        made.append(make_engine(ref, **settings))
        return made[-1]

    yield make
    for subject in made:
        pids = group_of(subject).pids
        subject.close()
        assert not [pid for pid in pids if runs(pid)]


def group_of(subject: NativeEngine) -> WorkerGroup:
    assert isinstance(subject.communicator, WorkerGroup)
    return subject.communicator


def runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1][0]
    except OSError:
        return False
    return state not in "ZX"


def check(ref: Reference, subject: NativeEngine, label: str) -> None:
    """Answers, twice (the second time from the prefix cache), and the logits along them."""
    parts = TEXT + (VISUAL if ref.vision else [])
    prompts = [ref.prompt(p, seed=i) for i, p in enumerate(parts)]
    answers = [ref.answer(p, TOKENS) for p in prompts]
    tally = Tally()
    for turn in ("first", "cached"):
        for i, (ours, answer) in enumerate(zip(greedy(subject, prompts, TOKENS), answers, strict=True)):
            tally.check(f"{label} prompt {i} {turn}", ours, answer)
    for logits, answer in zip(forced_logits(subject, prompts, answers), answers, strict=True):
        torch.testing.assert_close(logits, answer.logits, atol=1e-4, rtol=0)


# ---- the same answers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_two_ranks_answer_as_transformers(
    family: str, reference: Callable[..., Reference], engine: Callable[..., NativeEngine]
) -> None:
    """Chunks of 50 tokens end inside images and share steps with decodes; a cache for little more than the longest
    request preempts the others."""
    bias = {"attention_bias": True} if family == "llama" else {}  # of the output too, which rank 0 alone adds
    ref = reference(family, seed=5, **bias)
    subject = engine(ref, max_num_batched_tokens=50, block_size=4, num_blocks=50, max_model_len=None)
    assert subject.model_config.num_heads * 2 == ref.config.get("text_config", ref.config)["num_attention_heads"]
    if family in VL_FAMILIES:
        assert subject.model_config.vision is not None
        assert subject.model_config.vision.shards == 2
    check(ref, subject, family)
    assert subject.scheduler.num_preemptions > 0


def test_four_ranks_share_two_key_heads_and_leave_a_tower_of_two_heads_whole(
    reference: Callable[..., Reference], engine: Callable[..., NativeEngine]
) -> None:
    ref = reference("qwen3_vl", seed=6)
    subject = engine(ref, tensor_parallel_size=4)
    assert (subject.model_config.num_heads, subject.model_config.num_kv_heads) == (1, 1)
    assert subject.model_config.vision is not None
    assert subject.model_config.vision.shards == 1
    check(ref, subject, "four ranks")


def test_a_tied_head_of_a_vocabulary_that_does_not_divide(
    reference: Callable[..., Reference], engine: Callable[..., NativeEngine]
) -> None:
    ref = reference("qwen3", seed=7, heads=6, kv_heads=3, tied=True)
    assert ref.config["vocab_size"] % 3
    check(ref, engine(ref, tensor_parallel_size=3), "three ranks")


@pytest.mark.parametrize("method", ["awq", "gptq"])
def test_shares_of_a_quantised_checkpoint(
    method: str, reference: Callable[..., Reference], engine: Callable[..., NativeEngine], tmp_path: Path
) -> None:
    """32 columns of the output projection and 64 of the down projection on each rank, in groups of 32."""
    dense = reference("qwen2", seed=9, intermediate=128)
    ref = quantised(dense, tmp_path / method, Format(method, group=32))
    check(ref, engine(ref), method)


def test_activation_order_cannot_be_divided_and_says_so(reference: Callable[..., Reference], tmp_path: Path) -> None:
    ref = quantised(reference("qwen2", seed=9, intermediate=128), tmp_path / "g", Format("gptq", desc_act=True))
    with pytest.raises(ModelError, match="desc_act cannot be split over devices"):
        make_engine(ref, tensor_parallel_size=2, device="cpu")


def test_what_is_sampled_is_what_one_process_samples(kept: tuple[Reference, NativeEngine]) -> None:
    """Rank 0 samples from the whole vocabulary: penalties, filters, seeds, log-probabilities of answer and prompt."""
    ref, parallel = kept
    asked = [
        ResolvedSampling(max_tokens=TOKENS, temperature=0.9, top_p=0.8, seed=3, repetition_penalty=1.2),
        ResolvedSampling(max_tokens=TOKENS, logprobs=3, prompt_logprobs=2),
        ResolvedSampling(max_tokens=TOKENS, temperature=1.2, top_k=9, min_p=0.02, seed=4),
    ]
    found = []
    for subject in (parallel, make_engine(ref, kernels="torch", device="cpu", max_model_len=512)):
        for i, sampling in enumerate(asked):
            subject.add_request(str(i), ref.prompt([9 + i], seed=i), sampling)
        prompts: dict[str, Any] = {}
        answers: list[list[tuple[int, Any]]] = [[], [], []]
        while subject.has_work:
            for output in subject.step():
                answers[int(output.request_id)] += zip(
                    output.token_ids, output.logprobs or [None] * len(output.token_ids), strict=True
                )
                if output.prompt_logprobs is not None:
                    prompts[output.request_id] = output.prompt_logprobs
        found.append((answers, prompts))
    (ours, our_prompts), (theirs, their_prompts) = found
    assert [[t for t, _ in a] for a in ours] == [[t for t, _ in a] for a in theirs]
    assert [entry.logprob for _, entry in ours[1]] == pytest.approx([e.logprob for _, e in theirs[1]], abs=1e-4)
    assert list(our_prompts) == list(their_prompts) == ["1"]
    mine, others = (p["1"][1:] for p in (our_prompts, their_prompts))
    assert [e.logprob for e in mine] == pytest.approx([e.logprob for e in others], abs=1e-4)


def test_an_aborted_request_leaves_the_others_alone(kept: tuple[Reference, NativeEngine]) -> None:
    ref, subject = kept
    prompts = [ref.prompt(p, seed=i) for i, p in enumerate([*TEXT[:2], VISUAL[0]])]
    expected = ref.answer(prompts[2], TOKENS).token_ids
    for i, prompt in enumerate(prompts):
        subject.add_request(str(i), prompt, ResolvedSampling(max_tokens=TOKENS))
    tokens: list[int] = []
    for step in range(1000):
        if not subject.has_work:
            break
        if step == 3:
            assert subject.abort("1")
        for output in subject.step():
            tokens += output.token_ids if output.request_id == "2" else ()
    assert tokens == expected


# ---- too little memory -----------------------------------------------------------------------------------------------


def check_that_it_backs_off(rank: int, ref: Reference, subject: NativeEngine) -> None:
    prompts = [ref.prompt(p, seed=70 + i) for i, p in enumerate([*TEXT, VISUAL[1]])]
    expected = [ref.answer(p, TOKENS).token_ids for p in prompts]
    for i, prompt in enumerate(prompts):
        subject.add_request(str(i), prompt, ResolvedSampling(max_tokens=TOKENS))
    with pytest.warns(UserWarning, match=f"rank {rank}: .* can't allocate memory"):
        answers = [[t for t, _ in tokens] for tokens in drain(subject, len(prompts))]
    assert answers == expected
    assert subject.statistics().out_of_memory > 0


def test_a_step_for_which_rank_0_lacks_memory_is_made_smaller(
    kept: tuple[Reference, NativeEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_module, "reserve", worker_short_of_memory.reserve)
    check_that_it_backs_off(0, *kept)


def test_a_step_for_which_another_rank_lacks_memory_is_made_smaller(
    reference: Callable[..., Reference], engine: Callable[..., NativeEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_module, "WORKER", worker_short_of_memory.__name__)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parents[3]), *sys.path]))
    ref = reference("qwen2_5_vl", seed=5)
    check_that_it_backs_off(1, ref, engine(ref))


# ---- ends ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def busy(reference: Callable[..., Reference], engine: Callable[..., NativeEngine]) -> NativeEngine:
    """In the middle of an answer."""
    ref = reference("qwen2", seed=5)
    subject = engine(ref)
    subject.add_request("0", ref.prompt([5], seed=1), ResolvedSampling(max_tokens=400))
    for _ in range(3):
        subject.step()
    return subject


def test_a_rank_that_dies_between_steps_ends_the_engine(busy: NativeEngine) -> None:
    (pid,) = group_of(busy).pids
    os.kill(pid, signal.SIGKILL)
    until_dead = (busy.step() for _ in range(50))
    with pytest.raises(BackendError, match=rf"rank 1 \(process {pid}\) was killed by SIGKILL"):
        list(until_dead)
    with pytest.raises(BackendError, match="rank 1"):
        busy.step()


def test_a_rank_that_dies_in_the_middle_of_a_step_ends_the_engine(busy: NativeEngine) -> None:
    (pid,) = group_of(busy).pids
    os.kill(pid, signal.SIGSTOP)  # so that rank 0 waits for it
    threading.Timer(0.5, os.kill, (pid, signal.SIGKILL)).start()
    start = time.monotonic()
    with pytest.raises(BackendError, match=r"rank 1 .* was killed by SIGKILL"):
        busy.step()
    assert 0.4 < time.monotonic() - start < 30


def test_a_rank_that_is_silent_ends_the_engine(busy: NativeEngine) -> None:
    group = group_of(busy)
    os.kill(group.pids[0], signal.SIGSTOP)
    group.timeout_s = 0.5
    with pytest.raises(BackendError, match=r"a step has not ended after 0 s|a step has not ended after 1 s"):
        busy.step()


def test_an_error_of_rank_0_ends_the_engine_and_not_silently(busy: NativeEngine) -> None:
    def fail(step: Any) -> Any:
        raise ValueError("planted")

    busy.runner.run = fail  # type: ignore[method-assign]
    with pytest.raises(ValueError, match="planted"):
        busy.step()
    with pytest.raises(BackendError, match="a step was broken off: ValueError: planted"):
        busy.step()


def test_a_worker_that_cannot_start_is_told_with_its_last_words(
    reference: Callable[..., Reference], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_module, "WORKER", "visavis.engine.parallel.nowhere")
    with pytest.raises(BackendError, match=r"(?s)rank 1 .* ended with exit code 1.*nowhere"):
        make_engine(reference("qwen2", seed=5), tensor_parallel_size=2, device="cpu")


def test_workers_end_when_their_engine_is_killed(reference: Callable[..., Reference]) -> None:
    ref = reference("qwen2", seed=5)
    script = textwrap.dedent("""
        import json, sys, time
        from pathlib import Path
        from visavis.engine import EngineConfig, NativeEngine
        folder = Path(sys.argv[1])
        config = json.loads((folder / "config.json").read_text())
        engine = NativeEngine(folder, config, EngineConfig(device="cpu", tensor_parallel_size=2))
        print(*engine.communicator.pids, flush=True)
        time.sleep(60)
    """)
    with subprocess.Popen(
        [sys.executable, "-c", script, str(ref.folder)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        assert runs(pid)
        process.kill()
    until = time.monotonic() + 20
    while runs(pid) and time.monotonic() < until:
        time.sleep(0.02)
    assert not runs(pid)


def test_workers_end_with_an_engine_that_nobody_holds_any_more(reference: Callable[..., Reference]) -> None:
    subject = make_engine(reference("qwen2", seed=5), tensor_parallel_size=2, device="cpu")
    pids = group_of(subject).pids
    del subject
    import gc

    gc.collect()
    assert not [pid for pid in pids if runs(pid)]
