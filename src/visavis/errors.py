"""Every error visavis raises on purpose. One line says what is wrong and the way out."""

from __future__ import annotations

import sys

__all__ = [
    "BackendError",
    "ContextLengthError",
    "InputError",
    "MediaError",
    "MessageError",
    "MissingExtraError",
    "ModelError",
    "OptionError",
    "QueueFullError",
    "RequestError",
    "UnknownArgumentError",
    "VisavisError",
    "WorkerDiedError",
    "pip_install",
    "shorten",
    "shorten_path",
]

MAX_SHOWN = 64


def shorten(value: object, limit: int = MAX_SHOWN) -> str:
    """`repr(value)` cut at `limit` characters, so that no error ever echoes a whole payload."""
    if isinstance(value, str | bytes) and len(value) > limit:
        return f"{value[:limit]!r}… ({len(value)} in all)"
    shown = repr(value)
    return shown if len(shown) <= limit else f"{shown[:limit]}…"


def shorten_path(path: str, limit: int = MAX_SHOWN) -> str:
    """As `shorten`, but of a long path the end is kept, where the file's name stands."""
    if len(path) <= limit or max(map(len, path.split("/"))) > 255:  # no file name is that long: it is something else
        return shorten(path, limit)
    return f"{'…' + path[-limit:]!r}"


def pip_install(*requirements: str) -> str:
    """The command that installs `requirements` for the interpreter that runs this, ready to be pasted into a shell."""
    import shlex

    return shlex.join([sys.executable or "python3", "-m", "pip", "install", *requirements])


class VisavisError(Exception):
    """Base of all errors raised on purpose."""


class InputError(VisavisError):
    """The caller's input is at fault: exit code 2, HTTP 4xx."""


class MessageError(InputError):
    """A chat message cannot be understood; the text names the part, e.g. `messages[0].content[1]`."""


class MediaError(InputError):
    """An image or video cannot be fetched or decoded; the text names the part."""


class ModelError(InputError):
    """A model folder or hub id cannot be used; the text names the missing or broken file."""


class OptionError(InputError):
    """An option is unknown or has a value that cannot be honoured."""


class UnknownArgumentError(OptionError, TypeError):
    """A call was given a keyword it does not know; also the TypeError that Python itself would raise."""


class ContextLengthError(InputError):
    """The prompt does not fit the context; the text gives both numbers."""


class MissingExtraError(InputError):
    """An optional dependency is not installed; the text gives the line that installs it."""

    def __init__(self, what: str, extra: str, install: str | None = None) -> None:
        """`install`: that line, where it is not this interpreter's."""
        self.what = what
        self.extra = extra
        self.install = install or pip_install(f"visavis[{extra}]")
        super().__init__(f"{what} needs an extra that is not installed: {self.install}")

    def __reduce__(self) -> tuple[type[MissingExtraError], tuple[str, str, str]]:
        return (MissingExtraError, (self.what, self.extra, self.install))  # it may come from another interpreter


class BackendError(VisavisError):
    """An engine failed; not the caller's fault."""


class RequestError(BackendError):
    """One request failed inside an engine; the others go on."""


class QueueFullError(BackendError):
    """An engine has as many requests waiting as it may have; nothing is wrong with this one: HTTP 429 or 503."""


class WorkerDiedError(BackendError):
    """A worker process ended while requests were in it; the text carries the tail of its log."""
