"""Every parameter is counted: against transformers' own models, built without memory on the meta device."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.plan.configs import GIB, qwen2_vl_7b, qwen3_vl_235b_fp8, qwen25_1_5b
from visavis.plan.quantization import by_name
from visavis.plan.shape import read_shape
from visavis.plan.weights import active_parameters, count_parameters, parameters, step_bytes, weight_bytes

TEXT = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 500,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
VISION = {
    "qwen2_vl": {"depth": 2, "embed_dim": 32, "hidden_size": 64, "num_heads": 4, "mlp_ratio": 3},
    "qwen2_5_vl": {"depth": 2, "hidden_size": 32, "out_hidden_size": 64, "num_heads": 4, "intermediate_size": 50},
    "qwen3_vl": {
        "depth": 3,
        "hidden_size": 32,
        "out_hidden_size": 64,
        "num_heads": 4,
        "intermediate_size": 50,
        "num_position_embeddings": 49,
        "deepstack_visual_indexes": [0, 2],
    },
}
VISION["qwen3_vl_moe"] = VISION["qwen3_vl"]

CASES: list[tuple[str, dict[str, Any]]] = [
    ("llama", {}),
    ("llama", {"attention_bias": True, "mlp_bias": True, "head_dim": 8, "tie_word_embeddings": True}),
    ("mistral", {}),
    ("mixtral", {"num_local_experts": 4}),
    ("qwen2", {}),
    ("qwen2", {"tie_word_embeddings": True}),
    ("qwen2_moe", {**EXPERTS, "shared_expert_intermediate_size": 40, "decoder_sparse_step": 2}),
    ("qwen3", {"attention_bias": True}),
    ("qwen3_moe", {**EXPERTS, "mlp_only_layers": [1]}),
    ("qwen2_vl", {}),
    ("qwen2_vl", {"tie_word_embeddings": True}),
    ("qwen2_5_vl", {}),
    ("qwen3_vl", {"head_dim": 32}),
    ("qwen3_vl_moe", {**EXPERTS, "head_dim": 16}),
]


def build(kind: str, extra: dict[str, Any], folder: Path) -> tuple[Any, dict[str, Any]]:
    """transformers' model of that kind on the meta device, and the config.json it saves."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    text = {**TEXT, **extra}
    if kind in VISION:
        tied = text.pop("tie_word_embeddings", False)
        values = {"text_config": text, "vision_config": VISION[kind], "tie_word_embeddings": tied}
        auto = transformers.AutoModelForImageTextToText
    else:
        values, auto = text, transformers.AutoModelForCausalLM
    config = transformers.AutoConfig.for_model(kind, **values)
    with torch.device("meta"):
        model = auto.from_config(config)
    config.save_pretrained(folder)
    return model, json.loads((folder / "config.json").read_text("utf-8"))


@pytest.mark.parametrize(("kind", "extra"), CASES, ids=[f"{k}-{'-'.join(e) or 'plain'}" for k, e in CASES])
def test_parameters_equal_transformers_exactly(kind: str, extra: dict[str, Any], tmp_path: Path) -> None:
    model, config = build(kind, extra, tmp_path)
    assert count_parameters(read_shape(config)) == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("kind", ["qwen2", "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe"])
def test_parts_equal_transformers_by_module_name(kind: str, tmp_path: Path) -> None:
    extra = {**EXPERTS, "head_dim": 16} if kind.endswith("moe") else {}
    model, config = build(kind, extra, tmp_path)

    def part(name: str) -> str:
        if "visual" in name:
            return "merger" if "merger" in name else "vision tower"
        for piece, found in (("embed_tokens", "embedding"), ("lm_head", "lm_head"), ("norm", "norms")):
            if piece in name:
                return found
        if "self_attn" in name:
            return "attention"
        return "experts" if kind.endswith("moe") else "mlp"

    theirs: dict[str, int] = {}
    for name, p in model.named_parameters():
        theirs[part(name)] = theirs.get(part(name), 0) + p.numel()
    ours = weight_bytes(read_shape(config), dtype="float32")
    assert {name: amount / 4 for name, amount in ours.items()} == theirs


def test_document_002_weights_from_the_config_alone() -> None:
    # tied embedding + 28 layers × (q and o, k and v, their biases, MLP, two norms) + last norm
    by_hand = 151936 * 1536 + 28 * (2 * 1536**2 + 2 * 256 * 1536 + 1536 + 2 * 256 + 3 * 1536 * 8960 + 2 * 1536) + 1536
    shape = read_shape(qwen25_1_5b())
    assert count_parameters(shape) == by_hand == 1_543_714_304
    total = sum(weight_bytes(shape, dtype="bfloat16").values())
    assert round(total / GIB, 4) == 2.8754


def test_os_atlas_weights_in_16_8_and_4_bits() -> None:
    shape = read_shape(qwen2_vl_7b())
    sizes = [
        sum(weight_bytes(shape, dtype="bfloat16", quantization=by_name(name)).values()) / GIB
        for name in (None, "int8", "int4")
    ]
    assert [round(size, 2) for size in sizes] == [15.44, 9.37, 6.45]  # published: 15.44, ≈ 9.4, ≈ 6.5


def test_a_tied_head_takes_nothing_and_is_listed() -> None:
    config = qwen25_1_5b()
    tied = weight_bytes(read_shape(config), dtype="bfloat16")
    untied = weight_bytes(read_shape({**config, "tie_word_embeddings": False}), dtype="bfloat16")
    assert tied["lm_head"] == 0
    assert untied["lm_head"] == 151936 * 1536 * 2 == untied["embedding"]


def test_two_ranks_halve_all_but_norms_and_row_biases() -> None:
    shape = read_shape(qwen2_vl_7b())
    one, two = (weight_bytes(shape, dtype="bfloat16", ranks=n) for n in (1, 2))
    for part in ("embedding", "attention", "mlp", "lm_head"):
        assert two[part] == one[part] / 2
    assert two["norms"] == one["norms"]
    # norms (4·1280), the biases of proj and fc2 (2·1280) stay whole on each rank, in each of 32 blocks
    whole = 32 * 6 * 1280 + 1280 * 1176
    assert two["vision tower"] == (one["vision tower"] - 2 * whole) / 2 + 2 * whole


def test_more_ranks_than_kv_heads_repeat_the_kv_heads() -> None:
    shape = read_shape(qwen25_1_5b())  # 2 KV heads
    kv = 28 * 2 * (256 * 1536 + 256) * 2
    q_and_o = 28 * (2 * 1536 * 1536 + 1536) * 2
    assert weight_bytes(shape, dtype="bfloat16", ranks=4)["attention"] == q_and_o / 4 + kv / 2


def test_235b_has_235_billion_parameters_of_which_22_are_active() -> None:
    shape = read_shape(qwen3_vl_235b_fp8())
    # experts 94·128·3·4096·1536, routers 94·128·4096, attention 94·(2·4096·8192 + 2·512·4096), twice the vocabulary
    text = 94 * (128 * 3 * 4096 * 1536 + 128 * 4096 + 2 * 4096 * 8192 + 2 * 512 * 4096) + 2 * 151936 * 4096
    counted = sum(p.elements for p in parameters(shape) if p.part not in ("vision tower", "merger", "norms"))
    assert counted == text
    assert round(count_parameters(shape) / 1e9, 1) == 235.7  # 235 of text, 0.6 of vision
    assert 22e9 < active_parameters(shape) < 23e9


def test_a_decoding_step_reads_only_the_chosen_experts_and_no_vision() -> None:
    shape = read_shape(qwen3_vl_235b_fp8())
    everything = sum(weight_bytes(shape, dtype="bfloat16").values())
    read = step_bytes(shape, dtype="bfloat16")
    experts = 94 * (8 * 3 * 4096 * 1536 + 8 * 4096) * 2
    attention = 94 * (2 * 4096 * 8192 + 2 * 512 * 4096) * 2
    assert read == pytest.approx(experts + attention + 151936 * 4096 * 2, rel=1e-3)
    assert read < everything / 10
