"""A Python child process in a session of its own, whose end, with all its own children, is certain."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import visavis
from visavis.errors import BackendError, OptionError

__all__ = ["ChildProcess", "descendants", "peak_rss_bytes"]

_TAIL_LINES = 15
_TAIL_CHARACTERS = 2000
_KILL_WAIT_S = 10.0
_CAUSE_CHARACTERS = 600
_ERROR_LINE = re.compile(r"\b((?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:Error|Exception)): (\S.*)")


class ChildProcess:
    """`python -m module` with one end of a socket pair, its output in a log file.

    `connection` is the parent's end. `end` is what to call when done; it may be called twice, from any thread.
    """

    def __init__(
        self, module: str, python: str | None = None, *, label: str, env: Mapping[str, str] | None = None
    ) -> None:
        """`python`: another interpreter; it gets this very visavis, and else its own packages. Raises OptionError."""
        self.python = python or sys.executable
        self._ending = threading.Lock()
        self._folder = tempfile.TemporaryDirectory(prefix=f"visavis-{label}-", ignore_cleanup_errors=True)
        self.log_path = Path(self._folder.name) / "worker.log"
        # A folder with nothing but our package: the interpreter's own site-packages must not be joined by ours.
        (Path(self._folder.name) / "visavis").symlink_to(Path(visavis.__file__).parent, target_is_directory=True)
        environment = {**os.environ, **(env or {}), "PYTHONSAFEPATH": "1", "PYTHONUNBUFFERED": "1"}
        paths = [self._folder.name, environment.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(p for p in paths if p)
        if python is not None:  # its own tools (ninja, a compiler wrapper) before ours
            tools = [str(Path(python).parent), environment.get("PATH", "")]
            environment["PATH"] = os.pathsep.join(p for p in tools if p)
            environment.pop("VIRTUAL_ENV", None)
        self.connection, theirs = socket.socketpair()
        # The kernel sends a parent's death signal when the *thread* that made the child ends, so only the main thread
        # may ask for it; the child also sees the socket close.
        arguments = [str(theirs.fileno()), str(os.getpid() if _in_main_thread() else 0)]
        try:
            with open(self.log_path, "wb") as log:
                self._process = subprocess.Popen(
                    [self.python, "-m", module, *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,
                    env=environment,
                )
        except OSError as error:
            self.connection.close()
            self._folder.cleanup()
            raise OptionError(f"cannot start {self.python}: {error.strerror}") from None
        finally:
            theirs.close()
        self.pid = self._process.pid

    def alive(self) -> bool:
        return self._process.poll() is None

    def wait(self, timeout: float) -> bool:
        """Whether it has ended by itself within `timeout` seconds."""
        try:
            self._process.wait(timeout)
            return True
        except subprocess.TimeoutExpired:
            return False

    def how_it_ended(self) -> str:
        """In words."""
        code = self._process.poll()
        if code is None:
            return "is still running"
        if code >= 0:
            return f"ended with exit code {code}"
        name = signal.Signals(-code).name if -code in {*signal.Signals} else f"signal {-code}"
        return f"was killed by {name}" + (" (out of memory?)" if name == "SIGKILL" else "")

    def log_tail(self) -> str:
        """The last lines it printed; "" if there are none."""
        try:
            with open(self.log_path, "rb") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - 4 * _TAIL_CHARACTERS))
                text = log.read().decode("utf-8", "replace")
        except OSError:
            return ""
        return "\n".join(text.rstrip().splitlines()[-_TAIL_LINES:])[-_TAIL_CHARACTERS:]

    def root_cause(self, said: str) -> str:
        """The last error in its log that `said` does not tell already; "" if there is none.

        Engines with processes of their own often raise no more than "see root cause above"."""
        try:
            text = self.log_path.read_text("utf-8", "replace")
        except OSError:
            return ""
        found = [f"{kind}: {words.strip()}" for kind, words in _ERROR_LINE.findall(text)]
        others = [line for line in found if line not in said and line.partition(": ")[2][:60] not in said]
        return others[-1][:_CAUSE_CHARACTERS] if others else ""

    def kill(self) -> None:
        """At once, and without waiting; `end` must still be called."""
        self._signal(signal.SIGKILL, descendants(self.pid))

    def end(self, patience_s: float = 0.0) -> None:
        """Ends it and its children: by itself within `patience_s`, else by SIGTERM and SIGKILL.

        Returns when all are gone. Raises BackendError when a process survives.
        """
        with self._ending:
            family = [self.pid, *descendants(self.pid)]
            if patience_s > 0:
                self.wait(patience_s)
            if self.alive():
                self._signal(signal.SIGTERM, [])
                self.wait(1.0)
            family += [pid for pid in descendants(self.pid) if pid not in family]
            self._signal(signal.SIGKILL, family[1:])
            deadline = time.monotonic() + _KILL_WAIT_S
            left = [pid for pid in family if _runs(pid)]
            while (left or _group_runs(self.pid)) and time.monotonic() < deadline:
                self._process.poll()  # reaps it
                time.sleep(0.01)
                left = [pid for pid in left if _runs(pid)]
            self.connection.close()
            if left or _group_runs(self.pid):
                raise BackendError(f"processes of the worker {self.pid} do not end: {left or 'in its group'}")
            self._folder.cleanup()

    def _signal(self, number: signal.Signals, also: Sequence[int]) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)  # the child leads a group of its own
        for pid in also:  # children that left the group
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _stat(pid: int) -> list[str] | None:
    """Fields of /proc/<pid>/stat after the name: state, parent, group, …; None where there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except OSError:
        return None
    return text[text.rindex(")") + 2 :].split()


def _runs(pid: int) -> bool:
    """Whether the process exists and is not merely unreaped."""
    if Path("/proc/self/stat").exists():
        stat = _stat(pid)
        return stat is not None and stat[0] not in "ZX"
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _processes() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return []


def _group_runs(group: int) -> bool:
    if not Path("/proc/self/stat").exists():
        try:
            os.killpg(group, 0)
        except (ProcessLookupError, PermissionError):
            return False
        return True
    return any((s := _stat(pid)) is not None and s[0] not in "ZX" and int(s[2]) == group for pid in _processes())


def descendants(pid: int) -> list[int]:
    """Children of `pid` and theirs, by /proc; [] on systems without it."""
    children: dict[int, list[int]] = {}
    for other in _processes():
        if (stat := _stat(other)) is not None:
            children.setdefault(int(stat[1]), []).append(other)
    found: list[int] = []
    todo = [pid]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


def peak_rss_bytes(pid: int) -> int | None:
    """The most memory the process ever had resident, by /proc; None where that is not told.

    `getrusage` will not do: after an exec it still knows the peak of the process that forked.
    """
    try:
        for line in Path(f"/proc/{pid}/status").read_text("utf-8", "replace").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        return None
    return None
