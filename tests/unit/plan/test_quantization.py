"""Bytes of quantised weights, by the shapes that the formats store."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.plan.configs import GIB, qwen2_vl_7b, qwen3_vl_235b_fp8, qwen25_1_5b
from visavis.errors import ModelError, OptionError
from visavis.plan.quantization import by_name, from_config
from visavis.plan.shape import read_shape
from visavis.plan.weights import weight_bytes


def read(**config: Any) -> Any:
    return from_config(config)


def test_awq_4_bit_in_groups_of_128() -> None:
    out, inputs = 512, 1024
    # int32 qweight (in, out/8), fp16 scales (in/128, out), int32 qzeros (in/128, out/8)
    stored = inputs * out // 8 * 4 + inputs // 128 * out * 2 + inputs // 128 * (out // 8) * 4
    assert read(quant_method="awq", bits=4, group_size=128).linear_bytes(out, inputs) == stored


def test_gptq_adds_the_group_of_each_input() -> None:
    out, inputs = 512, 1024
    stored = inputs * out // 8 * 4 + inputs // 128 * out * 2 + inputs // 128 * (out // 8) * 4 + inputs * 4
    assert read(quant_method="gptq", bits=4, group_size=128).linear_bytes(out, inputs) == stored
    whole_rows = read(quant_method="gptq", bits=8, group_size=-1).linear_bytes(out, inputs)
    assert whole_rows == inputs * out + out * 2 + out + inputs * 4


def test_fp8_blocks_have_a_scale_each() -> None:
    scheme = read(quant_method="fp8", weight_block_size=[128, 128])
    assert scheme.linear_bytes(1000, 300) == 1000 * 300 + 8 * 3 * 4  # ⌈1000/128⌉ · ⌈300/128⌉ float32 scales
    assert read(quant_method="fp8").linear_bytes(64, 64) == 64 * 64 + 4


def test_compressed_tensors_of_every_strategy() -> None:
    def weights(**w: Any) -> Any:
        return read(quant_method="compressed-tensors", config_groups={"group_0": {"weights": w}}, ignore=["lm_head"])

    assert weights(num_bits=8, type="float", strategy="channel").linear_bytes(64, 32) == 64 * 32 + 64 * 4
    assert weights(num_bits=4, type="int", strategy="group", group_size=16).linear_bytes(64, 32) == 1024 + 64 * 2 * 2
    nvfp4 = weights(num_bits=4, type="float", strategy="tensor_group", group_size=16)
    assert nvfp4.linear_bytes(64, 32) == 1024 + 64 * 2 * 1
    blocks = weights(num_bits=8, type="float", strategy="block", block_structure=[32, 16])
    assert blocks.linear_bytes(64, 32) == 2048 + 2 * 2 * 4


def test_bitsandbytes_with_and_without_double_quantisation() -> None:
    plain = read(quant_method="bitsandbytes", load_in_4bit=True)
    double = read(quant_method="bitsandbytes", load_in_4bit=True, bnb_4bit_use_double_quant=True)
    assert plain.linear_bytes(64, 64) == 2048 + 64 * 4
    assert double.linear_bytes(64, 64) == 2048 + 64 * (1 + 4 / 256)
    assert read(quant_method="bitsandbytes", load_in_8bit=True).linear_bytes(8, 64) == 512 + 8 * 4


def test_load_time_formats() -> None:
    int8, int4 = by_name("int8"), by_name("4bit")
    assert int8 is not None
    assert int4 is not None
    assert int8.linear_bytes(10, 256) == 2560 + 10 * 2
    assert int4.linear_bytes(10, 256) == 1280 + 10 * 2 * 2.5
    assert by_name("none") is None


@pytest.mark.parametrize(("name", "hint"), [("int88", "int8"), ("awk", "awq"), ("fp9", "fp8"), ("zzz", "known")])
def test_unknown_names_get_the_nearest(name: str, hint: str) -> None:
    with pytest.raises(OptionError, match=hint):
        by_name(name)


def test_unknown_methods_are_refused_by_name_with_a_way_out() -> None:
    with pytest.raises(ModelError, match=r"quip.*--quantization"):
        read(quant_method="quip")
    with pytest.raises(ModelError, match="config_groups"):
        read(quant_method="compressed-tensors")


@pytest.mark.parametrize(
    ("pattern", "module", "kept"),
    [
        ("visual", "visual.blocks.0.attn.qkv", True),
        ("model.visual.blocks.1.attn.qkv", "visual.blocks.1.attn.qkv", True),
        ("model.visual.blocks.1.attn.qkv", "visual.blocks.11.attn.qkv", False),
        ("mlp.gate", "layers.3.mlp.gate", True),
        ("mlp.gate", "layers.3.mlp.gate_proj", False),
        ("model.language_model.layers.3.mlp", "layers.3.mlp.up_proj", True),
        ("re:.*self_attn.*", "layers.3.self_attn.q_proj", True),
        ("re:^model.layers.2\\..*", "layers.2.mlp.up_proj", True),
        ("re:(", "layers.2.mlp.up_proj", False),
    ],
)
def test_modules_left_alone_are_recognised(pattern: str, module: str, kept: bool) -> None:
    assert read(quant_method="fp8", modules_to_not_convert=[pattern]).keeps(module) is kept


def test_embedding_norms_vision_and_head_stay_in_awq_checkpoints() -> None:
    config = {**qwen2_vl_7b(), "quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128}}
    shape = read_shape(config)
    wide = weight_bytes(shape, dtype="bfloat16")
    narrow = weight_bytes(shape, dtype="bfloat16", quantization=shape.quantization)
    for part in ("embedding", "norms", "vision tower", "merger", "lm_head"):
        assert narrow[part] == wide[part]
    # 4 bits + (16 + 4)/128 against 16
    assert narrow["mlp"] / wide["mlp"] == pytest.approx((4 + 20 / 128) / 16)


def test_single_layers_left_in_16_bits_are_counted() -> None:
    base = qwen25_1_5b()
    config = {"quant_method": "awq", "modules_to_not_convert": ["model.layers.5.mlp"]}
    whole = read_shape({**base, "quantization_config": {"quant_method": "awq"}})
    part = read_shape({**base, "quantization_config": config})
    more = (
        weight_bytes(part, dtype="bfloat16", quantization=part.quantization)["mlp"]
        - weight_bytes(whole, dtype="bfloat16", quantization=whole.quantization)["mlp"]
    )
    assert more == pytest.approx(3 * 1536 * 8960 * (2 - (0.5 + 2.5 / 128)))


def test_235b_fp8_weights() -> None:
    shape = read_shape(qwen3_vl_235b_fp8())
    found = weight_bytes(shape, dtype="bfloat16", quantization=shape.quantization)
    experts = 94 * 128 * 3 * 4096 * 1536
    scales = 94 * 128 * 3 * 32 * 12 * 4  # blocks of 128: 4096/128 · 1536/128
    routers = 94 * 128 * 4096 * 2
    assert found["experts"] == experts + scales + routers
    assert found["lm_head"] == 151936 * 4096 * 2  # left in bfloat16
    total = sum(found.values())
    # Parameters in fp8 take a byte, those left in bfloat16 (vocabulary twice, vision, routers, norms) two.
    assert 219 < total / GIB < 224
