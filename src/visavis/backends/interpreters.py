"""Which Python runs an engine: this one, or one where the engine is installed beside another torch.

Precedence: the one named in the call (`--python`) > `$VISAVIS_<ENGINE>_PYTHON` (e.g. VISAVIS_VLLM_PYTHON) > this
interpreter, if the engine is installed in it > the environment that `visavis backends install` made.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata

from visavis.backends.environments import find_environment
from visavis.errors import OptionError, shorten

__all__ = ["Interpreter", "find_interpreter", "installed_version", "variable"]

_PROBE = """\
import sys
from importlib import metadata
for name in sys.argv[1:]:
    try:
        print(metadata.version(name))
        break
    except metadata.PackageNotFoundError:
        pass
"""


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A Python that has the engine. `version` is the engine's."""

    path: str
    version: str

    @property
    def here(self) -> bool:
        """Whether it is the one that runs now."""
        return self.path == sys.executable


def variable(engine: str) -> str:
    """The environment variable that names an engine's interpreter."""
    return f"VISAVIS_{engine.upper()}_PYTHON"


def find_interpreter(engine: str, distributions: Sequence[str], named: str | None = None) -> Interpreter | None:
    """Where `engine` (any one of `distributions`) is installed, or None. `named`: the interpreter that must have it.

    Raises OptionError when the interpreter that was named, here or by the variable, cannot be run or has it not.
    """
    if named is not None:
        return _named(f"--python {engine}={shorten(named, 200)}", named, tuple(distributions))
    if named := os.environ.get(variable(engine)):
        return _named(f"{variable(engine)}={shorten(named, 200)}", named, tuple(distributions))
    for distribution in distributions:
        if version := installed_version(distribution):
            return Interpreter(sys.executable, version)
    environment = find_environment(engine)
    return None if environment is None else Interpreter(str(environment.python), environment.version)


def installed_version(distribution: str) -> str | None:
    """Of a distribution in this interpreter."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _named(said: str, named: str, distributions: tuple[str, ...]) -> Interpreter:
    path = shutil.which(os.path.expanduser(named))
    if path is None:
        raise OptionError(f"{said} is no program that can be run")
    version = _probe(path, distributions)
    if version is None:
        raise OptionError(f"{said} has no {' or '.join(distributions)}; install it there")
    return Interpreter(path, version)


@lru_cache(maxsize=16)
def _probe(path: str, distributions: tuple[str, ...]) -> str | None:
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
    try:
        done = subprocess.run(
            [path, "-c", _PROBE, *distributions], capture_output=True, text=True, timeout=60, env=environment
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise OptionError(f"{path} cannot be asked for its packages: {error}") from None
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise OptionError(f"{path} cannot be asked for its packages: {last}")
    return done.stdout.strip() or None
