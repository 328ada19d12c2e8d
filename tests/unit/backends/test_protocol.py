"""Frames between a worker and its parent."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from tests.unit.backends.conftest import StubFamily, make_prompt
from visavis.backends.base import EngineRequest, TokenEvent
from visavis.backends.protocol import Channel, ChannelClosedError, Run, pack_events, portable_error, unpack_events
from visavis.completion import TokenLogprobs
from visavis.errors import BackendError, MissingExtraError, ModelError
from visavis.sampling import ResolvedSampling


@pytest.fixture
def pair() -> Iterator[tuple[Channel, Channel, socket.socket]]:
    """Two ends, and the first one's socket."""
    a, b = socket.socketpair()
    one, two = Channel(a), Channel(b)
    yield one, two, a
    one.close()
    two.close()


def test_requests_arrive_whole_with_their_pixels(
    pair: tuple[Channel, Channel, socket.socket], family: StubFamily
) -> None:
    one, two, _ = pair
    prompt = make_prompt(family, "look", images=2)
    prompt.media[0].pixels[:] = np.random.default_rng(0).integers(0, 255, (56, 84, 3))
    sent = Run(3, (EngineRequest(0, prompt, ResolvedSampling(max_tokens=5, origins={"max_tokens": "request"})),))
    sender = threading.Thread(target=one.send, args=(sent,))
    sender.start()
    got = two.receive(timeout=10)
    sender.join()
    assert (got.run_id, got.requests[0].sampling) == (3, sent.requests[0].sampling)
    arrived = got.requests[0].prompt
    assert (arrived.token_ids, arrived.text, arrived.box_format) == (prompt.token_ids, "look", "qwen2_vl")
    for before, after in zip(prompt.media, arrived.media, strict=True):
        assert np.array_equal(before.pixels, after.pixels)
        assert before.span == after.span


def test_a_frame_larger_than_the_sockets_buffer(pair: tuple[Channel, Channel, socket.socket]) -> None:
    one, two, _ = pair
    big = np.random.default_rng(1).integers(0, 255, 20_000_000, dtype=np.uint8)
    sender = threading.Thread(target=one.send, args=(big,))
    sender.start()
    assert np.array_equal(two.receive(timeout=10), big)
    sender.join()


def test_silence_and_a_closed_end_are_told_apart(pair: tuple[Channel, Channel, socket.socket]) -> None:
    one, two, _ = pair
    with pytest.raises(ChannelClosedError, match=r"no news for 0.1 s") as silent:
        two.receive(timeout=0.1)
    assert silent.value.timed_out
    one.close()
    with pytest.raises(ChannelClosedError, match="closed") as closed:
        two.receive(timeout=5)
    assert not closed.value.timed_out


def test_a_dead_process_whose_socket_others_hold_open_is_noticed() -> None:
    a, b = socket.socketpair()
    channel = Channel(a, alive=lambda: False)
    with pytest.raises(ChannelClosedError, match="has ended"):
        channel.receive()
    b.close()
    channel.close()


def test_sending_to_one_who_never_reads_ends(pair: tuple[Channel, Channel, socket.socket]) -> None:
    one, _, _ = pair
    with pytest.raises(ChannelClosedError) as caught:
        one.send(bytes(50_000_000), timeout=0.2)
    assert caught.value.timed_out


@pytest.mark.parametrize("noise", [b"GET / HTTP/1.1\r\n\r\n", struct.pack("<I", 0)])
def test_noise_is_no_frame(pair: tuple[Channel, Channel, socket.socket], noise: bytes) -> None:
    _, two, raw = pair
    raw.sendall(noise)
    with pytest.raises(ChannelClosedError, match="does not speak this protocol"):
        two.receive(timeout=5)


def test_events_keep_everything_and_times_move_to_the_other_clock() -> None:
    events = [
        TokenEvent(0, token_ids=(1, 2), times=(10.5, 11.0), logprobs=(TokenLogprobs(1, -0.5, ((1, -0.5),)),)),
        TokenEvent(1, finish_reason="error", error="x", queue_s=0.25, text="t", usage=(3, None)),
    ]
    got = unpack_events(pack_events(events, start=10.0), start=1000.0)
    assert got[0].times == (1000.5, 1001.0)
    assert (got[0].token_ids, got[0].logprobs) == (events[0].token_ids, events[0].logprobs)
    assert got[1] == events[1]


def test_errors_of_ours_cross_as_they_are_and_others_as_text() -> None:
    extra = portable_error(MissingExtraError("hf", "hf"), "loading")
    assert isinstance(extra, MissingExtraError)
    assert isinstance(portable_error(ModelError("no config.json"), "loading"), ModelError)
    other = portable_error(ZeroDivisionError("oh"), "hf failed to load")
    assert type(other) is BackendError
    assert str(other) == "hf failed to load: ZeroDivisionError: oh"


class Interrupting:
    """A socket that is interrupted once, at a chosen call of one of its methods."""

    def __init__(self, real: socket.socket, method: str, at: int) -> None:
        self._real, self._method, self._left = real, method, at

    def __getattr__(self, name: str) -> object:
        real = getattr(self._real, name)
        if name != self._method:
            return real

        def call(*args: object) -> object:
            self._left -= 1
            result = real(*args)
            if self._left == 0:
                raise KeyboardInterrupt  # what was read or written is so
            return result

        return call


def test_after_an_interruption_inside_a_frame_nothing_is_taken_for_something_else(
    pair: tuple[Channel, Channel, socket.socket],
) -> None:
    one, two, _ = pair
    two.send({"a": 1})
    one._socket = Interrupting(one._socket, "recv_into", 2)  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        one.receive(timeout=5)
    two.send({"b": 2})
    with pytest.raises(ChannelClosedError, match="interrupted half-way"):
        one.receive(timeout=5)


def test_after_an_interruption_while_writing_nothing_more_is_written(
    pair: tuple[Channel, Channel, socket.socket],
) -> None:
    one, _, _ = pair
    one._socket = Interrupting(one._socket, "send", 1)  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        one.send({"a": 1})
    with pytest.raises(ChannelClosedError, match="interrupted half-way"):
        one.send({"b": 2})


def test_an_interruption_while_waiting_does_no_harm(pair: tuple[Channel, Channel, socket.socket]) -> None:
    one, two, _ = pair
    two.send({"a": 1})
    one._socket = Interrupting(one._socket, "recv", 1)  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        one.receive(timeout=5)
    assert one.receive(timeout=5) == {"a": 1}
