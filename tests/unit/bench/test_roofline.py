"""What an engine must read and compute, against dimensions worked out by hand."""

from __future__ import annotations

import pytest

from tests.unit.bench.conftest import Rig, only_row
from visavis.bench.roofline import decode_bytes, describe, prefill_flops

QWEN2_5_1_5B = {
    "model_type": "qwen2",
    "hidden_size": 1536,
    "intermediate_size": 8960,
    "num_hidden_layers": 28,
    "num_attention_heads": 12,
    "num_key_value_heads": 2,
    "vocab_size": 151936,
    "tie_word_embeddings": True,
    "max_position_embeddings": 32768,
    "torch_dtype": "bfloat16",
}
ATTENTION = 1536 * 1536 * 2 + 1536 * 256 * 2  # q and o; k and v with 2 heads of 128
MLP = 3 * 1536 * 8960
HEAD = 151936 * 1536


def test_a_step_reads_the_weights_once_and_the_keys_and_values_of_each_request() -> None:
    shape = describe(QWEN2_5_1_5B)
    weights = 2 * (28 * (ATTENTION + MLP) + HEAD)  # biases and norms are 0.02 %
    assert decode_bytes(shape, "bfloat16", 0, 1) == pytest.approx(weights, rel=1e-3)
    one, four = decode_bytes(shape, "bfloat16", 1000, 1), decode_bytes(shape, "bfloat16", 1000, 4)
    assert one is not None
    assert four is not None
    assert four - one == 3 * 1000 * 28672  # document 002's bytes a token


def test_a_prompt_costs_two_operations_a_weight_and_token() -> None:
    shape = describe(QWEN2_5_1_5B)
    expected = 2 * 1000 * 28 * (ATTENTION + MLP) + 4 * 28 * 1536 * 1000**2 / 2 + 2 * HEAD
    assert prefill_flops(shape, 1000, 0) == pytest.approx(expected, rel=1e-6)


def test_unknown_models_and_dtypes_get_no_figure() -> None:
    assert describe({"model_type": "never_heard_of"}) is None
    assert decode_bytes(None, "bfloat16", 1, 1) is None
    assert decode_bytes(describe(QWEN2_5_1_5B), "unknown", 1, 1) is None


def test_shares_are_of_the_measured_ceiling(rig: Rig) -> None:
    rig.add("a", dtype="bfloat16")
    plan, cells = rig.plan(), rig.cells()
    bench = rig.new(plan, cells)
    bench.model_shape = describe(QWEN2_5_1_5B)
    bench.ceiling = {"read_bytes_per_s": 1e12, "matmul_flops_per_s": {"bfloat16": 1e14}}
    row = only_row(rig.run(plan, cells, bench))
    needed = decode_bytes(bench.model_shape, "bfloat16", 48 + 8, 1)
    assert needed is not None
    assert row.read_bytes_per_s == pytest.approx(needed / 0.02)
    assert row.read_share == pytest.approx(needed / 0.02 / 1e12)
    flops = prefill_flops(bench.model_shape, 48, 0)
    assert flops is not None
    assert row.flops_share == pytest.approx(flops / 0.2 / 1e14)


def test_more_than_the_memory_gives_is_marked_as_what_it_is(rig: Rig) -> None:
    rig.add("a", dtype="bfloat16")
    plan, cells = rig.plan(), rig.cells()
    bench = rig.new(plan, cells)
    bench.model_shape = describe(QWEN2_5_1_5B)
    bench.ceiling = {"read_bytes_per_s": 1e9, "matmul_flops_per_s": {"bfloat16": 1e10}}
    row = only_row(rig.run(plan, cells, bench))
    assert any("weights fit into a cache, or the ceiling" in mark for mark in row.marks)
    assert any("of what torch's product of two matrices gave" in mark for mark in row.marks)
