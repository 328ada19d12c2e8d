"""Environments of their own for engines that pin other versions of torch and transformers than ours.

An environment is a virtual environment with a small `visavis-environment.json` beside its `pyvenv.cfg`. The file is
written step by step while it is made, so an interrupted installation goes on where it stopped, and nothing counts as
installed before its last line says so. A step that fails removes the whole folder (downloads stay in pip's cache).
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from visavis.errors import BackendError, OptionError

__all__ = ["Environment", "Recipe", "Step", "build", "data_folder", "environments_folder", "find_environment"]

STATE_FILE = "visavis-environment.json"
TAIL_LINES = 15

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Step:
    """One command run with the environment's own interpreter: `pip` arguments, or a script file."""

    what: str  # for people, e.g. "torch 2.13.0"
    pip: tuple[str, ...] = ()  # e.g. ("install", "torch==2.13.0")
    script: str = ""  # path of a Python file
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Recipe:
    """How an engine's environment is made. Sizes in GB (10^9 bytes), rounded up, as measured."""

    engine: str
    version: str
    variant: str  # "cuda" | "cpu" | "cpu-stub"
    module: str  # what must import in it
    steps: tuple[Step, ...]
    download_gb: float
    disk_gb: float

    @property
    def fingerprint(self) -> str:
        """Changes when any step changes, its script's text included; not with the folder the scripts lie in."""
        parts: list[Any] = [self.engine, self.version, self.variant]
        for step in self.steps:
            parts.append([step.pip, step.arguments, Path(step.script).read_text("utf-8") if step.script else ""])
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Environment:
    """A finished environment."""

    folder: Path
    engine: str
    version: str
    variant: str

    @property
    def python(self) -> Path:
        return _python(self.folder)


def data_folder() -> Path:
    """`$VISAVIS_HOME`, else `$XDG_DATA_HOME/visavis`, else the platform's place for a user's data."""
    if home := os.environ.get("VISAVIS_HOME"):
        return Path(home).expanduser()
    if xdg := os.environ.get("XDG_DATA_HOME"):
        return Path(xdg) / "visavis"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "visavis"
    return Path.home() / ".local" / "share" / "visavis"


def environments_folder() -> Path:
    """`$VISAVIS_ENVIRONMENTS`, else `environments` in the data folder."""
    given = os.environ.get("VISAVIS_ENVIRONMENTS")
    return Path(given).expanduser() if given else data_folder() / "environments"


def find_environment(engine: str, root: Path | None = None) -> Environment | None:
    """The finished environment of `engine`, or None."""
    folder = (root or environments_folder()) / engine
    state = _read_state(folder)
    if not state.get("finished") or not _python(folder).exists():
        return None
    return Environment(folder, state["engine"], state["version"], state["variant"])


def build(
    recipe: Recipe, root: Path | None = None, say: Say = print, verify: Callable[[Path], None] | None = None
) -> Environment:
    """Makes (or finds, or finishes) the environment `root/<engine>`.

    `verify` gets the interpreter and raises when the engine does not work in it; then nothing is kept. Raises
    OptionError when another process is making it or the disk is too small, BackendError with the tail of the log when
    a step fails.
    """
    root = root or environments_folder()
    folder = root / recipe.engine
    root.mkdir(parents=True, exist_ok=True)
    with _Lock(root / f".{recipe.engine}.lock", recipe.engine):
        state = _read_state(folder)
        if state.get("fingerprint") != recipe.fingerprint or not _python(folder).exists():
            if folder.exists():
                shutil.rmtree(folder)
            state = {}
        if state.get("finished"):
            return Environment(folder, recipe.engine, recipe.version, recipe.variant)
        _check_disk(root, recipe)
        try:
            _make(recipe, folder, root / f"{recipe.engine}.log", state, say)
            if verify is not None:
                say(f"{recipe.engine}: checking that it answers")
                verify(_python(folder))
        except KeyboardInterrupt:
            say(f"{recipe.engine}: stopped; the same command goes on from here")
            raise
        except Exception:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        _write_state(folder, {**_read_state(folder), "finished": True})
    return Environment(folder, recipe.engine, recipe.version, recipe.variant)


def remove(engine: str, root: Path | None = None) -> bool:
    """Deletes an environment. False when there was none."""
    folder = (root or environments_folder()) / engine
    if not folder.exists():
        return False
    shutil.rmtree(folder)
    return True


def _make(recipe: Recipe, folder: Path, log: Path, state: dict[str, Any], say: Say) -> None:
    done = int(state.get("steps_done", 0))
    uv = shutil.which("uv")
    if not _python(folder).exists():
        say(f"{recipe.engine}: new environment in {folder}")
        _call([*_maker(uv), str(folder)], log, "making the virtual environment")
    base = {"engine": recipe.engine, "version": recipe.version, "variant": recipe.variant}
    base |= {"fingerprint": recipe.fingerprint}
    for number, step in enumerate(recipe.steps, 1):
        if number <= done:
            continue
        say(f"{recipe.engine}: {number}/{len(recipe.steps)} {step.what}")
        _call(_command(step, folder, uv), log, step.what)
        _write_state(folder, {**base, "steps_done": number, "finished": False})


def _maker(uv: str | None) -> list[str]:
    if uv:
        return [uv, "venv", "--seed", "--quiet", "--python", sys.executable]
    return [sys.executable, "-m", "venv"]


def _command(step: Step, folder: Path, uv: str | None) -> list[str]:
    python = str(_python(folder))
    if step.script:
        return [python, step.script, *step.arguments]
    verb, *rest = step.pip
    if uv:
        return [uv, "pip", verb, "--quiet", "--python", python, *(a for a in rest if a != "-y")]
    quiet = ["--quiet", "--disable-pip-version-check", "--no-input"] if verb == "install" else ["--quiet"]
    return [python, "-m", "pip", verb, *quiet, *rest]


def _call(command: Sequence[str], log: Path, what: str) -> None:
    """Runs one command with its output in `log`. Raises BackendError with the log's tail."""
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")}
    with log.open("ab") as out:
        out.write(f"\n$ {' '.join(command)}\n".encode())
        out.flush()
        start = out.tell()
        try:
            code = subprocess.run(
                command, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=environment
            ).returncode
        except OSError as error:
            raise BackendError(f"{what}: {command[0]} cannot be run: {error}") from None
    if code != 0:
        text = log.read_bytes()[start:].decode("utf-8", "replace")
        tail = "\n".join(text.splitlines()[-TAIL_LINES:])
        raise BackendError(f"{what} failed (exit code {code}); the log is {log}:\n{tail}")


def _check_disk(root: Path, recipe: Recipe) -> None:
    free = shutil.disk_usage(root).free / 1e9
    needed = recipe.disk_gb + recipe.download_gb
    if free < needed:
        raise OptionError(
            f"{recipe.engine} needs {needed:.1f} GB (with the downloads) and {root} has {free:.1f} GB free; "
            "free some, or set VISAVIS_ENVIRONMENTS to a folder on another disk"
        )


def _python(folder: Path) -> Path:
    return folder / "bin" / "python"


def _read_state(folder: Path) -> dict[str, Any]:
    try:
        found = json.loads((folder / STATE_FILE).read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _write_state(folder: Path, state: dict[str, Any]) -> None:
    """Whole or not at all."""
    draft = folder / f"{STATE_FILE}.new"
    draft.write_text(json.dumps(state, indent=1) + "\n", "utf-8")
    draft.replace(folder / STATE_FILE)


class _Lock:
    """One maker of an environment at a time, on this machine."""

    def __init__(self, path: Path, engine: str) -> None:
        self.path = path
        self.engine = engine

    def __enter__(self) -> None:
        import fcntl

        self.file = self.path.open("w")
        try:
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.file.close()
            raise OptionError(f"another process is installing {self.engine} right now; wait for it") from None

    def __exit__(self, *exc: object) -> None:
        self.file.close()
