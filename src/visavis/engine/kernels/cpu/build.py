"""Builds the CPU kernels with the machine's C++ compiler and keeps the library in the user's cache folder.

`python -m visavis.engine.kernels.cpu.build` builds ahead of the first start and says where the library is.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

__all__ = ["BuildError", "find_library", "library_path"]

FOLDER = Path(__file__).parent
SOURCE = FOLDER / "kernels.cpp"  # includes the headers beside it
COMPILERS = ("c++", "g++", "clang++")
# No -ffast-math: it regroups the sums of fused multiply-adds into more instructions than they save.
FLAGS = ("-O3", "-std=gnu++20", "-fPIC", "-shared", "-pthread", "-fno-math-errno", "-ffp-contract=fast", "-w")
TIMEOUT_S = 120


class BuildError(Exception):
    """The kernels cannot be had here; the text says why. Never fatal: torch does the work instead."""


def library_path() -> Path:
    """Where this source, compiler and processor keep their library. Raises BuildError without a compiler."""
    compiler, version = _compiler()
    key = hashlib.blake2b(digest_size=10)
    for source in (SOURCE, *sorted(FOLDER.glob("*.h"))):
        key.update(source.read_bytes())
    for part in (" ".join(compiler), version, " ".join(_flags()), _processor()):
        key.update(part.encode())
    return _cache_folder() / f"kernels-{key.hexdigest()}.so"


def find_library() -> Path:
    """The built library, made now if it is not there yet (some seconds, once a machine). Raises BuildError."""
    path = library_path()
    if path.exists():
        return path
    compiler, _ = _compiler()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            made = Path(folder) / "made.so"
            done = subprocess.run(
                [*compiler, *_flags(), str(SOURCE), "-o", str(made)], capture_output=True, text=True, timeout=TIMEOUT_S
            )
            if done.returncode != 0:
                words = (done.stderr.strip().splitlines() or ["no message"])[0]
                raise BuildError(f"{shlex.join(compiler)} could not build the CPU kernels: {words[:200]}")
            os.replace(made, path)  # whole or not at all, also when two processes build at once
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(
            f"the CPU kernels could not be built in {path.parent}: {error}; "
            "XDG_CACHE_HOME may name another folder for caches"
        ) from None
    return path


@cache
def _compiler() -> tuple[tuple[str, ...], str]:
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


def _flags() -> tuple[str, ...]:
    native = "-mcpu=native" if platform.machine() in ("arm64", "aarch64") else "-march=native"
    return (native, *FLAGS)


def _processor() -> str:
    """What -march=native depends on: a cache folder may be shared by machines of several kinds."""
    try:
        with open("/proc/cpuinfo") as lines:
            return next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())
    except OSError:
        return platform.platform() + platform.processor()


def _cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    try:
        return Path(base).expanduser() / "visavis" / "kernels"
    except RuntimeError:  # a user without a home, as in many containers
        raise BuildError("there is no home folder to keep the CPU kernels in; set HOME or XDG_CACHE_HOME") from None


def main() -> int:
    try:
        print(f"CPU kernels of the native engine: {find_library()}")
    except BuildError as error:
        print(f"not built: {error}; the native engine runs on torch alone, slower", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
