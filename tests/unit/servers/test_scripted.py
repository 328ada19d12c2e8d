"""The servers of these tests themselves."""

from __future__ import annotations

import ssl
from http.server import BaseHTTPRequestHandler

import pytest

from tests.unit.servers.scripted import QuietServer


@pytest.mark.parametrize(("error", "shown"), [(ssl.SSLError("bad certificate"), False), (KeyError("a fault"), True)])
def test_clients_that_leave_are_no_news_and_faults_are(
    error: Exception, shown: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    with QuietServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        try:
            raise error
        except Exception:
            server.handle_error(None, ("127.0.0.1", 1))
    assert ("a fault" in capsys.readouterr().err) is shown
