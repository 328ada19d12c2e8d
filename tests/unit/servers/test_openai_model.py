"""`OpenAIModel` against a scripted server: what is sent, what comes back, what is refused."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from PIL import Image

import visavis
from tests.unit.servers.scripted import Exchange, Server, piece, serving, usage
from visavis.backends.openai import OpenAIModel
from visavis.backends.options import EngineOptions
from visavis.errors import BackendError, MessageError, OptionError, RequestError
from visavis.sampling import SamplingParams

HELLO = [{"role": "user", "content": "hi"}]
KEY = "sk-very-secret-0123456789"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    with serving(Server()) as started:
        yield started


def _load(server: Server, model: str | None = "m", **extra: Any) -> OpenAIModel:
    options = EngineOptions(extra={"base_url": server.url, "max_retries": 1, **extra})
    return OpenAIModel().load(model, options)


def _picture(height: int = 100, width: int = 200) -> np.ndarray[Any, Any]:
    return np.arange(height * width * 3, dtype=np.uint32).reshape(height, width, 3).astype(np.uint8)


def _pixels(url: str) -> np.ndarray[Any, Any]:
    head, data = url.split(",", 1)
    assert head == "data:image/png;base64"
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(data))))


# ---- what is sent --------------------------------------------------------------------------------------------------


def test_every_sampling_value_is_sent_so_that_no_default_of_the_server_decides(server: Server) -> None:
    server.answers = [lambda e: e.stream(piece("ok", finish="stop"))]
    with _load(server) as model:
        model.chat(HELLO, max_tokens=7, temperature=0.5, top_p=0.9, seed=3, stop=["END"], presence_penalty=0.5)
    body = server.bodies[0]
    assert body["messages"] == [{"role": "user", "content": "hi"}]
    assert {k: body[k] for k in ("model", "stream", "max_tokens", "temperature", "top_p", "seed", "stop")} == {
        "model": "m",
        "stream": True,
        "max_tokens": 7,
        "temperature": 0.5,
        "top_p": 0.9,
        "seed": 3,
        "stop": ["END"],
    }
    assert (body["presence_penalty"], body["frequency_penalty"]) == (0.5, 0.0)


def test_a_schema_is_sent_as_response_format_and_the_answer_is_checked(server: Server) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    server.answers = [
        lambda e: e.stream(piece('{"a": 1}', finish="stop")),
        lambda e: e.stream(piece("sure!", finish="stop")),
    ]
    with _load(server) as model:
        good, bad = (model.chat(HELLO, json_schema=schema) for _ in range(2))
        with pytest.raises(OptionError, match="structured regex: chat servers take a json_schema"):
            model.chat(HELLO, regex="a+")
    assert server.bodies[0]["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "answer", "schema": schema, "strict": True},
    }
    assert (good.valid, bad.valid) == (True, False)


def test_greedy_says_so(server: Server) -> None:
    server.answers = [lambda e: e.stream(piece("ok", finish="stop"))]
    with _load(server) as model:
        model.chat(HELLO)
    assert server.bodies[0]["temperature"] == 0.0
    assert server.bodies[0]["max_tokens"] == 1024
    assert "seed" not in server.bodies[0]


def test_with_the_models_folder_images_are_sent_after_the_one_resize(server: Server) -> None:
    server.answers = [lambda e: e.stream(piece("ok", finish="stop"))]
    content = [{"type": "text", "text": "a"}, {"type": "image", "image": _picture()}, {"type": "text", "text": "b"}]
    with _load(server, None) as model:  # the bundled model's folder, the server's only model
        prompt = model.prepare([{"role": "user", "content": content}])
        model.complete([prompt])
        assert model.info is not None
        assert "images sent unresized" not in model.info.marks
        assert "resize not controlled" in model.info.marks
    sent = server.bodies[0]["messages"][-1]["content"]
    assert [part["type"] for part in sent] == ["text", "image_url", "text"]
    assert np.array_equal(_pixels(sent[1]["image_url"]["url"]), prompt.media[0].pixels)
    assert prompt.media[0].pixels.shape[:2] == (112, 196)  # 100 and 200 to multiples of 28: 3.57 → 4, 7.14 → 7


def test_a_model_that_only_the_server_knows_gets_images_as_they_are(server: Server) -> None:
    server.answers = [lambda e: e.stream(piece("ok", finish="stop"))]
    picture = _picture()
    with _load(server) as model:
        model.chat([{"role": "user", "content": [{"type": "image", "image": picture}, {"type": "text", "text": "?"}]}])
        assert model.info is not None
        assert set(model.info.marks) == {
            "template not controlled",
            "resize not controlled",
            "special tokens not controlled",
            "images sent unresized",
            "no token ids",
        }
    assert np.array_equal(_pixels(server.bodies[0]["messages"][0]["content"][0]["image_url"]["url"]), picture)


def test_tools_and_tool_turns_are_passed_on(server: Server) -> None:
    server.answers = [lambda e: e.stream(piece("ok", finish="stop"))]
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "42"},
    ]
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]
    with _load(server) as model:
        model.complete([model.prepare(messages, tools=tools)])
    body = server.bodies[0]
    assert body["tools"] == tools
    assert body["messages"][1]["tool_calls"][0]["function"]["name"] == "f"
    assert body["messages"][2]["tool_call_id"] == "1"
    assert body["messages"][2]["content"] == "42"


def test_several_answers_are_several_requests_with_seeds_of_their_own(server: Server) -> None:
    server.answers = [lambda e: e.stream(piece("ok", finish="stop"))]
    with _load(server) as model:
        completion = model.chat(HELLO, n=3, temperature=1.0, seed=5)
    assert len(completion.alternatives) == 2
    assert len({body["seed"] for body in server.bodies}) == 3


# ---- what comes back -----------------------------------------------------------------------------------------------


def test_pieces_join_to_the_whole_and_the_servers_count_is_kept(server: Server) -> None:
    server.answers = [lambda e: e.stream(piece("Hal"), piece("lo ä"), piece("!", finish="stop"), usage(11, 4))]
    with _load(server) as model:
        deltas = list(model.stream(HELLO))
    completion = deltas[-1].completion
    assert completion is not None
    assert "".join(d.text for d in deltas) == completion.text == "Hallo ä!"
    assert (completion.prompt_tokens, completion.completion_tokens, completion.token_ids) == (11, 4, ())
    assert completion.finish_reason == "stop"
    assert len(completion.timings.token_times) == 3


def test_a_server_that_does_not_stream_is_understood(server: Server) -> None:
    whole = {
        "choices": [{"message": {"content": "all of it"}, "finish_reason": "length"}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2},
    }
    server.answers = [lambda e: e.whole(200, whole)]
    with _load(server) as model:
        completion = model.chat(HELLO)
    assert (completion.text, completion.finish_reason, completion.completion_tokens) == ("all of it", "length", 2)


def test_an_answer_before_a_failure_is_tried_again_and_counted_once(server: Server) -> None:
    server.answers = [
        lambda e: e.whole(503, {"error": {"message": "busy"}}, {"Retry-After": "0"}),
        lambda e: e.stream(piece("ok", finish="stop")),
    ]
    with _load(server) as model:
        assert model.chat(HELLO).text == "ok"
    assert len(server.bodies) == 2


def test_one_failed_request_leaves_the_others_alone(server: Server) -> None:
    def answer(exchange: Exchange) -> None:
        if exchange.body["messages"][0]["content"] == "bad":
            exchange.whole(400, {"error": {"message": "I refuse"}})
        else:
            exchange.stream(piece("ok", finish="stop"))

    server.answers = [answer]
    with _load(server) as model:
        prompts = [model.prepare([{"role": "user", "content": text}]) for text in ("good", "bad", "fine")]
        done = model.complete(prompts)
    assert [c.text for c in done] == ["ok", "", "ok"]
    assert [c.error for c in done] == [None, "HTTP 400: I refuse", None]


def test_a_stream_that_breaks_keeps_what_came_and_says_so(server: Server) -> None:
    def answer(exchange: Exchange) -> None:
        exchange.begin_stream()
        exchange.event(piece("half "))

    server.answers = [answer]
    with _load(server) as model:
        (done,) = model.complete([model.prepare(HELLO)])
    assert (done.text, done.finish_reason) == ("half ", "error")
    assert done.error == "the server closed the stream before it was done"


def test_withheld_answers_and_bare_tool_calls_are_errors(server: Server) -> None:
    call = {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0}]}, "finish_reason": None}]}
    server.answers = [lambda e: e.stream(piece("", finish="content_filter")), lambda e: e.stream(call)]
    with _load(server) as model:
        with pytest.raises(RequestError, match="withheld"):
            model.chat(HELLO)
        with pytest.raises(RequestError, match="tool calls"):
            model.chat(HELLO)


def test_leaving_a_stream_ends_the_request_at_the_server(server: Server) -> None:
    server.answers = [server.keep_talking]
    with _load(server) as model:
        stream = model.stream(HELLO)
        next(stream)
        stream.close()
        assert server.gone.wait(5)


def test_a_stop_string_that_the_server_missed_still_ends_the_answer(server: Server) -> None:
    server.answers = [server.keep_talking]
    with _load(server) as model:
        completion = model.chat(HELLO, stop=["xxxxx"])
        assert (completion.text, completion.finish_reason, completion.stop_reason) == ("", "stop", "xxxxx")
        assert server.gone.wait(5)


# ---- a vLLM server -------------------------------------------------------------------------------------------------


def _vllm(server: Server, ids: tuple[int, ...], prompt_ids: list[int], **choice: Any) -> None:
    server.models = {"data": [{"id": "tiny", "owned_by": "vllm", "max_model_len": 900}]}
    first = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}], "prompt_token_ids": prompt_ids}
    last = piece("", finish="stop", stop_reason=ids[-1], token_ids=list(ids), **choice)
    server.answers = [lambda e: e.stream(first, last, usage(len(prompt_ids), len(ids)))]


def test_a_vllm_server_gives_ids_and_is_told_everything(server: Server) -> None:
    family = visavis.load(None, "fake")._family()
    eos = family.eos_token_ids[0]
    ids = (*family.tokenizer.encode("Hello"), eos)
    prompt = family.prepare_messages(HELLO)
    _vllm(server, ids, list(prompt.token_ids))
    with _load(server, None) as model:
        assert model.info is not None
        assert model.info.marks == ()
        assert model.info.max_model_len == 900
        completion = model.chat(HELLO, top_k=5, temperature=0.7, repetition_penalty=1.1)
    assert (completion.token_ids, completion.text, completion.stop_reason) == (ids, "Hello", eos)
    body = server.bodies[0]
    assert (body["top_k"], body["repetition_penalty"], body["min_p"]) == (5, 1.1, 0.0)
    assert (body["return_token_ids"], body["skip_special_tokens"], body["ignore_eos"]) == (True, False, True)
    assert set(family.eos_token_ids) <= set(body["stop_token_ids"])


def test_another_prompt_at_the_server_is_an_error_that_shows_where(server: Server) -> None:
    family = visavis.load(None, "fake")._family()
    ours = list(family.prepare_messages(HELLO).token_ids)
    theirs = [*ours[:2], 7, *ours[3:]]
    _vllm(server, (1, 2), theirs)
    with _load(server, None) as model, pytest.raises(RequestError, match=r"another prompt.*position 2.*seen 7"):
        model.chat(HELLO)


def test_logprobs_come_by_id(server: Server) -> None:
    family = visavis.load(None, "fake")._family()
    logprobs = {
        "content": [
            {
                "token": "token_id:5",
                "logprob": -0.5,
                "top_logprobs": [{"token": "token_id:5", "logprob": -0.5}, {"token": "token_id:9", "logprob": -1.5}],
            }
        ]
    }
    _vllm(server, (5,), list(family.prepare_messages(HELLO).token_ids), logprobs=logprobs)
    with _load(server, None) as model:
        completion = model.chat(HELLO, logprobs=2)
    assert completion.logprobs is not None
    assert (completion.logprobs[0].token_id, completion.logprobs[0].logprob) == (5, -0.5)
    assert completion.logprobs[0].top == ((5, -0.5), (9, -1.5))
    assert server.bodies[0]["return_tokens_as_token_ids"] is True


def test_a_vllm_server_is_given_the_pixel_limits_that_leave_our_resize_alone(server: Server) -> None:
    family = visavis.load(None, "fake")._family()
    messages = [{"role": "user", "content": [{"type": "image", "image": _picture()}]}]
    _vllm(server, (5,), list(family.prepare_messages(messages).token_ids))
    with _load(server, None) as model:
        model.chat(messages)
    limits = server.bodies[0]["mm_processor_kwargs"]
    assert (limits["min_pixels"], limits["max_pixels"]) == (112 * 196, 112 * 196)


# ---- what is refused -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ({"top_k": 5, "temperature": 1.0}, "top_k 5"),
        ({"repetition_penalty": 1.1}, "repetition_penalty 1.1"),
        ({"min_tokens": 3}, "min_tokens 3"),
        ({"logprobs": 2}, "logprobs 2"),
        ({"ignore_eos": True}, "ignore_eos True"),
        ({"stop": ["a", "b", "c", "d", "e"]}, "stop: 5 strings"),
    ],
)
def test_what_a_plain_server_cannot_do_is_refused_by_name(server: Server, asked: dict[str, Any], named: str) -> None:
    with _load(server) as model, pytest.raises(OptionError, match=named):
        model.chat(HELLO, **asked)
    assert server.bodies == []


def test_repetition_penalty_is_refused_for_sglang_servers(server: Server) -> None:
    server.models = {"data": [{"id": "m", "owned_by": "sglang"}]}
    with _load(server) as model, pytest.raises(OptionError, match="repetition_penalty"):
        model.chat(HELLO, repetition_penalty=1.1)


def test_videos_and_ready_made_ids_are_refused(server: Server) -> None:
    video = [{"role": "user", "content": [{"type": "video", "video": [_picture(56, 56)] * 2}]}]
    with _load(server, None) as model:
        with pytest.raises(OptionError, match="takes no videos"):
            model.complete([model.prepare(video)])
        bare = model._family().prepare_messages(HELLO)
        object.__setattr__(bare, "chat", None)
        with pytest.raises((MessageError, BackendError), match="needs messages"):
            model.complete([bare])


def test_pixel_limits_without_the_models_rule_are_refused(server: Server) -> None:
    part = {"type": "image", "image": _picture(), "max_pixels": 1000}
    with _load(server) as model, pytest.raises(visavis.VisavisError, match="pixel limits need the model's own"):
        model.prepare([{"role": "user", "content": [part]}])


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ({"api_key": KEY}, "read from the environment only"),
        ({"base_ulr": "x"}, r"did you mean openai\.base_url"),
        ({"timeout_s": "soon"}, "is not a number"),
        ({"timeout_s": 0}, "out of range"),
        ({"dialect": "tgi"}, "is not one of auto, openai, vllm, sglang"),
    ],
)
def test_options_that_cannot_be_right_are_refused(server: Server, extra: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionError, match=words) as caught:
        _load(server, **extra)
    assert KEY not in str(caught.value)


def test_without_an_address_the_way_to_give_one_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    with pytest.raises(OptionError, match=r"openai\.base_url=.*OPENAI_BASE_URL"):
        OpenAIModel().load("m")


def test_engine_options_are_the_servers_business(server: Server) -> None:
    with pytest.raises(OptionError, match="openai has no tensor_parallel_size"):
        OpenAIModel().load("m", EngineOptions(tensor_parallel_size=2, extra={"base_url": server.url}))


def test_a_model_the_server_lacks_is_refused_with_what_it_has(server: Server) -> None:
    with pytest.raises(OptionError, match="no model 'other'; it has: m"):
        _load(server, "other")


def test_the_key_goes_into_the_header_and_nowhere_else(server: Server) -> None:
    server.answers = [lambda e: e.whole(401, {"error": {"message": f"bad key {KEY}"}})]
    with _load(server) as model:
        with pytest.raises(RequestError) as caught:
            model.chat(HELLO)
        assert KEY not in repr(model.info) + str(caught.value)
    assert server.headers[-1]["Authorization"] == f"Bearer {KEY}"


def test_a_refused_key_names_the_variable(server: Server) -> None:
    server.models = lambda e: e.whole(401, {"error": {"message": f"bad key {KEY}"}})
    with pytest.raises(OptionError, match=r"401.*\$OPENAI_API_KEY") as caught:
        _load(server)
    assert KEY not in str(caught.value)


def test_params_can_differ_in_a_batch(server: Server) -> None:
    server.answers = [lambda e: e.stream(piece(str(e.body["max_tokens"]), finish="length"))]
    with _load(server) as model:
        prompts = [model.prepare(HELLO)] * 3
        done = model.complete(prompts, [SamplingParams(max_tokens=k) for k in (1, 2, 3)])
    assert [c.text for c in done] == ["1", "2", "3"]


def test_ask_takes_a_server(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    import json

    from visavis.cli import main

    server.answers = [lambda e: e.stream(piece("forty-two", finish="stop"), usage(9, 3))]
    address = f"base_url={server.url}"
    assert main(["ask", "how many?", "--backend", "openai", "-m", "m", "--set", address, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["text"] == "forty-two"
    assert document["finish_reason"] == "stop"
