"""Fetching over http(s), against a real server on 127.0.0.1."""

from __future__ import annotations

import http.server
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.chat.making import png
from tests.unit.servers.scripted import QuietServer
from visavis.chat import addresses
from visavis.chat.addresses import is_public
from visavis.chat.fetch import PERMISSIVE, STRICT, FetchPolicy
from visavis.chat.sources import open_source
from visavis.chat.web import shown_url
from visavis.errors import MediaError

DATA = png((40, 30))
DIRECT = replace(PERMISSIVE, proxies=False)
PUBLIC_ONLY = replace(STRICT, urls=True)

Answer = Callable[[http.server.BaseHTTPRequestHandler], None]


@dataclass
class Server:
    """A server whose answers tests set; it remembers what was asked."""

    answers: dict[str, Answer] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    port: int = 0

    def url(self, path: str, host: str = "127.0.0.1", scheme: str = "http") -> str:
        return f"{scheme}://{host}:{self.port}{path}"


def serve(server: Server, tls: ssl.SSLContext | None = None) -> http.server.ThreadingHTTPServer:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            server.asked.append(self.path)
            server.headers.append(dict(self.headers))
            answer = server.answers.get(self.path.partition("?")[0])
            try:
                if answer is None:
                    self.send_error(404)
                else:
                    answer(self)
            except OSError:
                pass  # the client left, as several tests want it to

        def log_message(self, *args: Any) -> None:
            pass

    httpd = QuietServer(("127.0.0.1", 0), Handler)
    if tls is not None:
        httpd.socket = tls.wrap_socket(httpd.socket, server_side=True, do_handshake_on_connect=False)
    server.port = httpd.server_address[1]
    threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    return httpd


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server(answers={"/ok.png": sending(DATA)})
    httpd = serve(made)
    yield made
    httpd.shutdown()
    httpd.server_close()


def sending(body: bytes, *, length: int | None = -1, status: int = 200, **headers: str) -> Answer:
    """Answers with `body`; `length` None leaves Content-Length out, -1 is the true one."""

    def answer(handler: http.server.BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        if length is not None:
            handler.send_header("Content-Length", str(len(body) if length == -1 else length))
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.send_header("Connection", "close")
        handler.close_connection = True
        handler.end_headers()
        handler.wfile.write(body)

    return answer


def redirecting(location: str, status: int = 302) -> Answer:
    return sending(b"", status=status, Location=location)


def fetch(url: str, policy: FetchPolicy = DIRECT) -> bytes:
    with open_source(url, policy, expected="image") as source:
        return source.read(policy.max_bytes)


def refused(url: str, message: str, policy: FetchPolicy = DIRECT) -> None:
    with pytest.raises(MediaError, match=message) as caught:
        fetch(url, policy)
    assert len(str(caught.value)) < 300


# ---- what works ------------------------------------------------------------------------------------------------------


def test_a_file_is_fetched(server: Server) -> None:
    assert fetch(server.url("/ok.png")) == DATA
    sent = server.headers[0]
    assert sent["Host"] == f"127.0.0.1:{server.port}"
    assert sent["User-Agent"].startswith("visavis/")
    assert sent["Accept-Encoding"] == "identity"


def test_the_name_shown_holds_no_query_and_no_credentials(server: Server) -> None:
    with open_source(server.url("/ok.png?token=secret#part"), DIRECT, expected="image") as source:
        assert source.name == server.url("/ok.png")
    assert server.asked == ["/ok.png?token=secret"]
    assert shown_url("https://user:pw@host/a?b") == "https://host/a"
    assert shown_url("http://[::1") == "the URL"


def test_spaces_and_letters_beyond_ascii_are_encoded_once(server: Server) -> None:
    server.answers["/a%20b%C3%BC.png"] = sending(DATA)
    assert fetch(server.url("/a bü.png")) == DATA
    assert fetch(server.url("/a%20b%C3%BC.png")) == DATA


def test_a_body_without_a_length_is_read_to_its_end(server: Server) -> None:
    server.answers["/open.png"] = sending(DATA, length=None)
    assert fetch(server.url("/open.png")) == DATA


def test_a_chunked_body(server: Server) -> None:
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(DATA[i : i + 50]), DATA[i : i + 50]) for i in range(0, len(DATA), 50))
    server.answers["/chunked.png"] = sending(chunks + b"0\r\n\r\n", length=None, Transfer_Encoding="chunked")
    assert fetch(server.url("/chunked.png")) == DATA


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirects_are_followed(server: Server, status: int) -> None:
    server.answers["/old.png"] = redirecting("/ok.png", status)
    assert fetch(server.url("/old.png")) == DATA
    assert server.asked == ["/old.png", "/ok.png"]


# ---- what does not ---------------------------------------------------------------------------------------------------


def test_a_missing_file(server: Server) -> None:
    refused(server.url("/missing.png?token=secret"), r"^http://127\.0\.0\.1:\d+/missing\.png: answered 404 Not Found$")


def test_a_page_instead_of_a_picture_says_so(server: Server) -> None:
    from visavis.chat import normalize

    server.answers["/page.png"] = sending(b"<!doctype html><p>sign in", Content_Type="image/png")
    chat = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": server.url("/page.png")}}]}]
    with pytest.raises(MediaError, match=r"content\[0\]\.image_url\.url: http://.*/page\.png is a web page \(HTML\)"):
        normalize(chat, policy=DIRECT)


def test_an_endless_redirect(server: Server) -> None:
    server.answers["/loop"] = redirecting("/loop")
    refused(server.url("/loop"), "more than 5 redirects")
    assert len(server.asked) == 6
    refused(server.url("/loop"), "more than 0 redirects", replace(DIRECT, max_redirects=0))


@pytest.mark.parametrize("target", ["file:///etc/passwd", "ftp://127.0.0.1/a", "gopher://127.0.0.1/", "data:,x"])
def test_a_redirect_to_another_scheme(server: Server, target: str) -> None:
    server.answers["/out"] = redirecting(target)
    refused(server.url("/out"), "only http and https are fetched")


def test_a_redirect_to_nowhere(server: Server) -> None:
    server.answers["/out"] = sending(b"", status=302)
    refused(server.url("/out"), "answered 302 without saying where to go")


def test_a_body_declared_too_large_is_not_read(server: Server) -> None:
    server.answers["/large"] = sending(b"", length=10**12)
    refused(server.url("/large"), r"is 1,000,000,000,000 bytes, over the cap of 268,435,456")


@pytest.mark.parametrize("length", [None, -1])
def test_a_body_too_large(server: Server, length: int | None) -> None:
    server.answers["/large"] = sending(bytes(5000), length=length)
    refused(server.url("/large"), r"over the cap of 1,000", replace(DIRECT, max_bytes=1000))


def test_a_body_that_breaks_off(server: Server) -> None:
    server.answers["/short"] = sending(DATA, length=len(DATA) + 7)
    refused(server.url("/short"), rf"broke off after {len(DATA)} of {len(DATA) + 7} bytes")


def test_a_chunked_body_that_breaks_off(server: Server) -> None:
    server.answers["/short"] = sending(b"ff\r\nabc", length=None, Transfer_Encoding="chunked")
    refused(server.url("/short"), "the transfer failed")


def test_a_compressed_answer_is_named(server: Server) -> None:
    server.answers["/zip"] = sending(DATA, Content_Encoding="gzip")
    refused(server.url("/zip"), "Content-Encoding 'gzip' though none was asked for")


def test_an_answer_that_is_no_http() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")

        threading.Thread(target=answer, daemon=True).start()
        refused(f"http://127.0.0.1:{listener.getsockname()[1]}/", "the transfer failed")


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    refused(f"http://127.0.0.1:{port}/a.png", "no connection")


def test_a_silent_server_is_given_up(server: Server) -> None:
    server.answers["/silent"] = lambda handler: time.sleep(3)
    refused(server.url("/silent"), "sent nothing for 0.2 s", replace(DIRECT, read_timeout_s=0.2))


@pytest.mark.parametrize("where", ["head", "body"])
def test_a_dripping_server_is_given_up_at_the_deadline(server: Server, where: str) -> None:
    """Each piece comes well before the read time-out, so only the whole counts."""

    sent = []

    def drip(handler: http.server.BaseHTTPRequestHandler) -> None:
        if where == "body":
            handler.send_response(200)
            handler.end_headers()
        else:
            handler.wfile.write(b"HTTP/1.1 200 OK\r\n")
        for i in range(90):  # a header may have a hundred lines
            handler.wfile.write(b"X" if where == "body" else b"X-%d: y\r\n" % i)
            handler.wfile.flush()
            sent.append(i)
            time.sleep(0.05)

    server.answers["/drip"] = drip
    policy = replace(DIRECT, read_timeout_s=1.0, total_timeout_s=0.3)
    refused(server.url("/drip"), "took longer than 0.3 s", policy)
    assert len(sent) < 90


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http:///a.png", "has no host"),
        ("http://host:port/a.png", "is not a valid URL"),
        ("http://[::1/a.png", "is not a valid URL"),
        ("http://user:pw@127.0.0.1/a.png", "user names and passwords"),
        ("http://no-such-host.invalid/a.png", "the host name does not resolve"),
        ("http://" + "a" * 70 + ".invalid/a.png", "the host name does not resolve"),
    ],
)
def test_urls_that_cannot_be_fetched(url: str, message: str) -> None:
    refused(url, message)


def test_a_line_break_in_a_url_cannot_add_headers(server: Server) -> None:
    refused(server.url("/ok.png HTTP/1.1\r\nX-Evil: 1"), "answered 404")
    assert len(server.headers) == 1
    assert all("X-Evil" not in sent for sent in server.headers)


# ---- who may be reached ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "127.1.2.3", "0.0.0.0", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254",
        "100.64.0.1", "100.100.100.200", "192.0.0.192", "192.88.99.1", "168.63.129.16", "198.18.0.1", "203.0.113.5",
        "224.0.0.1", "240.0.0.1", "255.255.255.255", "::", "::1", "::127.0.0.1", "::ffff:127.0.0.1", "::ffff:10.0.0.1",
        "::ffff:169.254.169.254", "fe80::1", "fe80::1%eth0", "fc00::1", "fd00:ec2::254", "fec0::1", "ff02::1",
        "2001:db8::1", "3fff::1", "100::1", "4000::1", "2001:2::1",
        "2002:7f00:1::", "2002:a9fe:a9fe::1", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe",
        "64:ff9b:1::1", "2001:0:4136:e378:8000:63bf:f5ff:fffe",
    ],
)  # fmt: skip
def test_addresses_that_are_not_the_open_internets(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize(
    "address",
    ["1.1.1.1", "93.184.216.34", "2606:4700:4700::1111", "::ffff:1.1.1.1", "64:ff9b::101:101", "2002:101:101::1"],
)
def test_addresses_that_are(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "localhost", "2130706433", "0x7f000001", "0x7f.1", "0177.0.0.1", "127.1", "[::1]",
     "[::ffff:127.0.0.1]", "169.254.169.254", "0", "[::]"],
)  # fmt: skip
def test_no_spelling_of_a_private_address_is_reached(server: Server, host: str) -> None:
    url = server.url("/ok.png", host)
    try:
        socket.getaddrinfo(host.strip("[]"), 80)
    except OSError:
        pytest.skip("the resolver here does not know this spelling")
    refused(url, "not on the public internet|does not resolve", PUBLIC_ONLY)
    assert server.asked == []


def resolving(monkeypatch: pytest.MonkeyPatch, names: dict[str, list[str]]) -> list[str]:
    """Puts a resolver in place that knows only `names`; gives the list of what it was asked."""
    asked: list[str] = []

    def fake(host: str, port: int, *args: Any, **kwargs: Any) -> list[Any]:
        asked.append(host)
        if host not in names:
            raise socket.gaierror(-2, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in names[host]]

    monkeypatch.setattr(addresses.socket, "getaddrinfo", fake)
    return asked


def test_a_name_is_resolved_once_and_the_checked_address_is_used(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that answers differently the second time (DNS rebinding) gets no second time."""
    asked = resolving(monkeypatch, {"rebind.example": ["127.0.0.1"]})
    assert fetch(server.url("/ok.png", "rebind.example")) == DATA
    assert asked == ["rebind.example"]
    assert server.headers[0]["Host"] == f"rebind.example:{server.port}"


def test_one_private_address_among_public_ones_is_enough(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    resolving(monkeypatch, {"mixed.example": ["93.184.216.34", "127.0.0.1"]})
    refused(server.url("/ok.png", "mixed.example"), "not on the public internet", PUBLIC_ONLY)
    assert server.asked == []


def test_every_redirect_is_judged_anew(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    resolving(monkeypatch, {"open.example": ["127.0.0.1"], "inner.example": ["127.0.0.2"]})
    monkeypatch.setattr(addresses, "is_public", lambda address: address == "127.0.0.1")
    assert fetch(server.url("/ok.png", "open.example"), PUBLIC_ONLY) == DATA
    server.answers["/out"] = redirecting(server.url("/ok.png", "inner.example"))
    refused(server.url("/out", "open.example"), r"^http://inner\.example.* not on the public internet", PUBLIC_ONLY)
    assert server.asked == ["/ok.png", "/out"]


def test_the_next_address_is_tried_when_one_does_not_answer(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    resolving(monkeypatch, {"two.example": ["127.0.0.9", "127.0.0.1"]})
    assert fetch(server.url("/ok.png", "two.example")) == DATA


def test_only_listed_hosts(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["cdn.example.com", "example.com", "evilexample.com", "example.com.evil"]
    resolving(monkeypatch, {name: ["127.0.0.1"] for name in names} | {"CDN.example.com.": ["127.0.0.1"]})
    policy = replace(DIRECT, allowed_hosts=("*.Example.com",))
    assert fetch(server.url("/ok.png", "cdn.example.com"), policy) == DATA
    for name in names[1:]:
        refused(server.url("/ok.png", name), "not on the list of hosts", policy)
    server.answers["/out"] = redirecting(server.url("/ok.png", "evilexample.com"))
    refused(server.url("/out", "cdn.example.com"), "not on the list of hosts", policy)
    assert fetch(server.url("/ok.png", "example.com"), replace(DIRECT, allowed_hosts=("example.com",))) == DATA


# ---- proxies and TLS -------------------------------------------------------------------------------------------------


def test_a_proxy_of_the_environment_is_used_by_the_permissive_policy_only(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("no_proxy", "NO_PROXY", "HTTP_PROXY", "REQUEST_METHOD"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{server.port}")
    server.answers["http://pictures.invalid/a.png"] = sending(DATA)
    assert fetch("http://pictures.invalid/a.png?x=1", PERMISSIVE) == DATA
    assert server.asked == ["http://pictures.invalid/a.png?x=1"]
    refused("http://pictures.invalid/a.png", "does not resolve", DIRECT)
    refused("http://pictures.invalid/a.png", "through a proxy", replace(PERMISSIVE, private_addresses=False))
    monkeypatch.setenv("no_proxy", "pictures.invalid")
    refused("http://pictures.invalid/a.png", "does not resolve", PERMISSIVE)


@pytest.fixture
def tls_server(tmp_path: Path) -> Iterator[tuple[Server, Path]]:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("needs the openssl command to make a certificate")
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    command = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(certificate)]
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip("this openssl cannot make the certificate")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    made = Server(answers={"/ok.png": sending(DATA)})
    httpd = serve(made, context)
    yield made, certificate
    httpd.shutdown()
    httpd.server_close()


def test_a_certificate_must_be_trusted_and_name_the_host(
    tls_server: tuple[Server, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    server, certificate = tls_server
    url = server.url("/ok.png", "localhost", "https")
    refused(url, r"its certificate is not trusted \(self.signed certificate\)")
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    assert fetch(url) == DATA
    refused(server.url("/ok.png", "127.0.0.1", "https"), "its certificate is not trusted.*127.0.0.1")
