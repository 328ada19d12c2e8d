"""`ModelFolder`: the small files of a Hugging Face model folder, old and new layouts read alike."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from visavis.errors import ModelError, shorten
from visavis.weight_files import instead_of_data

__all__ = ["ModelFolder"]

_MODEL_TYPES = {
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "LlamaForCausalLM": "llama",
    "Qwen2VLForConditionalGeneration": "qwen2_vl",
    "Qwen2_5_VLForConditionalGeneration": "qwen2_5_vl",
    "Qwen3VLForConditionalGeneration": "qwen3_vl",
}


@dataclass(frozen=True, eq=False)
class ModelFolder:
    """One model folder. Files are read when first asked for; a missing or broken one raises ModelError naming it.

    `name` is what people called it (hub id, path, `tiny-screen`); `repo_id` is set for folders of the hub's cache,
    whose weights may not be there yet (see `visavis.families.hub.fetch_weights`).
    """

    path: Path
    name: str
    repo_id: str | None = None

    # ---- reading ---------------------------------------------------------------------------------------------------

    def has(self, file: str) -> bool:
        return (self.path / file).is_file()

    def read_json(self, file: str, *, optional: bool = False) -> dict[str, Any]:
        """The file as a dict; {} when it is absent and `optional`. Raises ModelError."""
        try:
            text = (self.path / file).read_text(encoding="utf-8")
        except FileNotFoundError:
            if optional:
                return {}
            raise ModelError(f"{self.name}: {file} is missing in {self.path}") from None
        except (OSError, UnicodeDecodeError) as error:
            raise ModelError(f"{self.name}: {file} in {self.path} cannot be read: {error}") from None
        try:
            content = json.loads(text)
        except (ValueError, RecursionError) as error:  # numbers of thousands of digits and deep nesting are no better
            reason = str(error).split(";")[0]
            reason = instead_of_data(self.path / file) or reason
            raise ModelError(f"{self.name}: {file} in {self.path} is not valid JSON: {reason}") from None
        if not isinstance(content, dict):
            raise ModelError(f"{self.name}: {file} in {self.path} holds {shorten(content)}, not an object")
        return content

    @cached_property
    def config(self) -> dict[str, Any]:
        """`config.json` as it is."""
        return self.read_json("config.json")

    @cached_property
    def generation_config(self) -> dict[str, Any]:
        """`generation_config.json`, or {}."""
        return self.read_json("generation_config.json", optional=True)

    @cached_property
    def tokenizer_config(self) -> dict[str, Any]:
        """`tokenizer_config.json`, or {}."""
        return self.read_json("tokenizer_config.json", optional=True)

    @cached_property
    def _processor_config(self) -> dict[str, Any]:
        return self.read_json("processor_config.json", optional=True)

    @cached_property
    def preprocessor_config(self) -> dict[str, Any]:
        """The image processor's settings: `preprocessor_config.json`, else the part of `processor_config.json`
        where newer transformers put them, else {}."""
        return self._part("preprocessor_config.json", "image_processor")

    @cached_property
    def video_preprocessor_config(self) -> dict[str, Any]:
        """The video processor's settings: its own file or part, else the image processor's, as transformers does."""
        return self._part("video_preprocessor_config.json", "video_processor") or self.preprocessor_config

    def _part(self, file: str, key: str) -> dict[str, Any]:
        # transformers reads the nested part first when both are there
        nested = self._processor_config.get(key)
        if isinstance(nested, dict):
            return nested
        return self.read_json(file, optional=True)

    @cached_property
    def visavis_config(self) -> dict[str, Any]:
        """`visavis.json`: what the folder's owner declares to visavis, e.g. {"box_format": "qwen2_vl"}; or {}."""
        return self.read_json("visavis.json", optional=True)

    # ---- config.json in one shape ----------------------------------------------------------------------------------

    @property
    def model_type(self) -> str:
        """`model_type` of config.json, else the one its architecture stands for. Raises ModelError."""
        value = self.config.get("model_type")
        if isinstance(value, str):
            return value
        for architecture in self.architectures:
            if architecture in _MODEL_TYPES:
                return _MODEL_TYPES[architecture]
        raise ModelError(f"{self.name}: config.json in {self.path} has no model_type and no known architecture")

    @property
    def architectures(self) -> tuple[str, ...]:
        value = self.config.get("architectures") or ()
        if not isinstance(value, list | tuple) or not all(isinstance(name, str) for name in value):
            raise ModelError(
                f"{self.name}: config.json in {self.path}: architectures {shorten(value)} is no list of names"
            )
        return tuple(value)

    @cached_property
    def text_config(self) -> dict[str, Any]:
        """The language model's part: `text_config` where there is one, over the flat values of old layouts."""
        flat = {k: v for k, v in self.config.items() if k not in ("text_config", "vision_config")}
        nested = self.config.get("text_config")
        return {**flat, **nested} if isinstance(nested, Mapping) else flat

    @cached_property
    def vision_config(self) -> dict[str, Any]:
        """The vision tower's part, or {}."""
        part = self.config.get("vision_config")
        return dict(part) if isinstance(part, Mapping) else {}

    @cached_property
    def rope(self) -> dict[str, Any]:
        """`rope_parameters` (new) or `rope_scaling` and `rope_theta` (old) as one dict with `rope_type`."""
        text = self.text_config
        given = text.get("rope_parameters") or text.get("rope_scaling") or {}
        if not isinstance(given, Mapping):
            raise ModelError(f"{self.name}: config.json in {self.path}: rope_scaling {shorten(given)} is no object")
        rope = dict(given)
        rope.setdefault("rope_theta", text.get("rope_theta"))
        rope["rope_type"] = rope.get("rope_type") or rope.pop("type", None) or "default"
        return rope

    @property
    def dtype(self) -> str | None:
        """Of the checkpoint, e.g. "bfloat16"; None when the config does not say."""
        for part in (self.config, self.text_config):
            value = part.get("dtype") or part.get("torch_dtype")
            if isinstance(value, str):
                return value.removeprefix("torch.")
        return None

    @property
    def max_model_len(self) -> int:
        """Tokens the model's positions reach, rope extensions (YaRN, linear, dynamic) included."""
        length = self.text_config.get("max_position_embeddings")
        if not isinstance(length, int):
            raise ModelError(f"{self.name}: config.json in {self.path} has no max_position_embeddings")
        factor, base = self.rope.get("factor"), self.rope.get("original_max_position_embeddings") or length
        if not factor:
            return length
        for value in (factor, base):
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e9:
                raise ModelError(
                    f"{self.name}: config.json in {self.path}: {shorten(value)} in rope_scaling is no size"
                )
        if self.rope["rope_type"] == "yarn":
            return max(length, int(base * factor))
        return int(length * factor) if self.rope["rope_type"] in ("linear", "dynamic") else length

    @cached_property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Ids that end an answer: generation_config.json, else config.json, else the tokenizer's eos; () if none."""
        for file, part in (("generation_config.json", self.generation_config), ("config.json", self.text_config)):
            value = part.get("eos_token_id")
            ids = value if isinstance(value, list) else [] if value is None else [value]
            if not all(type(v) is int and v >= 0 for v in ids):
                raise ModelError(
                    f"{self.name}: {file} in {self.path}: eos_token_id {shorten(value)} is no token id or list of them"
                )
            if ids:
                return tuple(ids)
        return ()

    # ---- chat template ---------------------------------------------------------------------------------------------

    @cached_property
    def chat_templates(self) -> dict[str, str]:
        """Name → template. From `chat_template.jinja`, `chat_template.json` or `tokenizer_config.json`, in this order.

        Raises ModelError when there is none.
        """
        found = self._all_templates
        if not found:
            raise ModelError(
                f"{self.name}: no chat template in {self.path} (looked in chat_template.jinja, chat_template.json and "
                "tokenizer_config.json); it may be a base model: use its chat version, or add a chat_template.jinja"
            )
        return found

    @property
    def template_sources(self) -> tuple[str, ...]:
        """The texts of all chat templates; () when there is none."""
        return tuple(self._all_templates.values())

    @cached_property
    def _all_templates(self) -> dict[str, str]:
        found = self._find_templates()
        for file in sorted((self.path / "additional_chat_templates").glob("*.jinja")):
            found.setdefault(file.stem, self._read_text(file))
        return found

    def _find_templates(self) -> dict[str, str]:
        jinja = self.path / "chat_template.jinja"
        if jinja.is_file():
            return {"default": self._read_text(jinja)}
        for file in ("chat_template.json", "processor_config.json", "tokenizer_config.json"):
            value = self.read_json(file, optional=True).get("chat_template")
            if isinstance(value, str):
                return {"default": value}
            if isinstance(value, Mapping):
                return {str(k): str(v) for k, v in value.items()}
            if isinstance(value, list):
                try:
                    return {str(item["name"]): str(item["template"]) for item in value}
                except (TypeError, KeyError):
                    raise ModelError(f"{self.name}: chat_template in {file} is a list without names") from None
        return {}

    def _read_text(self, file: Path) -> str:
        try:
            return file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ModelError(f"{self.name}: {file.name} in {self.path} cannot be read: {error}") from None
