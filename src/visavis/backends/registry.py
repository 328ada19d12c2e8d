"""Backends by name. Each is one module, imported only when it is used."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module, metadata
from typing import TYPE_CHECKING, Any

from visavis.errors import MissingExtraError, OptionError, shorten

if TYPE_CHECKING:
    from visavis.backends.base import ModelInterface

__all__ = ["NAMES", "Availability", "availability", "create", "new"]


@dataclass(frozen=True, slots=True)
class _Backend:
    module: str | None  # None: not in this version
    class_name: str
    package: str  # the distribution whose version is the engine's
    needs: tuple[str, ...]  # distributions without which it cannot run
    extra: str | None = None  # the visavis extra that brings them
    hidden: bool = False


_BACKENDS = {
    "native": _Backend(
        "visavis.backends.native", "NativeModel", "visavis", ("torch", "numpy", "safetensors", "tokenizers")
    ),
    "hf": _Backend(
        "visavis.backends.hf", "HuggingFaceModel", "transformers", ("torch", "transformers", "accelerate"), "hf"
    ),
    "vllm": _Backend(None, "VLLMModel", "vllm", ("vllm",)),
    "sglang": _Backend(None, "SGLangModel", "sglang", ("sglang",)),
    "openai": _Backend(None, "OpenAIModel", "visavis", ()),
    "fake": _Backend("visavis.backends.fake", "FakeModel", "visavis", (), hidden=True),
}

NAMES = tuple(name for name, backend in _BACKENDS.items() if not backend.hidden)
"""Names for people; `fake` is for tests."""


@dataclass(frozen=True, slots=True)
class Availability:
    """Whether a backend can run here, and what would make it."""

    name: str
    can_run: bool
    version: str | None  # of the engine, where it is installed
    interpreter: str  # the Python it would run in
    missing: str = ""  # what is missing, in words
    fix: str = ""  # the command that adds it


def create(backend: str, model: str | None = None, options: Mapping[str, Any] | None = None) -> ModelInterface:
    """A loaded model. `options` are those of `EngineOptions`.

    Raises OptionError for unknown names and values, ModelError for the folder, MissingExtraError.
    """
    from visavis.backends.options import parse_options

    instance = new(backend)
    return instance.load(model, parse_options(options or {}, where=backend))


def new(backend: str) -> ModelInterface:
    """A model that is not loaded yet. Raises OptionError for a backend this version does not have."""
    entry = _entry(backend)
    if entry.module is None:
        here = ", ".join(name for name in NAMES if _BACKENDS[name].module)
        raise OptionError(f"backend {backend} is not in this version of visavis; it has: {here}")
    missing = [package for package in entry.needs if _version(package) is None]
    if missing:
        if entry.extra:
            raise MissingExtraError(f"backend {backend} ({', '.join(missing)})", entry.extra)
        raise OptionError(f"backend {backend} needs {', '.join(missing)}: pip install {' '.join(missing)}")
    model: ModelInterface = getattr(import_module(entry.module), entry.class_name)()
    return model


def availability() -> list[Availability]:
    """Every backend for people, in order of preference. Imports no engine."""
    return [_availability(name) for name in NAMES]


def _availability(name: str) -> Availability:
    entry = _BACKENDS[name]
    version = _version(entry.package)
    if entry.module is None:
        return Availability(name, False, version, sys.executable, "not in this version of visavis")
    missing = [package for package in entry.needs if _version(package) is None]
    if not missing:
        return Availability(name, True, version, sys.executable)
    fix = f"pip install 'visavis[{entry.extra}]'" if entry.extra else f"pip install {' '.join(missing)}"
    return Availability(name, False, version, sys.executable, f"{', '.join(missing)} not installed", fix)


def _entry(backend: str) -> _Backend:
    if backend not in _BACKENDS:
        near = difflib.get_close_matches(str(backend).lower(), list(NAMES), n=1)
        aliases = {"transformers": "hf", "huggingface": "hf", "hugging face": "hf", "visavis": "native"}
        guess = aliases.get(str(backend).lower()) or (near[0] if near else None)
        hint = f"did you mean {guess}?" if guess else f"known: {', '.join(NAMES)}"
        raise OptionError(f"unknown backend {shorten(backend)}; {hint}")
    return _BACKENDS[backend]


def _version(package: str) -> str | None:
    if package == "visavis":
        from visavis import __version__

        return __version__
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
