"""config.json in its old and new spellings; what is wrong with one is said by key."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.plan.configs import qwen2_vl_7b, qwen3_vl_235b_fp8, qwen25_1_5b
from visavis.errors import ModelError
from visavis.plan.shape import read_shape


def test_flat_and_nested_layouts_are_the_same_model() -> None:
    flat = qwen2_vl_7b()
    top = ("model_type", "tie_word_embeddings", "vision_config")
    nested = {k: flat[k] for k in top} | {"text_config": {k: v for k, v in flat.items() if k not in top}}
    assert read_shape(nested) == read_shape(flat)


def test_what_published_vision_configs_leave_out_is_filled_in() -> None:
    vision = read_shape(qwen2_vl_7b()).vision
    assert vision is not None
    assert (vision.depth, vision.hidden, vision.heads, vision.intermediate) == (32, 1280, 16, 5120)
    assert (vision.out_hidden, vision.cell, vision.patch_elements) == (3584, 28, 1176)


def test_qwen3_vl_cells_are_32_pixels() -> None:
    vision = read_shape(qwen3_vl_235b_fp8()).vision
    assert vision is not None
    assert (vision.cell, vision.patch_elements, vision.deepstack) == (32, 1536, 3)


@pytest.mark.parametrize("key", ["dtype", "torch_dtype"])
@pytest.mark.parametrize("value", ["float16", "torch.float16"])
def test_dtype_in_every_spelling(key: str, value: str) -> None:
    config = {k: v for k, v in qwen25_1_5b().items() if k != "torch_dtype"} | {key: value}
    assert read_shape(config).dtype == "float16"


def test_dtype_not_said_is_bfloat16() -> None:
    assert read_shape({**qwen25_1_5b(), "torch_dtype": None}).dtype == "bfloat16"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": None}, "model_type is missing"),
        ({"model_type": "mamba"}, "'mamba'.*known: llama"),
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"hidden_size": "1536"}, "hidden_size is '1536'"),
        ({"num_hidden_layers": -1}, "num_hidden_layers is -1"),
        ({"num_hidden_layers": True}, "num_hidden_layers is True"),
        ({"vocab_size": 0}, "vocab_size is 0"),
        ({"quantization_config": "awq"}, "quantization_config is 'awq'"),
    ],
)
def test_broken_configs_are_refused_by_key(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        read_shape({**qwen25_1_5b(), **change})


def test_expert_layers_follow_step_and_exceptions() -> None:
    config = qwen3_vl_235b_fp8()
    config["text_config"] |= {"num_hidden_layers": 6, "decoder_sparse_step": 2, "mlp_only_layers": [3]}
    moe = read_shape(config).text.moe
    assert moe is not None
    assert moe.layers == {1, 5}  # (i + 1) % 2 == 0, without 3


def test_transformers_5_spelling_of_the_experts() -> None:
    config = qwen3_vl_235b_fp8()
    config["text_config"]["num_local_experts"] = config["text_config"].pop("num_experts")
    assert read_shape(config) == read_shape(qwen3_vl_235b_fp8())
