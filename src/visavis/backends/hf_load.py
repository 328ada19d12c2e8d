"""A model folder → a transformers model on its device, in its dtype, and what to say about it."""

from __future__ import annotations

import contextlib
import warnings
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import transformers

from visavis.backends.options import EngineOptions
from visavis.errors import BackendError, ModelError, OptionError, shorten

if TYPE_CHECKING:
    from visavis.families import Family

__all__ = ["LoadedModel", "import_classes", "load_model"]

_DEVICE_MAPS = ("balanced", "balanced_low_0", "sequential")


@dataclass(frozen=True, slots=True)
class LoadedModel:
    module: Any
    device: torch.device  # where inputs go
    dtype: str
    vocab_size: int
    static_cache_pays: bool  # where answers are short
    settings: dict[str, Any]
    marks: tuple[str, ...]


def import_classes(family: Family, trust_remote_code: bool) -> None:
    """Imports the model's code, which `from_pretrained` would else do within the time called "load".

    Says nothing when that fails: `load_model` then does, with the reason.
    """
    with contextlib.suppress(Exception):
        config = transformers.AutoConfig.from_pretrained(
            str(family.folder.path), trust_remote_code=trust_remote_code, local_files_only=True
        )
        _auto_class(family)._model_mapping[type(config)]


def _auto_class(family: Family) -> Any:
    with_media = family.supports_images or family.supports_videos
    return transformers.AutoModelForImageTextToText if with_media else transformers.AutoModelForCausalLM


def load_model(family: Family, options: EngineOptions) -> LoadedModel:
    """Raises OptionError, ModelError for a folder transformers cannot read, BackendError when memory runs out."""
    folder = family.folder
    placement = _placement(options)
    device = _main_device(placement)
    dtype, marks = _dtype(options.dtype, folder.dtype, device)
    arguments: dict[str, Any] = {
        "dtype": getattr(torch, dtype),
        "trust_remote_code": options.trust_remote_code,
        "local_files_only": True,
        "device_map": placement,
        "output_loading_info": True,
    }
    if attention := options.extra.get("attn_implementation"):
        arguments["attn_implementation"] = attention
    if memory := options.extra.get("max_memory"):
        arguments["max_memory"] = {int(k) if str(k).isdigit() else k: v for k, v in memory.items()}
    if folder_for_disk := options.extra.get("offload_folder"):
        arguments["offload_folder"] = folder_for_disk
    bars = transformers.utils.logging.is_progress_bar_enabled()
    transformers.utils.logging.disable_progress_bar()  # the phases are told by `progress`
    try:
        module, report = _auto_class(family).from_pretrained(str(folder.path), **arguments)
    except torch.OutOfMemoryError as error:
        raise BackendError(
            f"hf: {folder.name} does not fit on {device} in {dtype}: {error}; "
            "try dtype bfloat16, or extra device_map=auto to offload a part"
        ) from None
    except (OSError, ValueError, KeyError, ImportError, RuntimeError) as error:
        raise ModelError(f"hf: transformers cannot load {folder.name}: {' '.join(str(error).split())[:400]}") from None
    finally:
        if bars:
            transformers.utils.logging.enable_progress_bar()
    missing = sorted(report.get("missing_keys", ()))
    mismatched = sorted(str(key) for key in report.get("mismatched_keys", ()))
    if missing or mismatched:
        what = f"no weights for {missing[0]}" if missing else f"weights of another shape for {shorten(mismatched[0])}"
        more = f" and {len(missing or mismatched) - 1} more" if len(missing or mismatched) > 1 else ""
        raise ModelError(f"hf: {folder.name} has {what}{more}; transformers would fill them with random numbers")
    module.eval()
    module.generation_config = transformers.GenerationConfig()  # the folder's file decides nothing by itself
    offloaded, where = _offload(getattr(module, "hf_device_map", None), device)
    # On a GPU a static cache would have the model compiled first. The attribute is what transformers itself asks.
    static = device.type == "cpu" and not offloaded and bool(getattr(module, "_can_compile_fullgraph", False))
    settings = {
        "attn_implementation": getattr(module.config, "_attn_implementation", None),
        "cache_implementation": options.extra.get("cache_implementation")
        or ("static for short answers, else dynamic" if static else "dynamic"),
        "class": type(module).__name__,
        "device_map": where or str(device),
    }
    return LoadedModel(
        module=module,
        device=module.get_input_embeddings().weight.device if not offloaded else device,
        dtype=dtype,
        vocab_size=module.get_output_embeddings().weight.shape[0],
        static_cache_pays=static,
        settings=settings,
        marks=marks + offloaded,
    )


def _placement(options: EngineOptions) -> Any:
    """What transformers calls `device_map`."""
    asked = options.extra.get("device_map")
    if asked is not None:
        if options.device != "auto":
            raise OptionError(f"hf: device {options.device} and device_map {shorten(asked)} exclude each other")
        return asked
    if options.device in _DEVICE_MAPS:
        return options.device
    try:
        device = torch.device(_best_device() if options.device == "auto" else options.device)
    except RuntimeError:
        raise OptionError(
            f"hf: unknown device {shorten(options.device)}; "
            f"known: auto, cpu, cuda, cuda:1, mps, {', '.join(_DEVICE_MAPS)}"
        ) from None
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise OptionError(f"hf: device {options.device}: this machine has {torch.cuda.device_count()} CUDA devices")
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise OptionError("hf: device mps is not available on this machine")
    return {"": device}


def _best_device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def _main_device(placement: Any) -> torch.device:
    if isinstance(placement, Mapping):
        if set(placement) == {""}:
            return torch.device(placement[""])
        if all(str(place) in ("cpu", "disk") for place in placement.values()):
            return torch.device("cpu")
    return torch.device(_best_device())


def _dtype(asked: str, checkpoint: str | None, device: torch.device) -> tuple[str, tuple[str, ...]]:
    """The dtype to run in, and what makes that worth a mark."""
    if asked == "auto":
        if device.type == "cpu":
            return "float32", ()
        if checkpoint not in ("float32", "bfloat16", "float16"):
            return "bfloat16", ()
        return checkpoint, ()
    if asked == "float16" and checkpoint == "bfloat16":
        text = "float16 for a bfloat16 checkpoint: its activations may overflow to infinity and NaN"
        warnings.warn(f"hf: {text}; use bfloat16 or float32 unless the card has neither", stacklevel=2)
        return asked, (text,)
    return asked, ()


def _offload(device_map: Mapping[str, Any] | None, main: torch.device) -> tuple[tuple[str, ...], dict[str, str] | None]:
    """Marks for parts that do not live on the main kind of device, and the map for people."""
    if not device_map or set(device_map) == {""}:
        return (), None
    places = {name: str(place) for name, place in device_map.items()}
    away = Counter(p for p in places.values() if p == "disk" or (p == "cpu" and main.type != "cpu"))
    if not away:
        return (), places
    parts = ", ".join(f"{count} to {place}" for place, count in sorted(away.items()))
    return (f"offloaded: {parts} of {len(places)} modules",), places
