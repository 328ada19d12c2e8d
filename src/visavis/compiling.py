"""Builds C++ with the machine's compiler and keeps the libraries in the user's cache folder."""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

__all__ = ["COMPILERS", "BuildError", "CompiledLibrary", "find_compiler"]

COMPILERS = ("c++", "g++", "clang++")
FLAGS = ("-O3", "-std=gnu++20", "-fPIC", "-shared", "-w")
TIMEOUT_S = 120


class BuildError(Exception):
    """A library cannot be had here; the text says why. Never fatal: something slower does the work instead."""


@dataclass(frozen=True, slots=True)
class CompiledLibrary:
    """`source` includes the headers beside it. `stem`: of the library's file; `what`: its name in errors."""

    source: Path
    stem: str
    what: str
    flags: tuple[str, ...] = ()

    def path(self) -> Path:
        """Where this source, compiler and processor keep their library. Raises BuildError without a compiler."""
        compiler, version = find_compiler()
        key = hashlib.blake2b(digest_size=10)
        for source in (self.source, *sorted(self.source.parent.glob("*.h"))):
            key.update(source.read_bytes())
        for part in (" ".join(compiler), version, " ".join(self._flags()), _processor()):
            key.update(part.encode())
        return self._cache_folder() / f"{self.stem}-{key.hexdigest()}.so"

    def find(self) -> Path:
        """The built library, made now if it is not there yet (some seconds, once a machine). Raises BuildError."""
        path = self.path()
        if not path.exists():
            self._build(path, find_compiler()[0])
        return path

    def _build(self, path: Path, compiler: Sequence[str]) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=path.parent) as folder:
                made = Path(folder) / "made.so"
                command = [*compiler, *self._flags(), str(self.source), "-o", str(made)]
                done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
                if done.returncode != 0:
                    words = (done.stderr.strip().splitlines() or ["no message"])[0]
                    raise BuildError(f"{shlex.join(compiler)} could not build {self.what}: {words[:200]}")
                os.replace(made, path)  # whole or not at all, also when two processes build at once
        except (OSError, subprocess.TimeoutExpired) as error:
            raise BuildError(
                f"{self.what} could not be built in {path.parent}: {error}; "
                "XDG_CACHE_HOME may name another folder for caches"
            ) from None

    def _flags(self) -> tuple[str, ...]:
        native = "-mcpu=native" if platform.machine() in ("arm64", "aarch64") else "-march=native"
        return (native, *FLAGS, *self.flags)

    def _cache_folder(self) -> Path:
        base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
        try:
            return Path(base).expanduser() / "visavis" / "kernels"
        except RuntimeError:  # a user without a home, as in many containers
            raise BuildError(f"there is no home folder to keep {self.what} in; set HOME or XDG_CACHE_HOME") from None


@cache
def find_compiler() -> tuple[tuple[str, ...], str]:
    """The command of the C++ compiler and what it says of itself. CXX may hold arguments too: "ccache g++"."""
    if os.environ.get("VISAVIS_CPU_KERNELS", "").lower() in ("0", "off", "no"):
        raise BuildError("switched off by VISAVIS_CPU_KERNELS")
    asked = os.environ.get("CXX")
    try:
        commands = [shlex.split(asked)] if asked else [[name] for name in COMPILERS]
    except ValueError as error:
        raise BuildError(f"CXX={asked} cannot be read: {error}") from None
    for command in commands:
        found = shutil.which(command[0]) if command else None
        if found:
            words = (found, *command[1:])
            try:
                out = subprocess.run([*words, "--version"], capture_output=True, text=True, timeout=20, check=True)
            except (OSError, subprocess.SubprocessError):
                continue
            return words, out.stdout.splitlines()[0] if out.stdout else ""
    raise BuildError(f"no C++ compiler ({asked or ', '.join(COMPILERS)}); on Debian and Ubuntu: apt-get install g++")


def _processor() -> str:
    """What -march=native depends on: a cache folder may be shared by machines of several kinds."""
    try:
        with open("/proc/cpuinfo") as lines:
            return next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())
    except OSError:
        return platform.platform() + platform.processor()
