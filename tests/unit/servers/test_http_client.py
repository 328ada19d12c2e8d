"""The HTTP client: retries, time-outs, what is shown of errors, and that the key stays where it belongs."""

from __future__ import annotations

import email.utils
import threading
import time
from collections.abc import Iterator

import pytest

from tests.unit.servers.scripted import Exchange, Server, piece, serving
from visavis.backends.http_client import Cancellation as Cancel
from visavis.backends.http_client import CancelledRequestError, HttpClient, HttpStatusError, RetryPolicy
from visavis.errors import BackendError, OptionError, RequestError

KEY = "sk-very-secret-0123456789"


@pytest.fixture
def server() -> Iterator[Server]:
    with serving(Server()) as started:
        yield started


def _client(server: Server, waits: list[float] | None = None, **options: object) -> HttpClient:
    sleep = (lambda seconds: None) if waits is None else waits.append
    return HttpClient(server.url, key=KEY, retry=RetryPolicy(retries=3, sleep=sleep), **options)  # type: ignore[arg-type]


def _busy(status: int, **headers: str) -> object:
    return lambda e: e.whole(
        status, {"error": {"message": "busy"}}, {k.replace("_", "-"): v for k, v in headers.items()}
    )


def test_a_busy_server_is_asked_again_with_growing_waits(server: Server) -> None:
    server.answers = [_busy(429), _busy(503), _busy(500), lambda e: e.whole(200, {"ok": True})]  # type: ignore[list-item]
    waits: list[float] = []
    assert _client(server, waits).post("/x", {}) == {"ok": True}
    assert len(waits) == 3
    for wait, base in zip(waits, (0.5, 1.0, 2.0), strict=True):
        assert base <= wait <= base * 1.25


def test_retry_after_is_obeyed_in_both_spellings(server: Server) -> None:
    soon = email.utils.formatdate(time.time() + 20, usegmt=True)
    server.answers = [  # type: ignore[assignment]
        _busy(429, Retry_After="7"),
        _busy(429, Retry_After=soon),
        lambda e: e.whole(200, {}),
    ]
    waits: list[float] = []
    _client(server, waits).post("/x", {})
    assert waits[0] == 7.0
    assert 17 < waits[1] <= 20


def test_a_server_that_asks_for_an_hour_is_not_waited_for(server: Server) -> None:
    server.answers = [_busy(429, Retry_After="3600")]  # type: ignore[list-item]
    waits: list[float] = []
    with pytest.raises(HttpStatusError, match="HTTP 429: busy"):
        _client(server, waits).post("/x", {})
    assert waits == []


def test_the_last_refusal_is_the_error(server: Server) -> None:
    server.answers = [_busy(503)]  # type: ignore[list-item]
    with pytest.raises(HttpStatusError, match="HTTP 503: busy"):
        _client(server).post("/x", {})
    assert len(server.bodies) == 4


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"error": {"message": "no such option"}}, "HTTP 400: no such option"),
        ({"error": "no such option"}, "HTTP 400: no such option"),
        ({"detail": "no such option"}, "HTTP 400: no such option"),
        ({"object": "error", "message": "no such option"}, "HTTP 400: no such option"),
        ("<html>no such option</html>", "HTTP 400: <html>no such option</html>"),
    ],
)
def test_a_bad_request_is_not_repeated_and_the_servers_words_are_shown(server: Server, body: object, said: str) -> None:
    server.answers = [lambda e: e.whole(400, body)]
    with pytest.raises(HttpStatusError) as caught:
        _client(server).post("/x", {})
    assert str(caught.value) == said
    assert len(server.bodies) == 1


def test_long_error_texts_are_cut_and_the_key_is_taken_out(server: Server) -> None:
    server.answers = [lambda e: e.whole(401, {"error": {"message": f"Incorrect API key: {KEY}. " + "x" * 5000}})]
    client = _client(server)
    with pytest.raises(HttpStatusError) as caught:
        client.post("/x", {})
    assert KEY not in str(caught.value)
    assert "[key]" in str(caught.value)
    assert len(str(caught.value)) < 500
    assert KEY not in repr(client)
    assert server.headers[0]["Authorization"] == f"Bearer {KEY}"


def test_redirects_are_not_followed_with_the_key(server: Server) -> None:
    server.answers = [lambda e: e.whole(308, "", {"Location": "https://elsewhere.example/v1/x"})]
    with pytest.raises(HttpStatusError, match=r"308.*elsewhere\.example.*base_url"):
        _client(server).post("/x", {})


def test_a_server_that_is_not_there_is_named() -> None:
    with serving(Server()) as server:
        pass  # closed again: nobody listens there
    with pytest.raises(BackendError, match=r"127\.0\.0\.1:\d+/v1 cannot be used.*is the server up"):
        _client(server).get("/models")


def test_silence_before_the_answer_ends_by_the_time_out_without_another_try(server: Server) -> None:
    server.answers = [lambda e: time.sleep(3)]
    with pytest.raises(BackendError, match="no answer within the time-out"):
        _client(server, timeout_s=0.2).post("/x", {})
    assert len(server.bodies) == 1


def test_silence_within_a_stream_ends_by_the_time_out(server: Server) -> None:
    def stall(exchange: Exchange) -> None:
        exchange.begin_stream()
        exchange.event(piece("a"))
        time.sleep(3)

    server.answers = [stall]
    events = _client(server, timeout_s=0.3).events("/x", {})
    assert next(events) == piece("a")
    with pytest.raises(RequestError, match="fell silent for longer than timeout_s"):
        next(events)


def test_events_may_be_split_commented_and_end_with_carriage_returns(server: Server) -> None:
    def answer(exchange: Exchange) -> None:
        exchange.begin_stream()
        exchange.raw(b": keep-alive\r\n\r\nevent: x\r\nda")
        time.sleep(0.05)
        exchange.raw(b'ta: {"a":\r\ndata: 1}\r\n\r\ndata:{"b":"\xc3')
        time.sleep(0.05)
        exchange.raw(b'\xa4"}\n\ndata: [DONE]\n\ndata: {"never": 1}\n\n')

    server.answers = [answer]
    assert list(_client(server).events("/x", {})) == [{"a": 1}, {"b": "ä"}]


def test_a_stream_that_just_ends_is_an_error(server: Server) -> None:
    def answer(exchange: Exchange) -> None:
        exchange.begin_stream()
        exchange.event(piece("a"))

    server.answers = [answer]
    with pytest.raises(RequestError, match="closed the stream before it was done"):
        list(_client(server).events("/x", {}))


def test_an_error_event_in_a_stream_is_an_error(server: Server) -> None:
    server.answers = [lambda e: e.stream(piece("a"), {"error": {"message": "out of memory"}})]
    with pytest.raises(RequestError, match="out of memory"):
        list(_client(server).events("/x", {}))


def test_an_answer_that_is_no_json_is_an_error_that_shows_its_beginning(server: Server) -> None:
    server.answers = [lambda e: e.whole(200, "<html>" + "y" * 999)]
    with pytest.raises(RequestError, match=r"not JSON: '<html>yyy.{0,80}\(1005 in all\)"):
        _client(server).post("/x", {})


def test_cancelling_ends_a_wait_for_bytes_at_once(server: Server) -> None:
    def stall(exchange: Exchange) -> None:
        exchange.begin_stream()
        exchange.event(piece("a"))
        time.sleep(5)

    server.answers = [stall]
    cancel = Cancel()
    events = _client(server).events("/x", {}, cancel)
    next(events)
    threading.Timer(0.1, cancel.cancel).start()
    began = time.monotonic()
    with pytest.raises(CancelledRequestError):
        next(events)
    assert time.monotonic() - began < 3


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("localhost:8000/v1", "write http://host:port/v1"),
        ("ftp://host/v1", "write http://host:port/v1"),
        ("", "write http://host:port/v1"),
        ("http://me:pw@host/v1", "must not carry a user name or password"),
        ("http://host/v1?x=1", "must end with the path"),
    ],
)
def test_addresses_that_cannot_be_right_are_refused(url: str, words: str) -> None:
    with pytest.raises(OptionError, match=words):
        HttpClient(url)


def test_a_key_with_a_line_break_is_refused_without_showing_it() -> None:
    with pytest.raises(OptionError, match="API key") as caught:
        HttpClient("http://host/v1", key="abc\n")
    assert "abc" not in str(caught.value)
