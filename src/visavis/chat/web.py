"""One medium over http(s): pinned address, every redirect checked, bytes and time bounded."""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
import tempfile
import threading
import time
import urllib.request
from typing import IO
from urllib.parse import SplitResult, quote, urljoin, urlsplit

from visavis import __version__
from visavis.chat.addresses import Address, resolve
from visavis.chat.fetch import FetchPolicy
from visavis.errors import MediaError, shorten

__all__ = ["fetch_url", "shown_url"]

_REDIRECTS = {301, 302, 303, 307, 308}
_IN_MEMORY = 64 << 20
_PIECE = 1 << 16
_URL_SAFE = "/%:@!$&'()*+,;=~-._?"
_HEADERS = {
    "Accept": "image/*, video/*, */*;q=0.1",
    "Accept-Encoding": "identity",
    "Connection": "close",
    "User-Agent": f"visavis/{__version__}",
}


def shown_url(url: str) -> str:
    """`url` for people: no credentials, no query (signed links carry secrets there), cut."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or "?"
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        return "the URL"
    return shorten(f"{parts.scheme}://{host}{port}{parts.path}", 120).strip("'\"")


def fetch_url(url: str, policy: FetchPolicy, max_bytes: int) -> IO[bytes]:
    """The body behind `url`, rewound; in memory up to 64 MiB, in an unnamed temporary file beyond.

    Raises MediaError: host or address not allowed, too many redirects, a status other than 200, too many bytes, too
    slow, broken off.
    """
    deadline = time.monotonic() + policy.total_timeout_s
    shown = shown_url(url)
    for _ in range(policy.max_redirects + 1):
        answer = _one_hop(url, policy, max_bytes, deadline)
        if not isinstance(answer, str):
            return answer
        url = answer
    raise MediaError(f"{shown}: more than {policy.max_redirects} redirects")


def _one_hop(url: str, policy: FetchPolicy, max_bytes: int, deadline: float) -> IO[bytes] | str:
    """The body, or the absolute URL it redirects to."""
    shown = shown_url(url)
    parts = _split(url, shown)
    policy.check_host(parts.hostname or "", shown)
    connection = _connection(parts, policy, shown)
    # A server that sends one byte before every read time-out would never be late: at the deadline the socket is shut.
    watchdog = threading.Timer(max(deadline - time.monotonic(), 0), connection.shut)
    watchdog.daemon = True
    watchdog.start()
    try:
        _open(connection, policy, shown)
        connection.request("GET", _target(parts, connection.plain_proxy), headers=_HEADERS)
        response = connection.getresponse()
        if response.status in _REDIRECTS:
            location = response.getheader("Location")
            if not location:
                raise MediaError(f"{shown}: answered {response.status} without saying where to go")
            return urljoin(url, location)
        if response.status != 200:
            raise MediaError(f"{shown}: answered {response.status} {_reason(response.reason)}")
        return _body(response, max_bytes, shown, deadline)
    except (OSError, http.client.HTTPException, ValueError, MediaError) as error:
        if time.monotonic() >= deadline:
            raise MediaError(f"{shown}: took longer than {policy.total_timeout_s:g} s") from None
        if isinstance(error, MediaError):
            raise
        if isinstance(error, TimeoutError):
            raise MediaError(f"{shown}: sent nothing for {policy.read_timeout_s:g} s") from None
        raise MediaError(f"{shown}: the transfer failed ({_reason(error)})") from None
    finally:
        watchdog.cancel()
        connection.close()


def _target(parts: SplitResult, absolute: bool) -> str:
    path = quote(parts.path or "/", safe=_URL_SAFE)
    query = f"?{quote(parts.query, safe=_URL_SAFE)}" if parts.query else ""
    return f"{parts.scheme}://{parts.netloc}{path}{query}" if absolute else path + query


def _split(url: str, shown: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises ValueError when it is not a number
    except ValueError:
        raise MediaError(f"{shown}: is not a valid URL") from None
    if parts.scheme not in ("http", "https"):
        raise MediaError(f"{shown}: only http and https are fetched")
    if not parts.hostname:
        raise MediaError(f"{shown}: has no host")
    if parts.username is not None:
        raise MediaError(f"{shown}: user names and passwords in a URL are not sent; download the file yourself")
    return parts


def _body(response: http.client.HTTPResponse, max_bytes: int, shown: str, deadline: float) -> IO[bytes]:
    encoding = (response.getheader("Content-Encoding") or "identity").lower()
    if encoding != "identity":
        raise MediaError(f"{shown}: came with Content-Encoding {shorten(encoding, 20)} though none was asked for")
    declared = response.length
    if declared is not None and declared > max_bytes:
        raise MediaError(f"{shown}: is {declared:,} bytes, over the cap of {max_bytes:,}")
    body = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY)  # noqa: SIM115 — handed on, closed by the reader
    size = 0
    try:
        while piece := response.read1(_PIECE):
            size += len(piece)
            if size > max_bytes:
                raise MediaError(f"{shown}: is over the cap of {max_bytes:,} bytes")
            if time.monotonic() >= deadline:
                raise TimeoutError
            body.write(piece)
        if time.monotonic() >= deadline:  # the watchdog's shutdown looks like the end of the body
            raise TimeoutError
        if declared is not None and size < declared:
            raise ConnectionError(f"it broke off after {size:,} of {declared:,} bytes")
    except BaseException:
        body.close()
        raise
    body.seek(0)
    return body


class _PinnedConnection(http.client.HTTPConnection):
    """Speaks for a host name but connects only to addresses resolved and checked before."""

    def __init__(
        self, host: str, port: int, addresses: list[Address], policy: FetchPolicy, *, tls_name: str | None
    ) -> None:
        super().__init__(host, port, timeout=policy.connect_timeout_s)
        self.default_port = 443 if tls_name else 80  # decides whether Host names the port
        self.addresses = addresses
        self.policy = policy
        self.tls_name = tls_name
        self.plain_proxy = False
        self._live: socket.socket | None = None

    def connect(self) -> None:
        self.sock = self._connect_to_any()
        if self._tunnel_host:  # type: ignore[attr-defined]
            self._tunnel()  # type: ignore[attr-defined]
        if self.tls_name:
            self.sock = ssl.create_default_context().wrap_socket(
                self.sock, server_hostname=self.tls_name, do_handshake_on_connect=False
            )
            self._live = self.sock
            self.sock.do_handshake()
        self.sock.settimeout(self.policy.read_timeout_s)

    def _connect_to_any(self) -> socket.socket:
        failure: OSError = ConnectionError("no address")
        for family, sockaddr in self.addresses:
            self._live = sock = socket.socket(family, socket.SOCK_STREAM)
            sock.settimeout(self.policy.connect_timeout_s)
            try:
                sock.connect(sockaddr)
            except OSError as error:
                sock.close()
                failure = error
            else:
                return sock
        raise failure

    def shut(self) -> None:
        """Ends whatever the connection is waiting for. Called from another thread."""
        if self._live is not None:
            # socket's own shutdown: SSLSocket's would make a read under way continue in plain text.
            with contextlib.suppress(OSError):
                socket.socket.shutdown(self._live, socket.SHUT_RDWR)


def _connection(parts: SplitResult, policy: FetchPolicy, shown: str) -> _PinnedConnection:
    """A connection with its addresses checked, not yet open."""
    host = parts.hostname or ""
    tls_name = host if parts.scheme == "https" else None
    port = parts.port or (443 if tls_name else 80)
    proxy = _proxy_for(parts.scheme, host) if policy.proxies else None
    if proxy is None:
        return _PinnedConnection(host, port, resolve(host, port, policy, shown), policy, tls_name=tls_name)
    if not policy.private_addresses:
        # The proxy resolves the name, so nothing could be pinned.
        raise MediaError(f"{shown}: cannot be fetched through a proxy where only public addresses are allowed")
    connection = _PinnedConnection(*proxy, resolve(*proxy, policy, "the proxy"), policy, tls_name=tls_name)
    if tls_name:
        connection.set_tunnel(host, port)
    else:
        connection.plain_proxy = True
    return connection


def _open(connection: _PinnedConnection, policy: FetchPolicy, shown: str) -> None:
    try:
        connection.connect()
    except TimeoutError:
        raise MediaError(f"{shown}: no connection within {policy.connect_timeout_s:g} s") from None
    except ssl.SSLCertVerificationError as error:
        raise MediaError(f"{shown}: its certificate is not trusted ({_reason(error.verify_message)})") from None
    except OSError as error:
        raise MediaError(f"{shown}: no connection ({_reason(error)})") from None


def _proxy_for(scheme: str, host: str) -> tuple[str, int] | None:
    url = urllib.request.getproxies().get(scheme)
    if not url or urllib.request.proxy_bypass(host):
        return None
    parts = urlsplit(url if "://" in url else f"http://{url}")
    return (parts.hostname, parts.port or 3128) if parts.hostname else None


def _reason(error: Exception | str) -> str:
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return shorten(text, 100).strip("'\"")
