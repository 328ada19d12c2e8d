"""One normaliser for where the bytes of a medium come from."""

from __future__ import annotations

import errno
import io
import os
import re
import stat
from dataclasses import dataclass
from types import TracebackType
from typing import IO, Any, Literal, Self
from urllib.parse import unquote

from visavis.chat.encoded import decode_base64, decode_data_url, looks_like_base64, media_in_base64
from visavis.chat.fetch import FetchPolicy
from visavis.chat.sniff import HEAD_BYTES, Sniffed, sniff
from visavis.errors import MediaError, MessageError, shorten, shorten_path

__all__ = ["Expected", "Source", "open_source"]

Expected = Literal["image", "video", "any"]

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")
_WINDOWS_PATH = re.compile(r"[A-Za-z]:[\\/]|\\\\")


@dataclass(slots=True)
class Source:
    """Opened bytes. `name` is for people and holds no payload. Use as a context manager."""

    stream: IO[bytes]
    size: int
    name: str
    head: bytes

    @property
    def kind(self) -> Sniffed:
        """What the bytes are."""
        return sniff(self.head)

    def read(self, max_bytes: int) -> bytes:
        """All of it. Raises MediaError over `max_bytes`, also when the file grew since it was opened."""
        _check_size(self.size, max_bytes, self.name)
        data = self.stream.read(max_bytes + 1)
        _check_size(len(data), max_bytes, self.name)
        return data

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stream.close()


def open_source(value: Any, policy: FetchPolicy, *, expected: Expected, base_dir: str | None = None) -> Source:
    """Bytes of a path, URL, data URL, bare base64, bytes-like or binary file object.

    A string is told apart in this order: `data:`, `http(s):`, `file:`, base64 that decodes to a known signature,
    an existing path (`~` expanded, relative to `base_dir`, else the working directory). Raises MediaError when it
    cannot be had, MessageError for a type that holds no bytes.
    """
    max_bytes = policy.max_bytes if expected == "image" else policy.max_video_bytes
    if isinstance(value, str):
        return _from_text(value, policy, max_bytes, base_dir)
    if isinstance(value, bytes | bytearray | memoryview):
        data = bytes(value)
        _check_size(len(data), max_bytes, "bytes")
        return _from_bytes(data, "bytes")
    if isinstance(value, os.PathLike):
        return _from_path(os.fspath(value), policy, max_bytes, base_dir)
    if callable(getattr(value, "read", None)):
        return _from_file_object(value, max_bytes)
    raise MessageError(f"cannot read a medium from {type(value).__name__}")


def _from_bytes(data: bytes, name: str) -> Source:
    return Source(io.BytesIO(data), len(data), name, data[:HEAD_BYTES])


def _from_text(text: str, policy: FetchPolicy, max_bytes: int, base_dir: str | None) -> Source:
    stripped = text.strip()
    if not stripped:
        raise MediaError("the path or URL is an empty string")
    lowered = stripped[:8].lower()
    if lowered.startswith("data:"):
        data, mime = decode_data_url(stripped, max_bytes)
        return _from_bytes(data, f"data URL ({mime})")
    if lowered.startswith(("http:", "https:")):
        return _from_url(stripped, policy, max_bytes)
    if lowered.startswith("file:"):
        return _from_file_url(stripped, policy, max_bytes, base_dir)
    if media_in_base64(stripped):
        return _from_bytes(decode_base64(stripped, max_bytes), "base64")
    scheme = _SCHEME.match(stripped)
    if scheme and not _WINDOWS_PATH.match(stripped):
        raise MediaError(f"{scheme.group(1)}: URLs are not fetched; download the file, or give an http(s) URL")
    if looks_like_base64(stripped) and not _exists(stripped, policy, base_dir):
        kind = sniff(decode_base64(stripped, max_bytes)[:HEAD_BYTES])
        raise MediaError(f"is no existing file, and as base64 it holds {kind.name}, not an image or video")
    return _from_path(text if _exists(text, policy, base_dir) else stripped, policy, max_bytes, base_dir)


def _from_url(url: str, policy: FetchPolicy, max_bytes: int) -> Source:
    from visavis.chat.web import fetch_url, shown_url

    stream = fetch_url(url, policy, max_bytes)
    size = stream.seek(0, os.SEEK_END)
    stream.seek(0)
    return _opened(stream, size, shown_url(url))


def _from_file_url(url: str, policy: FetchPolicy, max_bytes: int, base_dir: str | None) -> Source:
    """file:///path, file://localhost/path, file:/path. Percent-encoding is undone, unless the literal name exists."""
    rest = url[5:]
    if rest.startswith("//"):
        host, slash, path = rest[2:].partition("/")
        if host.lower() not in ("", "localhost", "127.0.0.1"):
            raise MediaError(
                f"{shorten(url)}: names the host {shorten(host)}; write file:///absolute/path, or a plain path"
            )
        rest = slash + path
    decoded = unquote(rest)
    if _WINDOWS_PATH.match(decoded[1:]):  # file:///C:/…
        rest, decoded = rest[1:], decoded[1:]
    path = (
        rest
        if rest != decoded and _exists(rest, policy, base_dir) and not _exists(decoded, policy, base_dir)
        else decoded
    )
    return _from_path(path, policy, max_bytes, base_dir)


def _exists(path: str, policy: FetchPolicy, base_dir: str | None) -> bool:
    """Whether there is such a file where the policy allows looking."""
    try:
        real = _real_path(path, base_dir)
        policy.check_path(real, "")
        return os.path.exists(real)
    except (OSError, ValueError, MediaError):
        return False


def _real_path(path: str | bytes, base_dir: str | None) -> str:
    expanded = os.path.expanduser(os.fsdecode(path))
    return os.path.realpath(os.path.join(base_dir, expanded) if base_dir else expanded)


def _from_path(path: str | bytes, policy: FetchPolicy, max_bytes: int, base_dir: str | None) -> Source:
    name = os.fsdecode(path)
    shown = shorten_path(name)
    try:
        real = _real_path(path, base_dir)
        policy.check_path(real, shown)
        # NONBLOCK: opening a named pipe must not wait for its writer. NOFOLLOW: the last part was resolved already.
        flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
        descriptor = os.open(real, flags)
    except ValueError:
        raise MediaError(f"{shown}: is not a valid path") from None
    except OSError as error:
        folder = _working_folder(base_dir) if policy.allowed_folders is None else None
        raise MediaError(f"{shown}: {_why_unreadable(error, name, folder)}") from None
    try:
        about = _check_opened(descriptor, real, policy, shown)
        _check_size(about.st_size, max_bytes, shown)
    except BaseException:
        os.close(descriptor)
        raise
    name = name if len(name) <= 200 else f"…{os.path.basename(name)[-200:]}"
    return _opened(os.fdopen(descriptor, "rb"), about.st_size, name)


def _working_folder(base_dir: str | None) -> str | None:
    try:
        return base_dir or os.getcwd()
    except FileNotFoundError:  # it was deleted
        return None


def _check_opened(descriptor: int, real: str, policy: FetchPolicy, shown: str) -> os.stat_result:
    about = os.fstat(descriptor)
    if policy.allowed_folders is not None:
        # A folder on the way may have been exchanged for a symlink between the check and the opening.
        try:
            now = os.path.realpath(real)
            policy.check_path(now, shown)
            same = os.path.samestat(os.stat(now), about)
        except OSError:
            same = False
        if not same:
            raise MediaError(f"{shown}: changed while it was being opened")
    if not stat.S_ISREG(about.st_mode):
        raise MediaError(f"{shown}: is {'a folder' if stat.S_ISDIR(about.st_mode) else 'not a regular file'}")
    return about


def _why_unreadable(error: OSError, name: str, folder: str | None) -> str:
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        if _WINDOWS_PATH.match(name) and os.name != "nt":
            return "is a Windows path, and this is not Windows; give the path as it is here"
        relative = not os.path.isabs(os.path.expanduser(name))
        return "no such file" + (f" in {folder}" if relative and folder else "")
    if error.errno == errno.EISDIR:
        return "is a folder"
    if error.errno == errno.ENAMETOOLONG:
        return "is too long for a path, and it is not base64 of an image or video"
    return f"cannot be read ({error.strerror})"


def _from_file_object(value: Any, max_bytes: int) -> Source:
    """Read from where it stands now; the caller's object stays open."""
    data = value.read(max_bytes + 1)
    if not isinstance(data, bytes):
        raise MediaError("the file object gives text; open it in binary mode ('rb')")
    name = getattr(value, "name", None)
    shown = os.path.basename(name) if isinstance(name, str) else "file object"
    _check_size(len(data), max_bytes, shown)
    return _from_bytes(data, shown)


def _opened(stream: IO[bytes], size: int, name: str) -> Source:
    try:
        head = stream.read(HEAD_BYTES)
        stream.seek(0)
    except OSError as error:
        stream.close()
        raise MediaError(f"{shorten(name)}: cannot be read ({error.strerror})") from None
    return Source(stream, size, name, head)


def _check_size(size: int, max_bytes: int, name: str) -> None:
    if size > max_bytes:
        shown = name.strip("'")
        raise MediaError(f"{shown}: is {size:,} bytes or more, over the cap of {max_bytes:,}")
