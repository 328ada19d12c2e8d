"""For all tests."""

from __future__ import annotations

import signal

# A run in the background of a shell (nohup, some CI runners) has Ctrl-C ignored, and so would every child of it. The
# tests of Ctrl-C are about children that were started as from a terminal.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
