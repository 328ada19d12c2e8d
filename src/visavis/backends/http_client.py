"""A small HTTP client for model servers: JSON in, JSON or server-sent events out, retries with backoff, time-outs.
Standard library only. The key goes into one header and nowhere else: no log, no error, no repr."""

from __future__ import annotations

import contextlib
import email.utils
import http.client
import json
import random
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from visavis.errors import BackendError, OptionError, RequestError, shorten

__all__ = ["CancelledRequestError", "HttpClient", "HttpStatusError", "RetryPolicy"]

RETRIED_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504})
MESSAGE_LIMIT = 400  # characters of a server's error text that are shown
MAX_ERROR_BODY = 1 << 20
MAX_LINE = 8 << 20  # one event with 20 logprobs for each of many tokens stays far below


class CancelledRequestError(BackendError):
    """The request was given up by us."""


class HttpStatusError(RequestError):
    """The server answered with an error status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Waits `base_s · 2^k` (plus up to a quarter, at random; at most `cap_s`) before try k+1, or what the server's
    Retry-After says when that is longer, as long as it is no more than `cap_s`."""

    retries: int = 4
    base_s: float = 0.5
    cap_s: float = 30.0
    sleep: Callable[[float], object] = field(default=time.sleep, repr=False)

    def wait(self, attempt: int, retry_after: float | None) -> float | None:
        """Seconds to wait before the next try; None when the server asks for more than `cap_s`."""
        if retry_after is not None and retry_after > self.cap_s:
            return None
        backoff: float = min(self.base_s * 2.0**attempt * (1 + random.random() / 4), self.cap_s)
        return max(backoff, retry_after or 0.0)


class HttpClient:
    """One server. `timeout_s` is the longest silence while waiting for bytes, not a limit of the whole answer."""

    def __init__(
        self,
        base_url: str,
        *,
        key: str | None = None,
        timeout_s: float = 600.0,
        connect_timeout_s: float = 10.0,
        retry: RetryPolicy | None = None,
    ) -> None:
        parts = urlsplit(base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise OptionError(f"base_url {shorten(base_url)} is not valid: write http://host:port/v1 or https://…/v1")
        if parts.username or parts.password:
            raise OptionError("base_url must not carry a user name or password; name the key's variable in api_key_env")
        if parts.query or parts.fragment:
            raise OptionError(f"base_url {shorten(base_url)} must end with the path, e.g. /v1")
        self.base_url = base_url.rstrip("/")
        self._host, self._port, self._tls = parts.hostname, parts.port, parts.scheme == "https"
        self._path = parts.path.rstrip("/")
        if key is not None and (not key.isascii() or not key.isprintable() or key != key.strip()):
            raise OptionError("the API key has characters that no header can carry (a line break or space, say)")
        self._key = key
        self._timeout_s, self._connect_timeout_s = timeout_s, connect_timeout_s
        self._retry = retry or RetryPolicy()

    def __repr__(self) -> str:
        return f"HttpClient({self.base_url!r})"

    def get(self, path: str) -> Any:
        """The JSON at `path`. Raises HttpStatusError, RequestError, BackendError (not reachable)."""
        with self._open("GET", path, None, None) as exchange:
            return exchange.json()

    def post(self, path: str, body: Mapping[str, Any], cancel: Cancellation | None = None) -> Any:
        """The JSON answer to `body`."""
        with self._open("POST", path, body, cancel) as exchange:
            return exchange.json()

    def events(self, path: str, body: Mapping[str, Any], cancel: Cancellation | None = None) -> Iterator[Any]:
        """The JSON of each server-sent event until `[DONE]`. Retries only before the first event.

        Raises RequestError when the stream ends without `[DONE]` or an event is an error.
        """
        with self._open("POST", path, body, cancel) as exchange:
            if not exchange.is_event_stream:  # a server that does not stream answers whole
                yield exchange.json()
                return
            for data in exchange.event_data():
                if data == "[DONE]":
                    return
                event = _parse(data, "event")
                if isinstance(event, dict) and event.get("error"):
                    raise RequestError(self.clean(_message_of(event, "the stream broke off")))
                yield event
            raise RequestError("the server closed the stream before it was done")

    def clean(self, text: str) -> str:
        """Cut, one line, and without the key, should the server echo it."""
        if self._key:
            text = text.replace(self._key, "[key]")
        text = " ".join(text.split())
        return text if len(text) <= MESSAGE_LIMIT else f"{text[:MESSAGE_LIMIT]}… ({len(text)} characters)"

    # ---- one exchange, with its tries --------------------------------------------------------------------------

    def _open(self, method: str, path: str, body: Mapping[str, Any] | None, cancel: Cancellation | None) -> _Exchange:
        payload = None if body is None else json.dumps(body, ensure_ascii=False, allow_nan=False).encode()
        cancel = cancel or Cancellation()
        for attempt in range(self._retry.retries + 1):
            last = attempt == self._retry.retries
            retry_after: float | None = None
            failure: Exception
            try:
                exchange = self._try(method, path, payload, cancel)
            except (OSError, http.client.HTTPException) as error:
                cancel.check()
                failure = BackendError(self._unreachable(error))
                # A silence over the time-out is not tried again: the server may still be at work on it.
                last = last or isinstance(error, TimeoutError | ssl.SSLCertVerificationError)
            else:
                if exchange.status < 300:
                    return exchange
                retry_after = exchange.retry_after
                failure = exchange.failure(self.clean)
                exchange.close()
                last = last or exchange.status not in RETRIED_STATUSES
            if last:
                raise failure
            wait = self._retry.wait(attempt, retry_after)
            if wait is None:
                raise failure
            self._retry.sleep(wait)
            cancel.check()
        raise AssertionError("unreachable")

    def _try(self, method: str, path: str, payload: bytes | None, cancel: Cancellation) -> _Exchange:
        connection: http.client.HTTPConnection
        if self._tls:
            context = ssl.create_default_context()
            connection = http.client.HTTPSConnection(
                self._host, self._port, timeout=self._connect_timeout_s, context=context
            )
        else:
            connection = http.client.HTTPConnection(self._host, self._port, timeout=self._connect_timeout_s)
        try:
            connection.connect()
            connection.sock.settimeout(self._timeout_s)
            cancel.watch(connection.sock)
            headers = {"Accept": "text/event-stream, application/json", "User-Agent": "visavis"}
            if payload is not None:
                headers["Content-Type"] = "application/json"
            if self._key:
                headers["Authorization"] = f"Bearer {self._key}"
            connection.request(method, self._path + path, body=payload, headers=headers)
            return _Exchange(connection, connection.getresponse(), cancel)
        except BaseException:
            connection.close()
            raise

    def _unreachable(self, error: Exception) -> str:
        if isinstance(error, TimeoutError):
            return f"{self.base_url}: no answer within the time-out ({self._timeout_s:g} s silence); raise timeout_s"
        return f"{self.base_url} cannot be used: {error or type(error).__name__}; is the server up?"


class Cancellation:
    """Lets another thread end an exchange, even one that waits for bytes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self.cancelled = False

    def cancel(self) -> None:
        with self._lock:
            self.cancelled = True
            if self._socket is not None:
                with contextlib.suppress(OSError):  # already closed
                    self._socket.shutdown(socket.SHUT_RDWR)

    def watch(self, sock: socket.socket) -> None:
        with self._lock:
            self._socket = sock
        self.check()

    def check(self) -> None:
        if self.cancelled:
            raise CancelledRequestError("cancelled")


class _Exchange:
    """An answer being read."""

    def __init__(
        self, connection: http.client.HTTPConnection, response: http.client.HTTPResponse, cancel: Cancellation
    ) -> None:
        self._connection, self._response, self._cancel = connection, response, cancel
        self.status = response.status

    def __enter__(self) -> _Exchange:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        self._response.close()
        self._connection.close()

    @property
    def is_event_stream(self) -> bool:
        return (self._response.getheader("Content-Type") or "").lower().startswith("text/event-stream")

    @property
    def retry_after(self) -> float | None:
        """Seconds, from either spelling of the header."""
        value = self._response.getheader("Retry-After")
        if not value:
            return None
        try:
            return max(0.0, float(value))
        except ValueError:
            pass
        try:
            return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
        except ValueError:
            return None

    def json(self) -> Any:
        return _parse(self._reading(self._response.read).decode("utf-8", "replace"), "answer")

    def event_data(self) -> Iterator[str]:
        """The data of each event (lines `data: …`, joined; comments and other fields dropped)."""
        lines: list[str] = []
        while raw := self._reading(lambda: self._response.readline(MAX_LINE)):
            line = raw.decode("utf-8", "replace").rstrip("\r\n")
            if line.startswith("data:"):
                lines.append(line[5:].removeprefix(" "))
            elif not line and lines:
                yield "\n".join(lines)
                lines = []
        if lines:
            yield "\n".join(lines)

    def failure(self, clean: Callable[[str], str]) -> HttpStatusError:
        if 300 <= self.status < 400:
            where = shorten(self._response.getheader("Location") or "")
            return HttpStatusError(
                self.status, f"HTTP {self.status}: the server points to {where}; put that into base_url"
            )
        try:
            text = self._response.read(MAX_ERROR_BODY).decode("utf-8", "replace")
        except (OSError, http.client.HTTPException):
            text = ""
        try:
            said = _message_of(json.loads(text), text)
        except ValueError:
            said = text
        return HttpStatusError(self.status, clean(f"HTTP {self.status}: {said or self._response.reason}"))

    def _reading(self, read: Callable[[], bytes]) -> bytes:
        try:
            found = read()
        except TimeoutError:
            raise RequestError("the server fell silent for longer than timeout_s") from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            self._cancel.check()
            raise RequestError(f"the connection broke: {error or type(error).__name__}") from None
        self._cancel.check()
        return found


def _parse(text: str, what: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise RequestError(f"the server's {what} is not JSON: {shorten(text)}") from None


def _message_of(body: Any, otherwise: str) -> str:
    """The words in an error body: {"error": {"message": …}}, {"error": …}, {"message": …} or {"detail": …}."""
    if isinstance(body, dict):
        error = body.get("error")
        if isinstance(error, dict) and error.get("message"):
            return str(error["message"])
        for value in (error, body.get("message"), body.get("detail")):
            if value:
                return value if isinstance(value, str) else json.dumps(value)
    return otherwise
