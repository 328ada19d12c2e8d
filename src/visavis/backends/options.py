"""One vocabulary of engine options, whatever the engine."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

from visavis.errors import OptionError, shorten

__all__ = [
    "OPTION_NAMES",
    "DType",
    "EngineOptions",
    "check_addressed",
    "check_prefix",
    "for_backend",
    "parse_options",
    "refuse_unsupported",
]

DType = Literal["auto", "float32", "bfloat16", "float16"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """None means "the engine's choice, shown in `LoadInfo.settings`". What a backend cannot do it refuses by name."""

    dtype: DType = "auto"  # auto: the checkpoint's on a GPU, float32 on a CPU
    device: str = "auto"  # auto: cuda when there is one, else cpu; "cuda:1", "cpu", "mps"; hf also takes a device_map
    threads: int | None = None  # CPU threads
    max_model_len: int | None = None  # tokens of prompt and answer together
    max_num_seqs: int | None = None  # requests running at once
    max_num_batched_tokens: int | None = None  # tokens per step
    kv_cache_bytes: int | None = None
    gpu_memory_utilization: float | None = None
    tensor_parallel_size: int = 1
    quantization: str | None = None
    limit_per_prompt: dict[str, int] | None = None  # {"image": 4, "video": 1}: most items of a kind in one prompt
    enforce_eager: bool = False
    seed: int = 0
    trust_remote_code: bool = False
    warmup: bool = True  # generate a short answer before `load` returns
    extra: dict[str, Any] = field(default_factory=dict)  # engine-specific, refused when unknown


OPTION_NAMES = tuple(f.name for f in fields(EngineOptions))

_DTYPES: dict[str, DType] = {
    "auto": "auto",
    "float32": "float32",
    "fp32": "float32",
    "float": "float32",
    "bfloat16": "bfloat16",
    "bf16": "bfloat16",
    "float16": "float16",
    "fp16": "float16",
    "half": "float16",
}
MAX_THREADS = 1024
_FROM_ONE = (
    "threads",
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
    "kv_cache_bytes",
    "tensor_parallel_size",
)


def parse_options(given: Mapping[str, Any], *, where: str = "options") -> EngineOptions:
    """From outside data. Raises OptionError for unknown names (with the nearest known one) and unusable values."""
    known = [f.name for f in fields(EngineOptions)]
    values: dict[str, Any] = {}
    for name, value in given.items():
        if name not in known:
            near = difflib.get_close_matches(str(name), known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}; an engine's own go into extra"
            raise OptionError(f"{where}: unknown engine option {shorten(name)}; {hint}")
        if value is not None:
            try:
                values[name] = _parse(name, value)
            except ValueError as error:  # its text is one of ours and never holds the value
                raise OptionError(f"{where}: {name} {shorten(value)} is not valid: {error}") from None
    return EngineOptions(**values)


def _parse(name: str, value: Any) -> Any:
    if name == "dtype":
        spelled = str(value).removeprefix("torch.").lower()
        if spelled not in _DTYPES:
            raise ValueError("auto, float32, bfloat16 or float16 is needed")
        return _DTYPES[spelled]
    if name in _FROM_ONE:
        number = _whole(value, 1)
        if name == "threads" and number > MAX_THREADS:  # OpenMP ends the process when it cannot start them
            raise ValueError(f"{MAX_THREADS} or fewer is needed")
        return number
    if name == "seed":
        return _whole(value, 0)
    if name == "gpu_memory_utilization":
        try:
            part = -1.0 if isinstance(value, bool) else float(value)
        except (TypeError, ValueError):
            part = -1.0
        if not 0 < part <= 1:
            raise ValueError("a part of the GPU's memory is needed, above 0 and up to 1")
        return part
    if name in ("enforce_eager", "trust_remote_code", "warmup"):
        if not isinstance(value, bool):
            raise ValueError("true or false is needed")
        return value
    if name == "limit_per_prompt":
        return _limits(value)
    if name == "extra":
        if not isinstance(value, Mapping):
            raise ValueError("a mapping of the engine's own options is needed")
        return dict(value)
    if not isinstance(value, str) and not (name == "device" and hasattr(value, "type")):  # a torch.device has one
        raise ValueError("text is needed")
    return str(value)


KINDS = ("image", "video")


def _limits(value: Any) -> dict[str, int]:
    """A mapping, or text as people write it: `image=4,video=1`."""
    if isinstance(value, str):
        pairs = [part.partition("=") for part in value.split(",")]
        value = {kind.strip(): number.strip() for kind, _, number in pairs}
    if not isinstance(value, Mapping) or not value:
        raise ValueError("kinds and numbers are needed, e.g. image=4,video=1")
    limits = {}
    for kind, number in value.items():
        name = str(kind).lower().removesuffix("s")
        if name not in KINDS:
            raise ValueError("the kinds are image and video, e.g. image=4,video=1")
        limits[name] = _whole(number, 0)
    return limits


def _whole(value: Any, least: int) -> int:
    try:
        exact = not isinstance(value, bool) and int(value) == (value if isinstance(value, int) else float(value))
        if exact and int(value) >= least:
            return int(value)
    except (TypeError, ValueError, OverflowError):
        pass
    raise ValueError(f"a whole number from {least} on is needed")


def for_backend(options: EngineOptions, backend: str, known: Collection[str]) -> EngineOptions:
    """The options of one engine: entries of `extra` written `backend.name` count for that backend only.

    `vllm.max_num_seqs=8` sets one of the common options for vllm alone. Entries for the other `known` backends are
    left out. Raises OptionError for a prefix that names no backend, and for values as `parse_options` does.
    """
    own: dict[str, Any] = {}
    common: dict[str, Any] = {}
    names = {f.name for f in fields(EngineOptions)} - {"extra"}
    for key, value in options.extra.items():
        prefix, dot, name = str(key).partition(".")
        if not dot:
            own.setdefault(key, value)
            continue
        check_prefix(str(key), known)
        if prefix == backend:
            if name.replace("-", "_") in names:
                common[name.replace("-", "_")] = value
            else:
                own[name] = value
    chosen = replace(options, extra=own)
    if not common:
        return chosen
    asked = parse_options(common, where=backend)
    return replace(chosen, **{name: getattr(asked, name) for name in common})


def check_prefix(key: str, known: Collection[str], where: str = "") -> None:
    """Raises OptionError for `backend.name` whose backend is none of the `known` ones; `where` begins the text."""
    prefix, _, name = key.partition(".")
    if prefix not in known:
        near = difflib.get_close_matches(prefix, sorted(known), n=1)
        hint = f"; did you mean {near[0]}.{name}?" if near else f"; known: {', '.join(known)}"
        raise OptionError(f"{where}{shorten(key)} names no backend{hint}")


def check_addressed(options: EngineOptions, backends: Collection[str]) -> None:
    """Raises OptionError for an entry of `extra` written `backend.name` whose backend is none of those used."""
    for key in options.extra:
        prefix, dot, _ = str(key).partition(".")
        if dot and prefix not in backends:
            used = ", ".join(backends)
            raise OptionError(f"{shorten(key)} is for backend {shorten(prefix)}, and only {used} is used here")


_OURS = ("extra", "warmup", "limit_per_prompt")  # done before the engine, whichever it is


def refuse_unsupported(engine: str, options: EngineOptions, supported: Collection[str]) -> None:
    """Raises OptionError for an option that was set and that `engine` would have to ignore."""
    for f in fields(EngineOptions):
        if f.name not in supported and f.name not in _OURS and getattr(options, f.name) != f.default:
            raise OptionError(
                f"{engine} has no {f.name}: {shorten(getattr(options, f.name))} cannot be honoured; leave it out or "
                "use another backend"
            )
