"""For all tests."""

from __future__ import annotations

import signal

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
