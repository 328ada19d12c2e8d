"""visavis: one chat, any engine, face to face."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from visavis.backends.base import ModelInterface
    from visavis.prompt import Prompt

__all__ = ["Completion", "ModelInterface", "Prompt", "SamplingParams", "VisavisError", "__version__", "load", "prepare"]

_LAZY = {
    "Completion": "visavis.completion",
    "Delta": "visavis.completion",
    "Timings": "visavis.completion",
    "Prompt": "visavis.prompt",
    "SamplingParams": "visavis.sampling",
    "ModelInterface": "visavis.backends.base",
    "EngineOptions": "visavis.backends.options",
    "VisavisError": "visavis.errors",
}


def load(model: str | None = None, backend: str | None = None, **options: Any) -> ModelInterface:
    """Loads a model behind an engine.

    `model` is a Hugging Face folder, a hub id, a file that describes a model (`visavis.backends.description`), or None
    for the bundled `tiny-screen`; `backend` a name that `visavis backends` lists (default: what the file says, else
    native); `options` are those of `visavis.EngineOptions` (dtype, device, max_model_len, …) and `python`, an
    interpreter that has the engine. Raises OptionError, ModelError or MissingExtraError.
    """
    from visavis.backends.registry import create

    return create(backend, model, options)


def prepare(messages: Any, model: str | None = None, **options: Any) -> Prompt:
    """What engines get for these messages: ids, pixels, positions; `.for_hf()`, `.for_vllm()` for your own scripts.

    Needs no weights. `options`: `tools`, `policy`, `min_pixels`, `max_pixels`, `add_generation_prompt` and the others
    of `visavis.chat.normalize`. Raises UnknownArgumentError, MessageError, MediaError, ModelError.
    """
    from inspect import signature

    from visavis.chat.messages import normalize
    from visavis.families import load_family

    known = [name for name in signature(normalize).parameters if name != "messages"]
    for name in options:
        if name not in (*known, "add_generation_prompt"):
            raise _unknown("prepare", name, [*known, "add_generation_prompt"])
    return load_family(model).prepare_messages(messages, **options)


def _unknown(call: str, name: str, known: list[str]) -> Exception:
    import difflib

    from visavis.errors import UnknownArgumentError

    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
    return UnknownArgumentError(f"{call} has no argument {name!r}; {hint}")


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        from importlib import import_module

        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'visavis' has no attribute {name!r}")
