"""The questions people ask, answered in the plan itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.unit.plan.configs import GIB, card, qwen2_vl_7b, qwen3_vl_235b_fp8, qwen25_1_5b
from visavis.plan import Device, plan
from visavis.plan.speed import NATIVE_FOUR_BIT


def advice(config: dict[str, Any], device: Device, topic: str, **options: Any) -> str:
    return next((a.text for a in plan(config, device, **options).advice if a.topic.startswith(topic)), "")


RTX_4090 = card(23.64, name="NVIDIA GeForce RTX 4090")


def test_document_004s_two_lengths_are_told_apart() -> None:
    text = advice(qwen2_vl_7b(), card(24), "max_model_len and", images=(), prompt_tokens=20000, max_tokens=500)
    assert "max_model_len (20736)" in text  # 20500 rounded up to 256s
    assert "may be smaller than the first" in text
    assert "Neither reserves" in text


def test_the_step_may_be_smaller_than_the_request() -> None:
    result = plan(qwen2_vl_7b(), card(24), images=(), prompt_tokens=30000, max_tokens=500, engines=("vllm",))
    found = result.engine("vllm")
    assert found is not None
    assert found.value("max_num_batched_tokens") < found.value("max_model_len")
    why = next(p.why for p in found.proposals if p.name == "max_num_batched_tokens")
    assert "takes" in why
    assert "steps" in why


def test_two_cards_are_slower_for_the_small_model_of_document_002() -> None:
    text = advice(qwen25_1_5b(), RTX_4090, "tensor_parallel_size=2", ranks=1)
    assert text.startswith("2 cards will be slower")
    # 2.88 GiB / 1.01 TB/s = 3.1 ms; half of it and 57 sums of 60 µs = 4.9 to 5.0 ms
    assert "3.1 ms" in text
    assert "57 sums of 60 µs" in text
    assert "122 tokens/s on two RTX 4090 against 164" in text


def test_two_cards_can_pay_with_a_fast_link_and_a_large_model() -> None:
    text = advice(qwen2_vl_7b(), card(139.8, 2, name="NVIDIA H200"), "tensor_parallel_size=2", ranks=2)
    assert text.startswith("2 cards can be up to")
    assert "NVLink" in text


def test_the_asked_number_of_cards_is_judged() -> None:
    assert advice(qwen25_1_5b(), card(24, 4), "tensor_parallel_size=4", ranks=4) != ""


def test_awq_is_said_to_be_slower_under_load() -> None:
    text = advice(qwen25_1_5b(), RTX_4090, "AWQ", concurrency=200)
    assert "slower than 16-bit" in text
    assert "200 requests at once are in that range" in text
    assert "in that range" not in advice(qwen25_1_5b(), RTX_4090, "AWQ", concurrency=4)


def test_awq_checkpoints_are_judged_too_and_fp8_ones_are_not() -> None:
    config = {**qwen2_vl_7b(), "quantization_config": {"quant_method": "awq", "bits": 4}}
    assert "4-bit" in advice(config, card(24), "AWQ")
    assert advice(qwen3_vl_235b_fp8(), card(141, 2), "AWQ", ranks=2) == ""


def test_the_kernels_that_a_figure_of_4_bits_is_of_are_named() -> None:
    every = advice(qwen25_1_5b(), card(24), "AWQ")
    assert "Marlin" in every
    assert "native's own kernels: 1.56× as fast at 1, 0.97× as fast at 64" in every
    assert "Marlin" not in advice(qwen25_1_5b(), card(24), "AWQ", engines=("native", "hf"))
    assert "native" not in advice(qwen25_1_5b(), card(24), "AWQ", engines=("vllm",))


def test_natives_figures_of_4_bits_are_those_of_the_performance_page() -> None:
    rows = (Path(__file__).parents[3] / "docs/performance.md").read_text("utf-8").splitlines()
    cells = [[cell.strip() for cell in row.split("|")[1:-1]] for row in rows if row.startswith("|")]
    ratios = [float(row[4]) for row in cells if row[1:2] == ["int4"]]
    assert ratios == [ratio for _, ratio in NATIVE_FOUR_BIT]


def test_native_with_few_bits_already_is_told_nothing_of_4_bits() -> None:
    for few in ("int8", "int4"):
        assert advice(qwen2_vl_7b(), card(24), "AWQ", engines=("native",), quantization=few) == ""
    assert advice(qwen2_vl_7b(), card(15.65), "AWQ", engines=("native",)) == ""  # int8 by itself


def test_only_a_quantised_split_or_offloaded_run_fits_16_gib() -> None:
    text = advice(qwen2_vl_7b(), card(15.65), "does not fit", images=[(1080, 1920)])
    assert "bfloat16 weights of 15.44 GiB" in text
    assert "Only a quantised, split or offloaded run fits" in text
    assert "int8 weights (9.37 GiB)" in text
    assert "int4 weights (6.47 GiB, also as AWQ or GPTQ)" in text  # native's, with a byte a zero
    assert "2 such cards" in text
    assert "--cpu-offload-gb" in text
    assert "smaller images" not in text  # the weights alone do not fit


def test_smaller_requests_are_offered_only_where_they_help() -> None:
    images = [(3000, 3000)] * 2
    text = advice(qwen2_vl_7b(), card(19), "does not fit", images=images, engines=("vllm",))
    assert "smaller images" in text


def test_only_what_the_engines_asked_for_can_do_is_offered() -> None:
    text = advice(qwen2_vl_7b(), card(15.65), "does not fit", engines=("native",), dtype="bfloat16")
    assert "int8 weights (9.37 GiB" in text  # which native makes, and fp8 not
    assert "fp8" not in text
    assert "2 such cards" in text
    assert "host memory" not in text
    text = advice(qwen2_vl_7b(), card(2), "does not fit", engines=("native",))
    assert "such cards" not in text  # the embedding, which each has whole, is 1 GiB
    assert "Nothing native can do" in text


def test_on_a_cpu_only_what_is_smaller_there_is_offered() -> None:
    machine = Device("cpu", "CPU", 24 * GIB, 20 * GIB, 1, None, "test", cores=2)
    for quantization in (None, "int4"):
        text = advice(qwen2_vl_7b(), machine, "does not fit", engines=("native",), quantization=quantization)
        assert text.startswith("float32 weights of 30.89 GiB")
        assert "bfloat16 weights (15.44 GiB, --dtype bfloat16)" in text
        assert "int8" not in text  # made of all the weights in float32
        assert "int4" not in text
    text = advice(qwen2_vl_7b(), machine, "does not fit", engines=("native",), quantization="int8")
    assert text.startswith("int8 weights of 9.62 GiB cannot be loaded on CPU: 13.49 GiB are missing")  # 30.89 - 17.4
    assert "int8 weights made of bfloat16 ones" in text
    assert "smaller images" not in text


def test_what_cannot_help_is_not_offered() -> None:
    text = advice(qwen3_vl_235b_fp8(), card(24), "does not fit")
    assert "int4" not in text  # it is quantised already
    assert "16 such cards" in text


def test_the_default_length_that_would_not_start_is_said() -> None:
    text = advice(qwen3_vl_235b_fp8(), card(139.8, 2), "the default length", ranks=2)
    # 94 layers · 2 · 2 heads · 128 · 2 B · 262144 tokens
    assert f"{94 * 2 * 2 * 128 * 2 * 262144 / GIB:.2f} GiB" in text
    assert "would not start" in text
    assert advice(qwen25_1_5b(), card(80), "the default length") == ""


def test_worst_case_images_are_weighed_against_those_that_will_be_sent() -> None:
    text = advice(qwen2_vl_7b(), card(24), "worst-case images", images=[(480, 640)])
    assert "16384 tokens" in text
    assert f"{391} tokens" in text  # 476×644 pixels = 17 · 23 cells
    assert advice(qwen2_vl_7b(), card(24), "worst-case images", images=()) == ""


@pytest.mark.parametrize(
    ("capability", "config", "topic"),
    [
        ((7, 5), qwen25_1_5b(), "bfloat16 on this card"),
        ((8, 0), {**qwen25_1_5b(), "quantization_config": {"quant_method": "fp8"}}, "fp8 on this card"),
    ],
)
def test_cards_without_the_arithmetic_are_named(
    capability: tuple[int, int], config: dict[str, Any], topic: str
) -> None:
    old = Device("cuda", "card", 24 * GIB, 24 * GIB, 1, capability)
    new = Device("cuda", "card", 24 * GIB, 24 * GIB, 1, (9, 0))
    assert f"{capability[0]}.{capability[1]}" in advice(config, old, topic)
    assert advice(config, new, topic) == ""


def test_float16_of_a_bfloat16_model_is_warned_about() -> None:
    assert "NaN" in advice(qwen25_1_5b(), card(24), "float16", dtype="fp16")
    assert advice({**qwen25_1_5b(), "torch_dtype": "float16"}, card(24), "float16") == ""
