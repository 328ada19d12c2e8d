"""For all tests."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import pytest

# A run in the background of a shell (nohup, some CI runners) has Ctrl-C ignored, and so would every child of it. The
# tests of Ctrl-C are about children that were started as from a terminal.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# No test is about how fast a function is on a busy machine: hypothesis' limit of 200 ms an example failed on the first
# call of a module that is imported late.
try:
    from hypothesis import settings
except ImportError:  # where only the tests without it run
    pass
else:
    settings.register_profile("visavis", deadline=None)
    settings.load_profile("visavis")

COUNTED = pytest.StashKey[dict[str, Any]]()


@pytest.fixture
def count(request: pytest.FixtureRequest) -> Callable[..., None]:
    """`count(tally, where="")` adds up what the variants of a test saw; the sums are shown at the end of the run."""

    def add(value: Any, where: str = "") -> None:
        counted = request.config.stash.setdefault(COUNTED, {})
        name = f"{getattr(request.node, 'originalname', request.node.name)}{where and f' {where}'}"
        counted[name] = counted[name] + value if name in counted else value

    return add


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if counted := config.stash.get(COUNTED, {}):
        terminalreporter.section("what the parity tests compared")
        for name, value in counted.items():
            terminalreporter.write_line(f"{name}: {value}")
