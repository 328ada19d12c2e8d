"""The compiled library: found at once, or built by a thread for the next time."""

from __future__ import annotations

import ctypes
import threading
from contextlib import suppress
from ctypes import c_int, c_int64, c_void_p
from functools import cache
from pathlib import Path

from visavis.compiling import BuildError, CompiledLibrary

__all__ = ["build", "found"]

LIBRARY = CompiledLibrary(Path(__file__).parent / "pixels.cpp", "pixels", "the picture kernels")
SIGNATURES = {
    "pack": [c_void_p, c_int64, c_void_p],
    "resize_rows": [c_void_p, c_int, c_int, c_void_p, c_int, c_void_p, c_void_p, c_int],
    "resize_columns": [c_void_p, c_int, c_int, c_void_p, c_int, c_int, c_void_p, c_void_p, c_int],
    "patches": [c_void_p, *[c_int] * 7, c_void_p, c_void_p],
}

_lock = threading.Lock()
_builder: threading.Thread | None = None


def found() -> ctypes.CDLL | None:
    """The library, or None where it cannot be had, or not yet."""
    try:
        if not _path().exists():
            _build_aside()
            return None
        return _load(_path())
    except BuildError:
        return None


def build() -> ctypes.CDLL:
    """The library, built now if need be. Raises BuildError."""
    return _load(LIBRARY.find())


def _build_aside() -> None:
    global _builder
    with _lock:
        if _builder is None:  # one try a process
            # No daemon: the process stays until the compiler is done, a second or two, rather than leave its pieces.
            _builder = threading.Thread(target=_try_to_build, name="visavis-build")
            _builder.start()


def _try_to_build() -> None:
    with suppress(BuildError):  # then Pillow and torch do the work
        LIBRARY.find()


@cache
def _path() -> Path:
    return LIBRARY.path()


@cache
def _load(path: Path) -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(str(path))
        for name, arguments in SIGNATURES.items():
            function = getattr(library, f"visavis_{name}")
            function.restype, function.argtypes = None, arguments
    except (OSError, AttributeError) as error:
        raise BuildError(f"{path} cannot be loaded: {error}; remove it to have it built anew") from None
    return library
