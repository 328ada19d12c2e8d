"""Model folders in old and new layouts, and errors that name the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from visavis.errors import ModelError
from visavis.families.folder import ModelFolder


def write(folder: Path, **files: Any) -> ModelFolder:
    """`config_json={…}` writes config.json; strings are written as they are."""
    for name, content in files.items():
        file = name[::-1].replace("_", ".", 1)[::-1]
        text = content if isinstance(content, str) else json.dumps(content)
        (folder / file).write_text(text, encoding="utf-8")
    return ModelFolder(folder, "some/model")


def test_flat_and_nested_configs_read_alike(tmp_path: Path) -> None:
    flat = {
        "model_type": "qwen2_vl",
        "hidden_size": 64,
        "max_position_embeddings": 32768,
        "rope_theta": 1e6,
        "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]},
        "torch_dtype": "bfloat16",
        "vision_config": {"depth": 2},
    }
    nested = {
        "model_type": "qwen2_vl",
        "dtype": "bfloat16",
        "text_config": {
            "hidden_size": 64,
            "max_position_embeddings": 32768,
            "rope_parameters": {"rope_type": "mrope", "rope_theta": 1e6, "mrope_section": [2, 3, 3]},
        },
        "vision_config": {"depth": 2},
    }
    (tmp_path / "old").mkdir()
    (tmp_path / "new").mkdir()
    old, new = write(tmp_path / "old", config_json=flat), write(tmp_path / "new", config_json=nested)
    for folder in (old, new):
        assert folder.text_config["hidden_size"] == 64
        assert folder.vision_config == {"depth": 2}
        assert folder.max_model_len == 32768
        assert folder.dtype == "bfloat16"
        assert folder.rope == {"rope_type": "mrope", "rope_theta": 1e6, "mrope_section": [2, 3, 3]}


def test_the_architecture_stands_in_for_a_missing_model_type(tmp_path: Path) -> None:
    folder = write(tmp_path, config_json={"architectures": ["Qwen2VLForConditionalGeneration"]})
    assert folder.model_type == "qwen2_vl"


def test_yarn_reaches_further_than_max_position_embeddings(tmp_path: Path) -> None:
    rope = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    config = {"model_type": "qwen2", "max_position_embeddings": 32768, "rope_scaling": rope}
    assert write(tmp_path, config_json=config).max_model_len == 131072


@pytest.mark.parametrize(
    ("rope", "message"),
    [
        ("yarn", "rope_scaling 'yarn' is no object"),
        ([4.0], r"rope_scaling \[4\.0\] is no object"),
        ({"type": "yarn", "factor": "4"}, "'4' in rope_scaling is no size"),
        ({"type": "yarn", "factor": 4, "original_max_position_embeddings": [1]}, r"\[1\] in rope_scaling is no size"),
        ({"type": "linear", "factor": float("inf")}, "inf in rope_scaling is no size"),
    ],
)
def test_rope_scaling_that_cannot_be_meant_is_named(tmp_path: Path, rope: Any, message: str) -> None:
    config = {"model_type": "qwen2", "max_position_embeddings": 32768, "rope_scaling": rope}
    with pytest.raises(ModelError, match=rf"config\.json .*{message}"):
        write(tmp_path, config_json=config).max_model_len  # noqa: B018


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, r"some/model: config\.json is missing in "),
        ({"config_json": "{"}, r"config\.json .* is not valid JSON"),
        ({"config_json": "[1, 2]"}, r"config\.json .* not an object"),
        ({"config_json": "[" * 100_000}, r"config\.json .* is not valid JSON: maximum recursion"),
        ({"config_json": '{"model_type": ' + "9" * 5000 + "}"}, r"config\.json .* is not valid JSON: .*digits\)[^;]*$"),
        ({"config_json": {"architectures": 5}}, "architectures 5 is no list of names"),
        ({"config_json": {"hidden_size": 1}}, r"config\.json .* has no model_type"),
    ],
)
def test_missing_and_broken_files_are_named(tmp_path: Path, files: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        write(tmp_path, **files).model_type  # noqa: B018
    assert str(tmp_path) in str(caught.value)


def test_processor_settings_are_found_in_all_three_places(tmp_path: Path) -> None:
    alone = write(tmp_path, preprocessor_config_json={"min_pixels": 1})
    assert alone.preprocessor_config == {"min_pixels": 1}
    assert alone.video_preprocessor_config == {"min_pixels": 1}
    both = write(tmp_path, video_preprocessor_config_json={"min_pixels": 2})
    assert both.video_preprocessor_config == {"min_pixels": 2}
    parts = {"image_processor": {"min_pixels": 3}, "video_processor": {"min_pixels": 4}}
    nested = write(tmp_path, processor_config_json=parts)
    assert (nested.preprocessor_config, nested.video_preprocessor_config) == ({"min_pixels": 3}, {"min_pixels": 4})


def test_chat_templates_are_found_in_order_of_precedence(tmp_path: Path) -> None:
    folder = write(tmp_path, tokenizer_config_json={"chat_template": "from tokenizer_config"})
    assert folder.chat_templates == {"default": "from tokenizer_config"}
    folder = write(tmp_path, chat_template_json={"chat_template": "from json"})
    assert folder.chat_templates == {"default": "from json"}
    (tmp_path / "chat_template.jinja").write_text("from jinja", encoding="utf-8")
    assert ModelFolder(tmp_path, "x").chat_templates == {"default": "from jinja"}


def test_named_templates_keep_their_names(tmp_path: Path) -> None:
    named = [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]
    folder = write(tmp_path, tokenizer_config_json={"chat_template": named})
    assert folder.chat_templates == {"default": "a", "tool_use": "b"}


def test_a_folder_without_template_says_where_it_looked(tmp_path: Path) -> None:
    folder = write(tmp_path, tokenizer_config_json={})
    with pytest.raises(ModelError, match=r"no chat template.*chat_template\.jinja.*tokenizer_config\.json"):
        folder.chat_templates  # noqa: B018


@pytest.mark.parametrize(
    ("generation", "config", "wanted"),
    [
        ({"eos_token_id": [5, 6]}, {"eos_token_id": 7}, (5, 6)),
        ({"eos_token_id": 5}, {}, (5,)),
        ({}, {"text_config": {"eos_token_id": 7}}, (7,)),
        ({}, {}, ()),
    ],
)
def test_eos_comes_from_the_generation_config_first(
    tmp_path: Path, generation: dict[str, Any], config: dict[str, Any], wanted: tuple[int, ...]
) -> None:
    assert write(tmp_path, generation_config_json=generation, config_json=config).eos_token_ids == wanted


@pytest.mark.parametrize("value", ["x", ["x"], [[1]], -1, 1.5, True, {}])
def test_an_eos_that_is_no_id_is_refused_by_its_file(value: Any, tmp_path: Path) -> None:
    folder = write(tmp_path, generation_config_json={"eos_token_id": value}, config_json={"eos_token_id": 7})
    with pytest.raises(ModelError, match=r"generation_config\.json .*eos_token_id .* is no token id"):
        folder.eos_token_ids  # noqa: B018
