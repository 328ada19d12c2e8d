"""config.json in old and new layouts, engine settings, and what is refused by name."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from visavis.engine import EngineConfig, ModelConfig
from visavis.engine import config as engine_config
from visavis.engine.model_config import Llama3Scaling, RopeConfig
from visavis.errors import ModelError, OptionError

TEXT: dict[str, Any] = {
    "vocab_size": 1000,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
}
QWEN2 = {**TEXT, "architectures": ["Qwen2ForCausalLM"], "rope_theta": 1e6}
VISION_2 = {"depth": 2, "embed_dim": 32, "hidden_size": 64, "num_heads": 2, "mlp_ratio": 4, "in_chans": 3}
QWEN2_VL = {
    **TEXT,
    "architectures": ["Qwen2VLForConditionalGeneration"],
    "rope_theta": 1e6,
    "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]},
    "vision_config": VISION_2,
}


def test_old_and_new_layouts_of_qwen2_vl_mean_the_same() -> None:
    new = {
        "architectures": ["Qwen2VLForConditionalGeneration"],
        "text_config": {
            **TEXT,
            "layer_types": ["full_attention"] * 2,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [2, 3, 3]},
        },
        "vision_config": {**{k: v for k, v in VISION_2.items() if k != "in_chans"}, "in_channels": 3},
    }
    assert ModelConfig.from_dict(new) == ModelConfig.from_dict(QWEN2_VL)
    assert ModelConfig.from_dict(new).rope == RopeConfig(1e6, None, (2, 3, 3), interleaved=False)


def test_families_differ_in_biases_and_norms() -> None:
    def options(name: str, **more: Any) -> tuple[bool, bool, bool, bool]:
        c = ModelConfig.from_dict({**TEXT, "architectures": [name], "head_dim": 16, **more})
        return c.qkv_bias, c.output_bias, c.mlp_bias, c.qk_norm

    assert options("Qwen2ForCausalLM") == (True, False, False, False)
    assert options("Qwen3ForCausalLM") == (False, False, False, True)
    assert options("Qwen3ForCausalLM", attention_bias=True) == (True, True, False, True)
    assert options("LlamaForCausalLM") == (False, False, False, False)
    assert options("LlamaForCausalLM", attention_bias=True, mlp_bias=True) == (True, True, True, False)


def test_llama3_scaling_is_read() -> None:
    scaling = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    config = {**TEXT, "architectures": ["LlamaForCausalLM"], "rope_theta": 5e5, "rope_scaling": scaling}
    assert ModelConfig.from_dict(config).rope == RopeConfig(5e5, Llama3Scaling(8.0, 1.0, 4.0, 8192))


def test_kv_bytes_of_a_token_match_the_arithmetic() -> None:
    """Qwen2.5-1.5B: 2 · 28 layers · 2 heads · 128 · 2 B = 28672 B."""
    shape = {"num_hidden_layers": 28, "num_attention_heads": 12, "num_key_value_heads": 2, "hidden_size": 1536}
    assert ModelConfig.from_dict({**QWEN2, **shape}).kv_values_per_token * 2 == 28672


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"architectures": ["GPTNeoXForCausalLM"]}, "GPTNeoXForCausalLM"),
        ({"architectures": [], "model_type": "mamba"}, "mamba"),
        ({"quantization_config": {"quant_method": "bitsandbytes"}}, "bitsandbytes"),
        ({"quantization_config": {"quant_method": "awq", "bits": 3}}, "awq of 3 bits"),
        ({"quantization_config": {"quant_method": "awq", "version": "gemv"}}, "awq version .gemv."),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 48}}, "groups of 48"),
        ({"quantization_config": {"quant_method": "gptq", "checkpoint_format": "marlin"}}, "marlin"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding_attention"),
        ({"use_sliding_window": True, "sliding_window": 128, "max_window_layers": 1}, "sliding-window"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "yarn"),
        ({"rope_scaling": {"type": "linear", "factor": 4.0}}, "linear"),
        ({"partial_rotary_factor": 0.5}, "0.5"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"num_key_value_heads": 3}, "3 key-value heads"),
        ({"hidden_size": None}, "qwen2 model"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(change: dict[str, Any], named: str) -> None:
    with pytest.raises(ModelError, match=named):
        ModelConfig.from_dict({**QWEN2, **change})


def test_a_missing_key_is_named() -> None:
    config = {k: v for k, v in QWEN2.items() if k != "intermediate_size"}
    with pytest.raises(ModelError, match="intermediate_size is missing"):
        ModelConfig.from_dict(config)


def test_a_sliding_window_that_no_layer_uses_is_fine() -> None:
    unused = {"use_sliding_window": False, "sliding_window": 128, "max_window_layers": 2}
    ModelConfig.from_dict({**QWEN2, **unused})
    ModelConfig.from_dict({**QWEN2, **unused, "use_sliding_window": True})


def test_mrope_sections_must_fill_half_a_head() -> None:
    with pytest.raises(ModelError, match="mrope_section"):
        ModelConfig.from_dict({**QWEN2_VL, "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 4]}})


# ---- EngineConfig ----------------------------------------------------------------------------------------------------

MODEL = ModelConfig.from_dict(QWEN2)
BLOCK_BYTES = 2 * 2 * 2 * 16 * 4 * 16  # two of each: kinds, layers, heads; 16 values of 4 B; 16 tokens


def test_blocks_come_from_the_byte_budget() -> None:
    settings = EngineConfig(device="cpu", kv_cache_bytes=10 * BLOCK_BYTES + 5).resolve(MODEL)
    assert settings.kv_blocks(MODEL) == 10


def test_no_more_blocks_are_made_than_all_requests_can_fill() -> None:
    settings = EngineConfig(device="cpu", kv_cache_bytes=1 << 26, max_num_seqs=3, max_model_len=100).resolve(MODEL)
    assert settings.kv_blocks(MODEL) == 3 * 7  # ceil(100 / 16)


def test_a_length_that_was_asked_for_must_fit_and_the_error_says_what_does() -> None:
    config = EngineConfig(device="cpu", kv_cache_bytes=10 * BLOCK_BYTES, max_model_len=200)
    with pytest.raises(OptionError, match="set max_model_len to 160 or less"):
        config.resolve(MODEL).kv_blocks(MODEL)


def test_more_memory_than_there_is_is_refused_with_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_config, "available_memory", lambda: 3 << 30)
    for asked, named in (
        ({"kv_cache_bytes": 99999 << 30}, r"^kv_cache_bytes \d+ \(99,999.0 GiB\) is more than the 3.0 GiB of memory"),
        ({"num_blocks": 1 << 20}, r"^num_blocks 1048576 \(8.0 GiB\) is more than"),  # of 8,192 B each
    ):
        with pytest.raises(OptionError, match=named):
            EngineConfig(device="cpu", **asked).resolve(MODEL).kv_blocks(MODEL)


def test_without_a_budget_the_cache_takes_a_share_of_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_config, "available_memory", lambda: 4 * 5 * BLOCK_BYTES)
    assert EngineConfig(device="cpu").resolve(MODEL).kv_blocks(MODEL) == 5  # a quarter


def test_cpu_means_float32_and_a_dtype_can_be_asked_for() -> None:
    model = ModelConfig.from_dict({**QWEN2, "torch_dtype": "bfloat16"})
    assert EngineConfig(device="cpu").resolve(model).dtype == torch.float32
    assert EngineConfig(device="cpu", dtype="bfloat16").resolve(model).dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"max_num_seqs": 9, "max_num_batched_tokens": 8}, "max_num_seqs 9"),
        ({"max_model_len": 5000}, "context of 4096"),
        ({"block_size": 0}, "block_size 0"),
        ({"threads": 0}, "threads 0"),
        ({"num_blocks": 5, "kv_cache_bytes": 5}, "give one of them"),
        ({"dtype": "int3"}, "int3"),
        ({"device": "tpu:x"}, "tpu"),
        ({"device": "meta"}, "meta"),
        ({"kv_cache_bytes": 1}, "room for one block"),
    ],
)
def test_settings_out_of_range_or_at_odds_are_refused(options: dict[str, Any], named: str) -> None:
    with pytest.raises(OptionError, match=named):
        EngineConfig(**{"device": "cpu", **options}).resolve(MODEL).kv_blocks(MODEL)


def test_seats_follow_a_small_token_budget_when_only_that_is_given() -> None:
    settings = EngineConfig(device="cpu", max_num_batched_tokens=7).resolve(MODEL)
    assert settings.max_num_seqs == 7


@pytest.mark.parametrize("value", ["many", 16.5, True, {"a": 1}])
@pytest.mark.parametrize("name", ["block_size", "num_blocks", "max_num_seqs"])
def test_a_size_that_is_no_whole_number_is_an_error_of_one_line(name: str, value: Any) -> None:
    with pytest.raises(OptionError, match=f"^{name} .* whole number"):
        EngineConfig(**{name: value}, device="cpu").resolve(ModelConfig.from_dict(QWEN2))


def test_a_device_number_beyond_the_last_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for name, last in (("cuda:2", "cuda:1"), ("cpu:1", "cpu:0")):
        with pytest.raises(OptionError, match=f"^device {name} .* {last}$"):
            EngineConfig(device=name).resolve(MODEL)
    assert EngineConfig(device="cuda:1").resolve(MODEL).device == torch.device("cuda:1")


def test_a_gpu_keeps_room_for_its_largest_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """10 GiB free after the weights, 95 % of it to share; 256 requests and 16384 tokens a step, float16.

    A token's activations: 2 bytes · (3 · 96 gates, ups and products + 2 · (4 + 2 · 2) heads · 16 + 5 · 64) = 1728;
    logits: 256 · 1000 · (4 + 4 + 2) bytes. A block of 16 tokens: 2 layers · 2 · 2 heads · 16 · 2 bytes · 16 = 4096.
    """
    monkeypatch.setattr(engine_config, "_device", lambda name: torch.device("cuda"))
    monkeypatch.setattr(engine_config, "free_memory", lambda device: 10 << 30)
    model = ModelConfig.from_dict(QWEN2 | {"max_position_embeddings": 1 << 20})
    settings = EngineConfig(dtype="float16").resolve(model)
    assert (settings.max_num_seqs, settings.max_num_batched_tokens) == (256, 16384)
    room = int(0.95 * (10 << 30)) - 16384 * 1728 - 256 * 1000 * 10
    assert settings.kv_blocks(model) == room // 4096


def test_a_share_of_a_gpu_is_all_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """80 GiB, half of it allowed, 10 taken by this process already: 30; and where others have left less, that."""
    gib = 1 << 30
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda index: {0: 0.5}[index])
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 10 * gib)
    for free, expected in ((70, 30), (20, 20)):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device, free=free: (free * gib, 80 * gib))
        assert engine_config.free_memory(torch.device("cuda")) == expected * gib
