"""Requests that come while others are answered."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.unit.backends.conftest import Make, StubFamily, make_prompt
from tests.unit.servers.scripted import Exchange, Server, piece, serving
from visavis.backends.base import Capabilities, ModelInterface
from visavis.backends.fake import FakeModel
from visavis.backends.openai import OpenAIModel
from visavis.backends.options import EngineOptions
from visavis.backends.registry import new
from visavis.backends.worker import WorkerModel
from visavis.completion import Completion
from visavis.errors import OptionError
from visavis.families import load_family
from visavis.sampling import SamplingParams

IDS = list(range(20, 60))


def answers(
    model: ModelInterface, prompts: Sequence[Any], arrivals: Sequence[float], tokens: int = 4
) -> list[Completion]:
    params = SamplingParams(max_tokens=tokens, ignore_eos=True)
    deltas = model.stream_batch(prompts, params, arrivals)
    done = {d.index: d.completion for d in deltas if d.completion is not None}
    return [done[i] for i in range(len(prompts))]


def test_times_count_from_the_arrival(family: StubFamily, fake: Make) -> None:
    model = fake(answers=IDS, first_token_s=0.1, per_token_s=0.01)
    prompts = [make_prompt(family, "a"), make_prompt(family, "b"), make_prompt(family, "c")]
    early, joined, late = answers(model, prompts, [0.0, 0.105, 5.0])
    # Steps end at 0.1 (a), 0.11 (a), then b, due at 0.105, is taken up: 0.21, 0.22 end a; 0.23 and 0.24 end b.
    assert early.timings.token_times == pytest.approx([0.1, 0.11, 0.21, 0.22])
    assert joined.timings.token_times == pytest.approx([t - 0.105 for t in (0.21, 0.22, 0.23, 0.24)])
    assert joined.timings.queue_s == pytest.approx(0.005)  # the step that ran until 0.11
    assert late.timings.token_times == pytest.approx([0.1, 0.11, 0.12, 0.13])  # it finds the engine at rest


def test_an_engine_that_cannot_is_refused_by_name(family: StubFamily, fake: Make) -> None:
    class Static(FakeModel):
        def capabilities(self) -> Capabilities:
            return replace(super().capabilities(), arrivals=False, batching="static")

    model = Static(family=family, name="static").load(None, EngineOptions())
    prompts = [make_prompt(family, "a"), make_prompt(family, "b")]
    with pytest.raises(OptionError, match=r"static cannot take requests while it answers others \(static batches\)"):
        model.stream_batch(prompts, None, [0.0, 1.0])
    assert len(list(model.stream_batch(prompts, None, [0.0, 0.0]))) > 0  # all at once is no such thing


@pytest.mark.parametrize("arrivals", [[0.0], [0.0, -1.0], [0.0, float("nan")]])
def test_times_that_are_none_are_refused(family: StubFamily, fake: Make, arrivals: list[float]) -> None:
    with pytest.raises(OptionError, match="arrival"):
        fake().stream_batch([make_prompt(family, "a"), make_prompt(family, "b")], None, arrivals)


def test_a_request_aborted_before_it_is_due_never_runs(family: StubFamily, fake: Make) -> None:
    model = fake(answers=IDS)
    deltas = model.stream_batch(
        [make_prompt(family, "a"), make_prompt(family, "b")], SamplingParams(max_tokens=8), [0.0, 50.0]
    )
    next(deltas)
    model._abort(1)
    ends = {d.index: d.completion.finish_reason for d in deltas if d.completion is not None}
    assert ends == {0: "length", 1: "abort"}
    assert model.clock() < 102  # the clock began at 100.5: nobody waited until 50 s later


def test_arrivals_cross_the_process_border() -> None:
    options = EngineOptions(extra={"answers": IDS, "first_token_s": 0.1, "per_token_s": 0.01})
    with WorkerModel("fake").load(None, options) as model:
        prompt = model.prepare("hi")
        first, second = answers(model, [prompt, prompt], [0.0, 5.0])
    assert first.timings.token_times == pytest.approx([0.1, 0.11, 0.12, 0.13], abs=1e-3)
    assert second.timings.token_times == pytest.approx([0.1, 0.11, 0.12, 0.13], abs=1e-3)


def test_a_server_gets_a_request_while_it_answers_another() -> None:
    second_came = threading.Event()

    def first(exchange: Exchange) -> None:
        exchange.begin_stream()
        exchange.event(piece("a"))
        assert second_came.wait(20), "the second request was held back"
        exchange.event(piece("b", finish="stop"))
        exchange.event("[DONE]")

    def second(exchange: Exchange) -> None:
        second_came.set()
        exchange.stream(piece("c"), piece("d", finish="stop"))

    with serving(Server(answers=[first, second])) as server:
        model = OpenAIModel().load(None, EngineOptions(extra={"base_url": server.url, "model": "m"}))
        prompt = model.prepare("hi")
        done = [d.completion for d in model.stream_batch([prompt] * 2, None, [0.0, 0.2]) if d.completion is not None]
        model.close()
    assert sorted(c.text for c in done) == ["ab", "cd"]
    assert all(c.timings.token_times[0] >= 0 for c in done)


def test_native_joins_requests_to_a_running_batch_without_changing_a_token() -> None:
    family = load_family(None)
    prompts = [family.prepare_messages(text) for text in ("one", "two words", "and three words")]
    with new("native").load(None, EngineOptions(threads=1, max_model_len=512)) as model:
        alone = [answers(model, [prompt], [0.0], 24)[0].token_ids for prompt in prompts]
        together = answers(model, prompts, [0.0, 0.02, 0.5], 24)
    assert [c.token_ids for c in together] == alone
    assert all(c.timings.token_times[0] > 0 for c in together)


# ---- users who wait for their answer before they ask again ------------------------------------------------------


def closed_loop(
    model: ModelInterface, prompts: Sequence[Any], users: int, tokens: Sequence[int], **more: Any
) -> list[Completion]:
    params = [SamplingParams(max_tokens=n, ignore_eos=True, **more) for n in tokens]
    done = {d.index: d.completion for d in model.stream_batch(prompts, params, users=users) if d.completion is not None}
    return [done[i] for i in range(len(prompts))]


def test_a_user_asks_again_when_the_answer_is_whole(family: StubFamily, fake: Make) -> None:
    model = fake(answers=IDS, first_token_s=0.1, per_token_s=0.01)
    a, b, c = closed_loop(model, [make_prompt(family, t) for t in "abc"], 2, [2, 4, 2])
    # Steps end at 0.1 and 0.11, which ends a; its user asks c, whose first step lasts until 0.21, the next until 0.22.
    assert a.timings.token_times == pytest.approx([0.1, 0.11])
    assert b.timings.token_times == pytest.approx([0.1, 0.11, 0.21, 0.22])
    assert c.timings.token_times == pytest.approx([0.1, 0.11])  # counted from 0.11
    assert c.timings.queue_s == pytest.approx(0.0)


def test_with_one_user_each_request_finds_the_engine_at_rest(family: StubFamily, fake: Make) -> None:
    model = fake(answers=IDS, first_token_s=0.1, per_token_s=0.01)
    for done in closed_loop(model, [make_prompt(family, t) for t in "abcd"], 1, [3] * 4):
        assert done.timings.token_times == pytest.approx([0.1, 0.11, 0.12])


def test_a_failed_answer_does_not_keep_its_user_from_asking_again(family: StubFamily, fake: Make) -> None:
    model = fake(answers=IDS, fail={0: "out of luck"})
    failed, done = closed_loop(model, [make_prompt(family, t) for t in "ab"], 1, [2, 2])
    assert (failed.error, done.error) == ("out of luck", None)


def test_an_answer_that_a_stop_string_ended_is_ended_for_its_user(family: StubFamily, fake: Make) -> None:
    model = fake(answers="one two three")
    done = closed_loop(model, [make_prompt(family, t) for t in "ab"], 1, [50, 50], stop=["two"])
    assert [c.text for c in done] == ["one ", "one "]


def test_a_request_aborted_while_it_waits_for_another_never_runs(family: StubFamily, fake: Make) -> None:
    model = fake(answers=IDS)
    deltas = model.stream_batch([make_prompt(family, t) for t in "abc"], SamplingParams(max_tokens=8), users=1)
    next(deltas)
    model._abort(1)
    ends = {d.index: d.completion.finish_reason for d in deltas if d.completion is not None}
    assert ends == {0: "length", 1: "abort", 2: "length"}  # whose user then asks the third


@pytest.mark.parametrize(
    ("users", "arrivals", "more", "said"),
    [
        (0, None, {}, "1 or more"),
        (1, [0.0, 1.0], {}, "users and arrivals exclude each other"),
        (1, None, {"n": 2}, "users and n exclude each other"),
    ],
)
def test_a_closed_loop_that_cannot_be_is_refused(
    family: StubFamily, fake: Make, users: int, arrivals: list[float] | None, more: dict[str, int], said: str
) -> None:
    prompts = [make_prompt(family, "a"), make_prompt(family, "b")]
    with pytest.raises(OptionError, match=said):
        fake().stream_batch(prompts, SamplingParams(**more), arrivals, users)


def test_an_engine_of_static_batches_is_refused_for_users_by_name(family: StubFamily) -> None:
    class Static(FakeModel):
        def capabilities(self) -> Capabilities:
            return replace(super().capabilities(), arrivals=False, batching="static")

    model = Static(family=family, name="static").load(None, EngineOptions())
    prompts = [make_prompt(family, "a"), make_prompt(family, "b")]
    with pytest.raises(OptionError, match=r"static cannot take requests .* as 1 users need it"):
        model.stream_batch(prompts, None, users=1)
    assert len(list(model.stream_batch(prompts, None, users=2))) > 0  # all at once


def test_users_cross_the_process_border() -> None:
    options = EngineOptions(extra={"answers": IDS, "first_token_s": 0.1, "per_token_s": 0.01})
    with WorkerModel("fake").load(None, options) as model:
        done = closed_loop(model, [model.prepare("hi")] * 3, 1, [2, 2, 2])
    for completion in done:
        assert completion.timings.token_times == pytest.approx([0.1, 0.11], abs=1e-3)


def test_a_server_is_asked_again_only_when_the_answer_is_whole() -> None:
    order: list[str] = []

    def slow(exchange: Exchange) -> None:
        order.append("first asked")
        exchange.begin_stream()
        exchange.event(piece("a"))
        order.append("first answered")
        exchange.event(piece("b", finish="stop"))
        exchange.event("[DONE]")

    def second(exchange: Exchange) -> None:
        order.append("second asked")
        exchange.stream(piece("c", finish="stop"))

    with serving(Server(answers=[slow, second])) as server:
        model = OpenAIModel().load(None, EngineOptions(extra={"base_url": server.url, "model": "m"}))
        prompt = model.prepare("hi")
        done = [d.completion for d in model.stream_batch([prompt] * 2, None, users=1) if d.completion is not None]
        model.close()
    assert order == ["first asked", "first answered", "second asked"]
    assert [c.text for c in done] == ["ab", "c"]


def test_native_gives_users_the_same_tokens_as_all_at_once() -> None:
    family = load_family(None)
    prompts = [family.prepare_messages(text) for text in ("one", "two words", "and three words", "four", "five")]
    with new("native").load(None, EngineOptions(threads=1, max_model_len=512)) as model:
        alone = [answers(model, [prompt], [0.0], 12)[0].token_ids for prompt in prompts]
        together = closed_loop(model, prompts, 2, [12, 5, 7, 12, 3])
    assert [c.token_ids for c in together] == [ids[:n] for ids, n in zip(alone, [12, 5, 7, 12, 3], strict=True)]
    assert all(c.timings.token_times[0] > 0 for c in together)
