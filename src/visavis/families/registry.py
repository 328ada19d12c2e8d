"""Which family a model folder belongs to, by its `model_type`."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from visavis.families.base import Family
from visavis.families.hub import resolve_model

__all__ = ["FAMILIES", "family_class", "load"]

FAMILIES: dict[str, str] = {
    "qwen2_vl": "visavis.families.qwen2_vl:Qwen2VLFamily",
    "qwen2_5_vl": "visavis.families.qwen2_5_vl:Qwen2_5_VLFamily",
    "qwen3_vl": "visavis.families.qwen3_vl:Qwen3VLFamily",
    "qwen3_vl_moe": "visavis.families.qwen3_vl:Qwen3VLFamily",
    "qwen2": "visavis.families.text:Qwen2Family",
    "qwen3": "visavis.families.text:Qwen3Family",
    "llama": "visavis.families.text:LlamaFamily",
}
_GENERIC = "visavis.families.generic:GenericFamily"
_OTHER_TEXT = "visavis.families.text:OtherTextFamily"


def load(model: str | Path | None = None, *, trust_remote_code: bool = False, box_format: str | None = None) -> Family:
    """The family of a folder, a hub id, or (None) the bundled model; weights are not touched.

    `box_format` overrides what the folder declares. Raises ModelError, OptionError or (generic families without
    transformers) MissingExtraError.
    """
    folder = resolve_model(model, code=trust_remote_code)
    multimodal = bool(folder.vision_config) or folder.has("preprocessor_config.json")
    place = FAMILIES.get(folder.model_type, _GENERIC if multimodal else _OTHER_TEXT)
    make = family_class(place)
    if place == _GENERIC:
        return make(folder, box_format=box_format, trust_remote_code=trust_remote_code)
    return make(folder, box_format=box_format)


def family_class(place: str) -> Callable[..., Family]:
    """`module:Class` → the class, imported now."""
    module, name = place.split(":")
    found: Callable[..., Family] = getattr(import_module(module), name)
    return found
