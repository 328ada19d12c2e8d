"""What the runner adds to an engine: text, stop strings, n, errors, timings, aborts. On a fake engine and clock."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import pytest

from tests.unit.backends.conftest import Make, StubFamily, make_prompt
from visavis.backends.base import EngineRequest, TokenEvent
from visavis.backends.fake import FakeModel
from visavis.backends.options import EngineOptions
from visavis.backends.runner import derived_seed
from visavis.completion import MediaSize, TokenLogprobs
from visavis.errors import BackendError, ContextLengthError, OptionError, RequestError
from visavis.sampling import SamplingParams


def params(**values: Any) -> SamplingParams:
    return SamplingParams.from_mapping(values)


def test_an_answer_with_its_bookkeeping(fake: Make, family: StubFamily) -> None:
    model = fake(answers="yes <|box_start|>(1,2),(3,4)<|box_end|>")
    prompt = make_prompt(family, "where?", images=1)
    (got,) = model.complete([prompt])
    eos = family.eos_token_ids[0]
    assert got.text == "yes <|box_start|>(1,2),(3,4)<|box_end|>"
    assert got.token_ids == (*family.tokenizer.encode(got.text, allow_special=True), eos)
    assert (got.finish_reason, got.stop_reason, got.error) == ("stop", eos, None)
    assert (got.backend, got.model) == ("fake", "stub-model")
    assert (got.prompt_tokens, got.image_tokens, got.completion_tokens) == (len(prompt), 6, len(got.token_ids))
    assert got.media_sizes == (MediaSize((60, 90), (56, 84)),)
    assert got.box_format == "qwen2_vl"
    assert got.sampling.origins["eos_token_ids"] == "model"
    assert (got.alternatives, got.logprobs, got.prompt_logprobs) == ((), None, None)


def test_joined_deltas_equal_the_text_and_the_ids(fake: Make, family: StubFamily) -> None:
    model = fake(answers={"one": "Привет, мир 😀 and more", "two": "short"}, chunk=2)
    prompts = [make_prompt(family, "one"), make_prompt(family, "two")]
    texts, ids, last = {0: "", 1: ""}, {0: [], 1: []}, {}
    for delta in model.stream_batch(prompts):
        assert delta.index not in last, "a delta after the last one"
        texts[delta.index] += delta.text
        ids[delta.index] += list(delta.token_ids)
        if delta.completion is not None:
            last[delta.index] = delta.completion
    assert {i: c.text for i, c in last.items()} == texts == {0: "Привет, мир 😀 and more", 1: "short"}
    assert {i: list(c.token_ids) for i, c in last.items()} == ids


def test_times_count_from_submission_on_the_engines_clock(fake: Make, family: StubFamily) -> None:
    model = fake(answers="abcd", queue_s=0.5, first_token_s=2.0, per_token_s=0.25, chunk=2)
    (got,) = model.complete([make_prompt(family, "x")])
    timings = got.timings
    assert len(got.token_ids) == 5
    assert timings.token_times == pytest.approx((2.5, 2.5, 2.75, 2.75, 3.0))
    assert timings.first_token_s == pytest.approx(2.5)
    assert timings.queue_s == pytest.approx(0.5)
    assert timings.total_s == pytest.approx(3.0)
    assert timings.prepare_s == 0.25
    assert timings.decode_tokens_per_s == pytest.approx(4 / 0.5)


# ---- ends ----------------------------------------------------------------------------------------------------------


def test_max_tokens_ends_with_length(fake: Make, family: StubFamily) -> None:
    (got,) = fake(answers="abcdefgh").complete([make_prompt(family, "x")], params(max_tokens=3))
    assert (got.text, got.finish_reason, got.stop_reason) == ("abc", "length", None)


def test_a_users_stop_id_ends_and_stays_in_the_text_when_it_is_no_frame(fake: Make, family: StubFamily) -> None:
    box_end = family.tokenizer.token_to_id("<|box_end|>")
    model = fake(answers="<|box_start|>(1,2)<|box_end|> and more")
    (got,) = model.complete([make_prompt(family, "x")], params(stop_token_ids=[box_end]))
    assert got.text == "<|box_start|>(1,2)<|box_end|>"
    assert (got.finish_reason, got.stop_reason) == ("stop", box_end)


@pytest.mark.parametrize("chunk", [1, 3, 100])
def test_a_stop_string_cuts_text_and_ids_at_the_same_place_for_every_chunk_size(
    fake: Make, family: StubFamily, chunk: int
) -> None:
    model = fake(answers="one STOP two", chunk=chunk)
    (got,) = model.complete([make_prompt(family, "x")], params(stop="STOP", logprobs=1))
    assert (got.text, got.finish_reason, got.stop_reason) == ("one ", "stop", "STOP")
    assert family.tokenizer.decode(got.token_ids) == "one STOP"
    assert len(got.timings.token_times) == len(got.token_ids) == len(got.logprobs or ())


def test_a_stop_string_aborts_the_request_and_no_other(fake: Make, family: StubFamily) -> None:
    model = fake(answers={"a": "x STOP y z", "b": "a much longer answer than that one"})
    first, second = model.complete([make_prompt(family, "a"), make_prompt(family, "b")], params(stop="STOP"))
    assert model.aborted == [0]
    assert first.text == "x "
    assert (second.text, second.stop_reason) == ("a much longer answer than that one", family.eos_token_ids[0])


def test_a_stop_string_at_the_very_end_needs_no_abort(fake: Make, family: StubFamily) -> None:
    model = fake(answers="x STOP", chunk=100)
    (got,) = model.complete([make_prompt(family, "a")], params(stop="STOP"))
    assert (got.text, got.stop_reason, model.aborted) == ("x ", "STOP", [])


def test_min_tokens_holds_for_stop_strings(fake: Make, family: StubFamily) -> None:
    (got,) = fake(answers="a.b.c.d").complete([make_prompt(family, "x")], params(stop=".", min_tokens=3))
    assert got.text == "a.b"


@pytest.mark.parametrize(
    ("policy", "text"),
    [("structural", "<|box_start|>1<|box_end|>"), ("all", "<|box_start|>1<|box_end|><|im_end|>"), ("none", "1")],
)
def test_special_token_policies_change_text_and_never_ids(
    fake: Make, family: StubFamily, policy: str, text: str
) -> None:
    (got,) = fake(answers="<|box_start|>1<|box_end|>").complete(
        [make_prompt(family, "x")], params(special_tokens=policy)
    )
    assert got.text == text
    assert len(got.token_ids) == 4


# ---- n -------------------------------------------------------------------------------------------------------------


def test_n_answers_with_seeds_of_their_own(fake: Make, family: StubFamily) -> None:
    model = fake(answers=["first", "second", "third", "lone"])
    prompts = [make_prompt(family, "a"), make_prompt(family, "b")]
    many, one = model.complete(prompts, [params(n=3, temperature=1, seed=42), params(temperature=1, seed=42)])
    assert [many.text, *(a.text for a in many.alternatives)] == ["first", "second", "third"]
    assert one.text == "lone"
    assert one.alternatives == ()
    assert many.sampling.n == 3
    seeds = [r.sampling.seed for r in model.batches[0]]
    assert seeds[0] == seeds[3] == 42, "the first of n is what n=1 would give"
    assert len(set(seeds[:3])) == 3
    assert all(r.sampling.n == 1 for r in model.batches[0])
    assert [r.index for r in model.batches[0]] == [0, 1, 2, 3]


def test_only_the_first_of_n_is_streamed(fake: Make, family: StubFamily) -> None:
    model = fake(answers=["ab", "a much longer second answer"])
    deltas = list(model.stream_batch([make_prompt(family, "a")], params(n=2)))
    assert "".join(d.text for d in deltas) == "ab"
    assert [d.completion is None for d in deltas] == [True] * (len(deltas) - 1) + [False]
    assert deltas[-1].completion is not None
    assert deltas[-1].completion.alternatives[0].text == "a much longer second answer"


def test_derived_seeds_are_fixed_and_in_range() -> None:
    seeds = [derived_seed(7, k) for k in range(100)]
    assert seeds[0] == 7
    assert len(set(seeds)) == 100
    assert all(0 <= s < 2**63 for s in seeds)
    assert not set(seeds[1:]) & {derived_seed(8, k) for k in range(100)}
    assert seeds == [derived_seed(7, k) for k in range(100)]


# ---- errors --------------------------------------------------------------------------------------------------------


def test_a_failed_request_does_not_end_the_others(fake: Make, family: StubFamily) -> None:
    model = fake(answers="fine", fail={1: "it broke"})
    prompts = [make_prompt(family, t) for t in "abc"]
    got = model.complete(prompts)
    assert [c.error for c in got] == [None, "it broke", None]
    assert [c.finish_reason for c in got] == ["stop", "error", "stop"]
    assert [c.text for c in got] == ["fine", "", "fine"]


def test_chat_and_generate_raise_for_a_failed_request(fake: Make, family: StubFamily) -> None:
    model = fake(fail={0: "it broke"})
    with pytest.raises(RequestError, match="it broke"):
        model.chat([{"role": "user", "content": "x"}])
    with pytest.raises(RequestError, match="prompt 0: it broke"):
        model.generate(["x"])
    with pytest.raises(RequestError, match="it broke"):
        list(model.stream([{"role": "user", "content": "x"}]))


def test_an_engine_that_breaks_down_raises_and_can_be_used_again(fake: Make, family: StubFamily) -> None:
    model = fake(answers="abcdef", fail_after=2)
    seen: list[str] = []
    deltas = model.stream_batch([make_prompt(family, "x")])
    with pytest.raises(BackendError, match="broke down"):
        seen.extend(delta.text for delta in deltas)
    assert "".join(seen) == "ab"
    model.script = type(model.script)(answers="ok")
    assert model.complete([make_prompt(family, "x")])[0].text == "ok"


class Odd(FakeModel):
    """An engine whose `_run` is given."""

    def __init__(self, run: Any, family: StubFamily) -> None:
        super().__init__(family=family)
        self._given = run

    def _run(self, requests: Sequence[EngineRequest]) -> Iterator[TokenEvent]:
        return self._given(self, requests)


def test_unexpected_exceptions_become_backend_errors_with_the_cause(family: StubFamily) -> None:
    def run(model: Odd, requests: Sequence[EngineRequest]) -> Iterator[TokenEvent]:
        yield TokenEvent(0, token_ids=(1,), times=(0.0,))
        raise ZeroDivisionError("oh")

    model = Odd(run, family).load()
    with pytest.raises(BackendError, match="fake failed: ZeroDivisionError: oh") as caught:
        model.complete([make_prompt(family, "x")])
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert model.aborted == [0]


def test_a_request_the_engine_forgets_is_an_error_not_a_hang(family: StubFamily) -> None:
    def run(model: Odd, requests: Sequence[EngineRequest]) -> Iterator[TokenEvent]:
        yield TokenEvent(1, token_ids=(65,), times=(0.0,), finish_reason="length")

    first, second = Odd(run, family).load().complete([make_prompt(family, "x")] * 2)
    assert first.error == "fake ended without finishing this request"
    assert (second.error, second.finish_reason) == (None, "length")


def test_text_held_back_is_given_when_a_request_fails(family: StubFamily) -> None:
    def run(model: Odd, requests: Sequence[EngineRequest]) -> Iterator[TokenEvent]:
        yield TokenEvent(0, token_ids=tuple(family.tokenizer.encode("done ST")), times=(0.0,) * 10)
        yield TokenEvent(0, finish_reason="error", error="gone")

    deltas = list(Odd(run, family).load().stream_batch([make_prompt(family, "x")], params(stop="STOP")))
    assert "".join(d.text for d in deltas) == "done ST"
    assert deltas[-1].completion is not None
    assert (deltas[-1].completion.text, deltas[-1].completion.error) == ("done ST", "gone")


def test_a_server_that_gives_text_and_no_ids(family: StubFamily) -> None:
    def run(model: Odd, requests: Sequence[EngineRequest]) -> Iterator[TokenEvent]:
        for piece in ("Hel", "lo ", "ST", "OP", "!"):
            yield TokenEvent(0, text=piece, times=(model.clock(),))
        yield TokenEvent(0, finish_reason="stop", usage=(11, 7))

    (plain,) = Odd(run, family).load().complete([make_prompt(family, "x")])
    assert (plain.text, plain.token_ids, plain.completion_tokens) == ("Hello STOP!", (), 7)
    assert len(plain.timings.token_times) == 5
    (cut,) = Odd(run, family).load().complete([make_prompt(family, "x")], params(stop="STOP"))
    assert (cut.text, cut.finish_reason, cut.stop_reason) == ("Hello ", "stop", "STOP")


# ---- checks before anything runs -----------------------------------------------------------------------------------


def test_a_prompt_too_long_is_refused_before_anything_runs(fake: Make, family: StubFamily) -> None:
    model = fake()
    long = make_prompt(family, "x" * 600)
    with pytest.raises(ContextLengthError, match=r"^the prompt has 600 tokens and the context is 512"):
        model.complete([long])
    with pytest.raises(ContextLengthError, match=r"^prompt 1: the prompt has 600 tokens"):
        model.stream_batch([make_prompt(family, "x"), long])
    assert model.batches == []


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ({"temperature": 0.7}, "temperature 0.7"),
        ({"repetition_penalty": 1.1}, "repetition_penalty 1.1"),
        ({"logit_bias": {5: 1}}, "logit_bias"),
        ({"bad_words": ["x"]}, "bad_words"),
        ({"ignore_eos": True}, "ignore_eos True"),
        ({"min_tokens": 3}, "min_tokens 3"),
    ],
)
def test_what_an_engine_cannot_honour_is_refused_by_name(
    fake: Make, family: StubFamily, asked: dict[str, Any], named: str
) -> None:
    model = fake(sampling=frozenset())
    with pytest.raises(OptionError, match=rf"^fake cannot honour {named}.* \(request\)"):
        model.complete([make_prompt(family, "x")], params(**asked))
    assert model.batches == []


def test_neutral_values_ask_for_nothing(fake: Make, family: StubFamily) -> None:
    model = fake(sampling=frozenset(), answers="ok")
    neutral = params(temperature=0, top_p=1, top_k=-1, repetition_penalty=1.0, presence_penalty=0, seed=3, n=1)
    assert model.complete([make_prompt(family, "x")], neutral)[0].text == "ok"


def test_a_seed_is_refused_where_it_would_not_count(fake: Make, family: StubFamily) -> None:
    model = fake(sampling=frozenset({"temperature"}))
    model.complete([make_prompt(family, "x")], params(temperature=1))  # drawn by us: nobody asked
    with pytest.raises(OptionError, match="cannot honour seed 3"):
        model.complete([make_prompt(family, "x")], params(temperature=1, seed=3))


def test_prompt_logprobs_are_refused_where_there_are_none(fake: Make, family: StubFamily) -> None:
    model = fake(sampling=frozenset({"logprobs"}))
    with pytest.raises(OptionError, match="cannot honour prompt_logprobs 2"):
        model.complete([make_prompt(family, "x")], params(prompt_logprobs=2))


@pytest.mark.parametrize(
    ("text", "asked", "valid"),
    [
        ("ok", {}, None),
        ("ok", {"choice": ["ok", "no"]}, True),
        ("okay", {"choice": ["ok", "no"]}, False),
        ("12", {"regex": "[0-9]+"}, True),
        ("12a", {"regex": "[0-9]+"}, False),
        ('{"a": 1}', {"json_schema": {"type": "object"}}, True),
        ('{"a": 1', {"json_schema": {"type": "object"}}, False),
        ("12", {"regex": "[0-9]+", "special_tokens": "all"}, True),
    ],
)
def test_whether_the_text_matches_what_was_asked_for_is_told(
    fake: Make, family: StubFamily, text: str, asked: dict[str, Any], valid: bool | None
) -> None:
    (got,) = fake(answers=text).complete([make_prompt(family, "x")], params(**asked))
    assert got.valid is valid


def test_a_schema_that_makes_no_sense_is_refused_before_anything_runs(fake: Make, family: StubFamily) -> None:
    model = fake()
    with pytest.raises(OptionError, match=r"structured: regex '\[' cannot be used"):
        model.complete([make_prompt(family, "x")], params(regex="["))
    assert model.batches == []
    with pytest.raises(OptionError, match=r"fake cannot honour structured"):
        fake(sampling=frozenset()).complete([make_prompt(family, "x")], params(regex="a"))


def test_logprobs_come_only_when_asked(fake: Make, family: StubFamily) -> None:
    a = family.tokenizer.encode("a")[0]
    model = fake(answers="a", logprobs={a: -0.5})
    assert model.complete([make_prompt(family, "x")])[0].logprobs is None
    (got,) = model.complete([make_prompt(family, "x")], params(logprobs=1))
    assert (got.logprobs or ())[0] == TokenLogprobs(a, -0.5, ((a, -0.5),))


def test_one_setting_for_all_or_one_each(fake: Make, family: StubFamily) -> None:
    model = fake(answers="abcdef")
    prompts = [make_prompt(family, "x")] * 2
    assert [c.text for c in model.complete(prompts, [params(max_tokens=1), params(max_tokens=2)])] == ["a", "ab"]
    with pytest.raises(OptionError, match="2 prompts but 1 sampling settings"):
        model.complete(prompts, [params()])
    assert model.complete([]) == []


def test_user_defaults_and_the_folders_file(fake: Make, family: StubFamily) -> None:
    model = fake(answers="abcdef")
    model.sampling_defaults = params(max_tokens=2)
    assert model.complete([make_prompt(family, "x")])[0].text == "ab"
    assert model.resolve(make_prompt(family, "x")).greedy
    model.use_generation_config = True
    assert model.resolve(make_prompt(family, "x")).temperature == 0.5


# ---- closing -------------------------------------------------------------------------------------------------------


def test_closing_the_iterator_aborts_what_runs(fake: Make, family: StubFamily) -> None:
    model = fake(answers={"a": "x", "b": "a long answer", "c": "another long answer"})
    prompts = [make_prompt(family, t) for t in "abc"]
    deltas = model.stream_batch(prompts)
    for delta in deltas:
        if delta.index == 0 and delta.completion is not None:
            break
    deltas.close()
    assert model.aborted == [1, 2]
    assert [c.text for c in model.complete(prompts)] == ["x", "a long answer", "another long answer"]


def test_a_second_batch_meanwhile_is_refused_and_possible_afterwards(fake: Make, family: StubFamily) -> None:
    model = fake(answers="some answer")
    first = model.stream_batch([make_prompt(family, "x")])
    next(first)
    with pytest.raises(BackendError, match="serving another batch"):
        model.complete([make_prompt(family, "y")])
    rest = "".join(d.text for d in first)
    assert rest.endswith("answer")
    assert model.complete([make_prompt(family, "y")])[0].text == "some answer"


def test_an_iterator_never_begun_blocks_nothing(fake: Make, family: StubFamily) -> None:
    model = fake(answers="ok")
    unused = model.stream_batch([make_prompt(family, "x")])
    assert model.complete([make_prompt(family, "y")])[0].text == "ok"
    unused.close()


# ---- loading -------------------------------------------------------------------------------------------------------


def test_phases_are_reported_in_order_and_kept(family: StubFamily) -> None:
    seen: list[tuple[str, float]] = []
    model = FakeModel(family=family)
    model.load(None, EngineOptions(), lambda phase, seconds: seen.append((phase, seconds)))
    assert [phase for phase, _ in seen] == ["tokenizer", "load", "warm-up", "ready"]
    assert all(a[1] <= b[1] for a, b in pairwise(seen))
    assert seen[-1][1] == pytest.approx(0.5)
    assert model.info is not None
    assert model.info.phases == {"tokenizer": 0.0, "load": 0.5, "warm-up": 0.0}


def test_a_load_that_fails_leaves_nothing_behind(family: StubFamily) -> None:
    model = FakeModel(family=family)
    with pytest.raises(BackendError, match="no memory"):
        model.load(None, EngineOptions(extra={"fail_load": "no memory"}))
    assert (model.closed, model.info) == (1, None)
    with pytest.raises(OptionError, match="call load"):
        model.complete([make_prompt(family, "x")])


def test_loading_again_closes_what_was_loaded(fake: Make) -> None:
    model = fake()
    model.load(None, EngineOptions())
    assert model.closed == 1
    with model:
        pass
    model.close()
    assert model.closed == 2


def test_more_images_than_the_limit_are_refused_on_every_engine_before_it_runs(fake: Make, family: StubFamily) -> None:
    model = fake(answers="yes")
    model.load(None, EngineOptions(limit_per_prompt={"image": 2, "video": 0}))
    one, three = make_prompt(family, "a", images=2), make_prompt(family, "b", images=3)
    assert model.complete([one])[0].error is None
    batches = len(model.batches)
    with pytest.raises(OptionError, match=r"prompt 1: .* 3 images and limit_per_prompt allows 2.*\(image=3\)"):
        model.complete([one, three])
    assert len(model.batches) == batches
    model.load(None, EngineOptions())
    assert model.complete([three])[0].error is None
