"""`Setup`: one engine with the settings it is asked with, those for it alone included. Imports no torch."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from importlib import import_module
from typing import Any

from visavis.backends.options import EngineOptions, parse_options
from visavis.chat.types import PixelLimits
from visavis.errors import OptionError, shorten
from visavis.sampling import SamplingParams

__all__ = ["ENGINE", "NAMES", "PIXELS", "SAMPLING", "Setup", "make_setup", "options_of", "own_options_of"]

SAMPLING = frozenset(f.name for f in fields(SamplingParams)) - {"n", "logprobs", "prompt_logprobs"}
PIXELS = ("min_pixels", "max_pixels", "resized_height", "resized_width")
ENGINE = frozenset(f.name for f in fields(EngineOptions)) - {"extra", "warmup", "seed", "trust_remote_code"}
"""Options that every engine has or refuses by name; `engine_seed` is the engine's own seed beside sampling's."""
ASKING = ("system", "generation_config")
SPELLINGS = {
    "max_new_tokens": "max_tokens",
    "max_completion_tokens": "max_tokens",
    "stop_strings": "stop",
    "torch_dtype": "dtype",
    "do_sample": "temperature",
    "skip_special_tokens": "special_tokens",
}
"""What people's scripts call them."""
NAMES = frozenset({*SAMPLING, *PIXELS, *ENGINE, *ASKING, *SPELLINGS, "engine_seed"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """How one engine is asked. `name` is what the result calls it: the backend's, or a label."""

    name: str
    backend: str
    sampling: SamplingParams = field(default_factory=SamplingParams)  # what holds for all, and its own over it
    pixels: PixelLimits | None = None  # of its own
    system: str | None = None  # a system prompt of its own
    generation_config: bool = False  # takes what is not said from the model folder's file
    engine: Mapping[str, Any] = field(default_factory=dict)  # engine options of its own
    own: Mapping[str, Any] = field(default_factory=dict)  # what was said for it alone, as it was spelled

    @property
    def said(self) -> frozenset[str]:
        """Names of the sampling options that were said for it alone."""
        return frozenset(SPELLINGS.get(name, name) for name in self.own) & SAMPLING


def make_setup(
    name: str,
    backend: str,
    own: Mapping[str, Any],
    common: SamplingParams,
    *,
    generation_config: bool = False,
    where: str = "",
) -> Setup:
    """A setup of what holds for all (`common`) and what is said for it alone (`own`).

    Raises OptionError for an unknown name, with the nearest known one, and for unusable values.
    """
    where = where or f"settings of {name}"
    sampling: dict[str, Any] = {}
    pixels: dict[str, int] = {}
    engine: dict[str, Any] = {}
    asking: dict[str, Any] = {"generation_config": generation_config}
    extras = own_options_of(backend)
    for given, value in own.items():
        known = SPELLINGS.get(given, given)
        if value is None:
            continue
        if given == "skip_special_tokens":
            sampling["special_tokens"] = _policy(value, where)
        elif given == "do_sample" or known in SAMPLING:
            sampling[given] = value
        elif known in PIXELS:
            pixels[known] = _product(value, f"{where}: {given}")
        elif known in ENGINE or known == "engine_seed":
            engine[known] = value
        elif known in ASKING:
            asking[known] = _asking(known, value, where)
        else:
            _check_own(given, backend, extras, where)
            engine[given] = value
    parsed = SamplingParams.from_mapping(sampling, where=where)
    options_of(EngineOptions(), engine, where)  # checks the values
    asked = {**common.asked(), **parsed.asked()}
    return Setup(
        name=name,
        backend=backend,
        sampling=SamplingParams(**asked),
        pixels=PixelLimits(**pixels) if pixels else None,
        engine=engine,
        own=dict(own),
        **asking,
    )


def options_of(base: EngineOptions, engine: Mapping[str, Any], where: str = "settings") -> EngineOptions:
    """`base` with the engine options of one setup. Raises OptionError."""
    common = {("seed" if k == "engine_seed" else k): v for k, v in engine.items() if k in ENGINE or k == "engine_seed"}
    asked = parse_options(common, where=where)
    extra = {**base.extra, **{k: v for k, v in engine.items() if k not in ENGINE and k != "engine_seed"}}
    return replace(base, **{name: getattr(asked, name) for name in common}, extra=extra)


def own_options_of(backend: str) -> frozenset[str] | None:
    """An engine's own options beside the common ones; None where only the installed engine knows."""
    if backend == "fake":
        from visavis.backends.fake import FakeScript

        return frozenset(f.name for f in fields(FakeScript))
    try:
        known: Collection[str] | None = getattr(import_module(f"visavis.backends.{backend}"), "EXTRA", None)
    except ImportError:
        return None
    return None if known is None else frozenset(known)


def _check_own(name: str, backend: str, extras: frozenset[str] | None, where: str) -> None:
    if extras is not None and name in extras:
        return
    # An engine that knows its options only where it is installed refuses unknown ones itself; a slip is seen here.
    cutoff = 0.6 if extras is not None else 0.85
    near = difflib.get_close_matches(name, sorted({*NAMES, *(extras or ())}), n=1, cutoff=cutoff)
    if near or extras is not None:
        hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(sorted({*NAMES, *(extras or ())}))}"
        raise OptionError(f"{where}: unknown setting {shorten(name)}; {hint}")


def _policy(value: Any, where: str) -> str:
    if not isinstance(value, bool):
        raise OptionError(f"{where}: skip_special_tokens {shorten(value)} is not valid: true or false is needed")
    return "none" if value else "all"


def _asking(name: str, value: Any, where: str) -> Any:
    kind, needed = (bool, "true or false") if name == "generation_config" else (str, "text")
    if not isinstance(value, kind):
        raise OptionError(f"{where}: {name} {shorten(value)} is not valid: {needed} is needed")
    return value


def _product(value: Any, where: str) -> int:
    """A number of pixels, or a product as people write it: `1280*28*28`."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
        return value
    if isinstance(value, str) and re.fullmatch(r"\s*\d{1,12}(\s*[*x×]\s*\d{1,12})*\s*", value):
        number = 1
        for factor in re.findall(r"\d+", value):
            number *= int(factor)
        if number >= 1:
            return number
    raise OptionError(f"{where} {shorten(value)}: a whole number or a product of such is needed, e.g. 1280*28*28")
