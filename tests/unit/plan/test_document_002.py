"""Document 002's log of vLLM 0.7.3, reproduced: from its own printed numbers, and from the config alone.

the current vLLM instance can use total_gpu_memory (23.64GiB) x gpu_memory_utilization (0.90) = 21.28GiB
model weights take 2.89GiB; non_torch_memory takes 0.08GiB; PyTorch activation peak memory takes 2.02GiB; the rest
of the memory reserved for KV Cache is 16.29GiB.
# cuda blocks: 38129, # CPU blocks: 9362
Maximum concurrency for 32768 tokens per request: 18.62x
"""

from __future__ import annotations

import pytest

from tests.unit.plan.configs import GIB, qwen25_1_5b
from visavis.plan.fit import vllm_kv_bytes
from visavis.plan.memory import kv_geometry, text_activation_bytes
from visavis.plan.shape import read_shape
from visavis.plan.weights import weight_bytes

BLOCKS = 38129
shape = read_shape(qwen25_1_5b())
kv = kv_geometry(shape.text, dtype="bfloat16")


def test_blocks_from_the_printed_cache_size() -> None:
    assert kv.blocks(16.29 * GIB) == 38127
    assert abs(kv.blocks(16.29 * GIB) - BLOCKS) <= 40


def test_blocks_from_the_printed_parts() -> None:
    left = vllm_kv_bytes(23.64 * GIB, 0.90, weights=2.8875 * GIB, other=0.08 * GIB, activations=2.02 * GIB)
    assert kv.blocks(left) == 38124
    assert abs(kv.blocks(left) - BLOCKS) <= 40


def test_blocks_from_the_config_the_card_and_nothing_else_of_the_log() -> None:
    weights = sum(weight_bytes(shape, dtype="bfloat16").values())
    activations = text_activation_bytes(shape.text, 32768, dtype="bfloat16")  # vLLM 0.7.3 profiled a whole context
    left = vllm_kv_bytes(23.64 * GIB, 0.90, weights=weights, other=0.08 * GIB, activations=activations)
    assert abs(kv.blocks(left) - BLOCKS) <= 40


def test_the_profiled_activation_peak() -> None:
    predicted = text_activation_bytes(shape.text, 32768, dtype="bfloat16")
    assert predicted / GIB == pytest.approx(2.02, abs=0.02)


def test_cpu_blocks_from_four_gib_of_swap_exactly() -> None:
    assert kv.blocks(4 * GIB) == 9362


def test_concurrency_at_full_length_exactly() -> None:
    assert f"{kv.concurrency(BLOCKS, 32768):.2f}" == "18.62"
