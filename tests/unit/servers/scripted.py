"""A chat server that does what a test tells it to, on a port of this machine."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = Callable[["Exchange"], None]


class QuietServer(ThreadingHTTPServer):
    """Says nothing of clients that leave or do not trust it, as tests want them to; other faults are shown."""

    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), OSError):  # ssl.SSLError is one
            super().handle_error(request, client_address)


class Exchange:
    """One request being answered."""

    def __init__(self, handler: BaseHTTPRequestHandler, body: Any) -> None:
        self.handler, self.body = handler, body

    def whole(self, status: int, body: Any, headers: dict[str, str] | None = None) -> None:
        payload = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        self.handler.send_response(status)
        for name, value in {"Content-Type": "application/json", **(headers or {})}.items():
            self.handler.send_header(name, value)
        self.handler.send_header("Content-Length", str(len(payload)))
        self.handler.end_headers()
        self.handler.wfile.write(payload)

    def begin_stream(self) -> None:
        self.handler.send_response(200)
        self.handler.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.handler.end_headers()

    def raw(self, data: bytes) -> None:
        self.handler.wfile.write(data)
        self.handler.wfile.flush()

    def event(self, body: Any) -> None:
        self.raw(b"data: " + (body if isinstance(body, str) else json.dumps(body)).encode() + b"\n\n")

    def stream(self, *events: Any) -> None:
        """Events, then [DONE]."""
        self.begin_stream()
        for event in events:
            self.event(event)
        self.event("[DONE]")


def piece(text: str | None = None, *, finish: str | None = None, **choice: Any) -> dict[str, Any]:
    """One chunk of a streamed answer."""
    delta = {} if text is None else {"content": text}
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish, **choice}]}


def usage(prompt: int, answer: int) -> dict[str, Any]:
    return {"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": answer}}


@dataclass
class Server:
    """`answers` are used one after the other, the last one for ever."""

    models: Any = field(default_factory=lambda: {"data": [{"id": "m", "owned_by": "someone"}]})
    answers: list[Answer] = field(default_factory=list)
    bodies: list[Any] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    gone: threading.Event = field(default_factory=threading.Event)  # a client left while it was being answered
    url: str = ""

    def keep_talking(self, exchange: Exchange, seconds: float = 20.0) -> None:
        """Streams until the client leaves."""
        exchange.begin_stream()
        until = time.monotonic() + seconds
        try:
            while time.monotonic() < until:
                exchange.event(piece("x"))
                time.sleep(0.01)
        except OSError:
            self.gone.set()


@contextmanager
def serving(server: Server) -> Iterator[Server]:
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            server.headers.append(dict(self.headers.items()))
            if callable(server.models):
                server.models(Exchange(self, None))
            else:
                Exchange(self, None).whole(200, server.models)

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with lock:
                number = len(server.bodies)
                server.bodies.append(body)
                server.headers.append(dict(self.headers.items()))
            server.answers[min(number, len(server.answers) - 1)](Exchange(self, body))

        def log_message(self, *args: Any) -> None:
            pass

    listening = QuietServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=listening.serve_forever, args=(0.02,), daemon=True).start()
    server.url = f"http://127.0.0.1:{listening.server_address[1]}/v1"
    try:
        yield server
    finally:
        listening.shutdown()
        listening.server_close()
