"""Our options and sampling in the engines' words. No engine is imported."""

from __future__ import annotations

from typing import Any

import pytest

from visavis.backends import sglang_options, vllm_options
from visavis.backends.options import EngineOptions, for_backend
from visavis.backends.prompt_check import describe_mismatch
from visavis.errors import OptionError
from visavis.sampling import ResolvedSampling, StructuredOutput

NAMES = ("native", "hf", "vllm", "sglang", "openai")
VLLM_KNOWN = {"model", "dtype", "seed", "enable_prefix_caching", "limit_mm_per_prompt", "max_num_seqs", "block_size"}
SGLANG_KNOWN = {"model_path", "disable_radix_cache", "max_total_tokens", "attention_backend"}


def _sampling(**values: Any) -> ResolvedSampling:
    return ResolvedSampling(**{"max_tokens": 5, "eos_token_ids": (7, 8), **values})


def test_vllm_is_told_every_value_and_only_our_ends_count() -> None:
    told = vllm_options.sampling_arguments(_sampling(stop_token_ids=(3,), stop=("END",)))
    assert told["stop_token_ids"] == [7, 8, 3]
    assert (told["ignore_eos"], told["detokenize"], told["skip_special_tokens"]) == (True, False, False)
    assert (told["stop"], told["seed"], told["temperature"], told["repetition_penalty"]) == ([], None, 0.0, 1.0)
    assert vllm_options.sampling_arguments(_sampling(ignore_eos=True, stop_token_ids=(3,)))["stop_token_ids"] == [3]
    assert vllm_options.sampling_arguments(_sampling(temperature=1.0, seed=9))["seed"] == 9


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"temperature": 0.005}, r"temperature 0\.005: it raises values under 0\.01"),
        ({"ignore_eos": True, "min_tokens": 2}, "min_tokens 2"),
    ],
)
def test_what_vllm_would_change_is_refused(values: dict[str, Any], named: str) -> None:
    with pytest.raises(OptionError, match=f"vllm cannot honour {named}"):
        vllm_options.sampling_arguments(_sampling(**values))


def test_sglang_stops_by_itself_only_where_its_ends_are_ours() -> None:
    same = sglang_options.sampling_arguments(_sampling(), engine_ends={7})
    assert (same["ignore_eos"], same["stop_token_ids"]) == (False, [7, 8])
    other = sglang_options.sampling_arguments(_sampling(), engine_ends={7, 99})
    assert (other["ignore_eos"], other["stop_token_ids"]) == (True, [])
    assert same["top_k"] == -1
    assert same["no_stop_trim"] is True


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"temperature": 1.0, "top_k": 3, "top_p": 0.5}, "top_k and top_p together"),
        ({"logprobs": 2, "presence_penalty": 0.5}, "logprobs 2"),
        ({"logprobs": 2, "logit_bias": ((1, 2.0),)}, "logprobs 2"),
    ],
)
def test_what_sglang_would_do_differently_is_refused(values: dict[str, Any], named: str) -> None:
    with pytest.raises(OptionError, match=named):
        sglang_options.sampling_arguments(_sampling(**values), engine_ends={7})


def test_min_tokens_is_refused_where_sglang_bans_ends_of_its_own() -> None:
    with pytest.raises(OptionError, match="min_tokens 2"):
        sglang_options.sampling_arguments(_sampling(min_tokens=2), engine_ends={99})


@pytest.mark.parametrize(
    ("structured", "vllm", "sglang"),
    [
        (StructuredOutput("json_schema", "{}"), {"json": "{}"}, {"json_schema": "{}"}),
        (StructuredOutput("regex", "a+"), {"regex": "a+"}, {"regex": "a+"}),
        (StructuredOutput("choice", ("a|b", "c")), {"choice": ["a|b", "c"]}, {"regex": r"(a\|b|c)"}),
    ],
)
def test_structured_output_in_each_engines_words(
    structured: StructuredOutput, vllm: dict[str, Any], sglang: dict[str, Any]
) -> None:
    assert vllm_options.structured_arguments(structured) == vllm
    told = sglang_options.sampling_arguments(_sampling(structured=structured), engine_ends=(7,))
    assert {name: told[name] for name in ("json_schema", "regex", "ebnf") if name in told} == sglang
    plain = sglang_options.sampling_arguments(_sampling(), engine_ends=(7,))
    assert not {"json_schema", "regex", "ebnf"} & set(plain)


def test_grammars_are_refused_where_they_are_written_otherwise() -> None:
    asked = _sampling(structured=StructuredOutput("grammar", "start: /a/"))
    with pytest.raises(OptionError, match="vllm cannot honour structured 'grammar'"):
        vllm_options.sampling_arguments(asked)
    with pytest.raises(OptionError, match="sglang cannot honour structured 'grammar'"):
        sglang_options.sampling_arguments(asked, engine_ends=(7,))


def test_blanks_in_json_are_bounded_where_the_engine_can() -> None:
    told = vllm_options.engine_arguments(EngineOptions(), "m", {*VLLM_KNOWN, "structured_outputs_config"}, cpu=True)
    assert told["structured_outputs_config"] == {"backend": "guidance", "disable_any_whitespace": True}
    assert "structured_outputs_config" not in vllm_options.engine_arguments(EngineOptions(), "m", VLLM_KNOWN, cpu=True)
    known = {*SGLANG_KNOWN, "constrained_json_disable_any_whitespace"}
    assert sglang_options.engine_arguments(EngineOptions(), "m", known, cpu=True)[
        "constrained_json_disable_any_whitespace"
    ]


def test_vllm_would_ignore_the_share_of_the_gpu_beside_a_cache_of_given_size() -> None:
    options = EngineOptions(kv_cache_bytes=1 << 30, gpu_memory_utilization=0.5)
    with pytest.raises(OptionError, match="gpu_memory_utilization would be ignored; give one of them"):
        vllm_options.engine_arguments(options, "/m", VLLM_KNOWN, cpu=False)


def test_one_limit_of_images_has_a_name_in_each_engine() -> None:
    options = EngineOptions(limit_per_prompt={"image": 2})
    vllm = vllm_options.engine_arguments(options, "/m", VLLM_KNOWN, cpu=False)
    sglang = sglang_options.engine_arguments(options, "/m", SGLANG_KNOWN, cpu=False)
    assert vllm["limit_mm_per_prompt"] == sglang["limit_mm_data_per_request"] == {"image": 2}
    twice = EngineOptions(limit_per_prompt={"image": 2}, extra={"limit_mm_per_prompt": {"image": 3}})
    with pytest.raises(OptionError, match=r"say the same; give one of them"):
        vllm_options.engine_arguments(twice, "/m", VLLM_KNOWN, cpu=False)


def test_options_get_the_engines_names() -> None:
    options = EngineOptions(max_model_len=9, max_num_batched_tokens=4, quantization="awq", kv_cache_bytes=1000)
    vllm = vllm_options.engine_arguments(options, "/m", VLLM_KNOWN, cpu=False)
    assert (vllm["max_model_len"], vllm["max_num_batched_tokens"], vllm["kv_cache_memory_bytes"]) == (9, 4, 1000)
    assert (vllm["dtype"], vllm["generation_config"], vllm["trust_remote_code"]) == ("auto", "vllm", False)
    options = EngineOptions(
        max_model_len=9, max_num_batched_tokens=4, gpu_memory_utilization=0.5, tensor_parallel_size=2
    )
    sglang = sglang_options.engine_arguments(options, "/m", SGLANG_KNOWN, cpu=False)
    assert (sglang["context_length"], sglang["chunked_prefill_size"]) == (9, 4)
    assert (sglang["mem_fraction_static"], sglang["tp_size"]) == (0.5, 2)


def test_a_cpu_gets_float32_and_a_small_cache_unless_asked_otherwise() -> None:
    told = vllm_options.engine_arguments(EngineOptions(), "/m", VLLM_KNOWN, cpu=True)
    assert (told["dtype"], told["kv_cache_memory_bytes"]) == ("float32", 1 << 30)
    with pytest.raises(OptionError, match=r"gpu_memory_utilization 0\.5: there is no GPU"):
        vllm_options.engine_arguments(EngineOptions(gpu_memory_utilization=0.5), "/m", VLLM_KNOWN, cpu=True)
    with pytest.raises(OptionError, match="this vLLM is a CPU build"):
        vllm_options.engine_arguments(EngineOptions(device="cuda"), "/m", VLLM_KNOWN, cpu=True)
    with pytest.raises(OptionError, match=r"kv_cache_bytes 5: .*sglang\.max_total_tokens"):
        sglang_options.engine_arguments(EngineOptions(kv_cache_bytes=5), "/m", SGLANG_KNOWN, cpu=True)


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ({"enable_prefix_cachin": True}, r"did you mean vllm\.enable_prefix_caching"),
        ({"generation_config": "auto"}, "sampling is decided before the engine"),
        ({"seed": 3}, r"vllm\.seed is not set here: use seed"),
        ({"limit_mm_per_prompt": '{"image": 2'}, "is not JSON"),
    ],
)
def test_engine_options_that_are_wrong_or_ours_are_refused(extra: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        vllm_options.engine_arguments(EngineOptions(extra=extra), "/m", VLLM_KNOWN, cpu=True)


@pytest.mark.parametrize("spelled", ['{"image": 2}', "{“image”: 2}", "image=2", {"image": 2}])
def test_limits_are_read_in_the_ways_people_write_them(spelled: Any) -> None:
    extra = {"limit-mm-per-prompt": spelled}
    told = vllm_options.engine_arguments(EngineOptions(extra=extra), "/m", VLLM_KNOWN, cpu=True)
    assert told["limit_mm_per_prompt"] == {"image": 2}


def test_a_dotted_option_counts_for_its_backend_only() -> None:
    given = EngineOptions(
        max_num_seqs=4,
        extra={"vllm.enable_prefix_caching": False, "vllm.max_num_seqs": 2, "sglang.disable_radix_cache": True},
    )
    vllm, hf = for_backend(given, "vllm", NAMES), for_backend(given, "hf", NAMES)
    assert (vllm.extra, vllm.max_num_seqs) == ({"enable_prefix_caching": False}, 2)
    assert (hf.extra, hf.max_num_seqs) == ({}, 4)
    with pytest.raises(OptionError, match=r"'vlm\.x' names no backend; did you mean vllm\.x"):
        for_backend(EngineOptions(extra={"vlm.x": 1}), "vllm", NAMES)
    with pytest.raises(OptionError, match="vllm: max_num_seqs 'many' is not valid"):
        for_backend(EngineOptions(extra={"vllm.max_num_seqs": "many"}), "vllm", NAMES)


def test_a_mismatch_says_where_and_what() -> None:
    assert describe_mismatch("vllm", (1, 2, 3), [1, 2, 3]) is None
    words = describe_mismatch("vllm", (1, 2, 3), [1, 9, 3, 4])
    assert words == (
        "vllm saw another prompt than was given: 4 tokens instead of 3, first difference at position 1: given 2, seen 9"
    )
    assert "position 2: given 3, seen nothing" in (describe_mismatch("vllm", (1, 2, 3), [1, 2]) or "")


def test_an_option_for_a_backend_that_is_not_used_is_refused() -> None:
    import visavis

    with pytest.raises(OptionError, match=r"'vllm\.block_size' is for backend 'vllm', and only fake is used here"):
        visavis.load(None, "fake", extra={"vllm.block_size": 16})


def test_what_sglang_keeps_of_images_is_a_variable_of_its_own() -> None:
    given = EngineOptions(extra={"mm-embedding-cache-mb": 0, "disable_radix_cache": True})
    assert sglang_options.environment(given, cpu=True)["SGLANG_VLM_CACHE_SIZE_MB"] == "0"
    assert "SGLANG_VLM_CACHE_SIZE_MB" not in sglang_options.environment(EngineOptions(), cpu=True)
    told = sglang_options.engine_arguments(given, "/m", SGLANG_KNOWN, cpu=True)
    assert told["disable_radix_cache"] is True
    assert "mm_embedding_cache_mb" not in told
    for wrong in (-1, "many", True, 1.5):
        with pytest.raises(OptionError, match=r"sglang\.mm_embedding_cache_mb .* give 0 or more"):
            sglang_options.environment(EngineOptions(extra={"mm_embedding_cache_mb": wrong}), cpu=True)
