"""What fits and what is proposed, engine by engine."""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.plan.configs import GIB, card, qwen2_vl_7b, qwen3_vl_235b_fp8, qwen25_1_5b
from visavis.errors import OptionError
from visavis.plan import Device, EnginePlan, Plan, plan
from visavis.plan.document import as_dict, in_one_line
from visavis.plan.types import MemoryPart
from visavis.plan.units import format_bytes

ENGINES = ("native", "hf", "vllm", "sglang")
SCREEN = [(1080, 1920)]


def engine(result: Plan, name: str) -> EnginePlan:
    found = result.engine(name)
    assert found is not None
    return found


def words(launch: str) -> dict[str, str]:
    """Flag → argument of a command line."""
    parts = shlex.split(launch)
    return {a: b for a, b in zip(parts, [*parts[1:], ""], strict=True) if a.startswith("-")}


# ---- the sums -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("config", [qwen25_1_5b(), qwen2_vl_7b()], ids=["text", "vision"])
def test_the_parts_fill_the_device_and_no_more(name: str, config: dict[str, Any]) -> None:
    found = engine(plan(config, card(24), concurrency=16), name)
    assert sum(part.bytes for part in found.parts) == pytest.approx(24 * GIB, rel=1e-6)
    weights = sum(part.bytes for part in found.parts if part.kind == "weights")
    assert weights / GIB == pytest.approx(2.8754 if config["model_type"] == "qwen2" else 15.444, abs=0.001)


def test_vllm_blocks_follow_its_own_sum() -> None:
    found = engine(plan(qwen25_1_5b(), card(23.64), prompt_tokens=1000, max_tokens=500), "vllm")
    amounts = {part.name: part.bytes for part in found.parts}
    budget = 23.64 * GIB * found.value("gpu_memory_utilization")
    left = budget - 2.8754 * GIB - amounts["engine's own"] - amounts["activations"]
    assert found.kv_blocks == pytest.approx(left / 458752, abs=3)
    # what the share leaves alone holds the context, the graphs and the slack
    assert 23.64 * GIB - budget >= amounts["overhead"]


def test_sglang_share_holds_weights_and_cache_alone() -> None:
    found = engine(plan(qwen25_1_5b(), card(24)), "sglang")
    amounts = {part.name: part.bytes for part in found.parts}
    share = found.value("gpu_memory_utilization") * 24 * GIB
    assert amounts["KV cache"] + 2.8754 * GIB == pytest.approx(share, rel=1e-3)
    assert 24 * GIB - share >= amounts["activations"] + amounts["overhead"]


def test_native_takes_what_its_requests_can_use_and_no_more() -> None:
    found = engine(plan(qwen25_1_5b(), card(80), concurrency=4, prompt_tokens=100, max_tokens=60), "native")
    # 160 tokens are 10 blocks; one more each for the block that is being written
    assert found.kv_blocks == 4 * 11
    assert found.value("max_num_seqs") == 4


def test_native_bounds_what_its_vision_tower_encodes_at_once() -> None:
    result = plan(qwen2_vl_7b(), card(48), images=[(480, 640)] * 10, prompt_tokens=10, concurrency=8)
    encoded = {e.engine: next(p for p in e.activations if p.name == "vision encoder") for e in result.engines}
    # 391 tokens, 1564 patches each: 10 of them are 16384 patches or less, and 10 are in a step of 4096 tokens too
    assert encoded["native"].why.startswith("10 images")
    assert encoded["hf"].why.startswith("80 images")


def test_transformers_batch_pays_for_every_prompt_token_at_once() -> None:
    small, large = (engine(plan(qwen2_vl_7b(), card(24), images=SCREEN, concurrency=n), "hf") for n in (2, 64))
    assert small.value("max_num_seqs") == 2
    batch = large.value("max_num_seqs")
    assert 2 < batch < 64
    peaks = {part.name: part.bytes for part in large.activations}
    assert peaks["vision encoder"] == pytest.approx(
        batch / 2 * {p.name: p.bytes for p in small.activations}["vision encoder"]
    )
    assert large.value("max_num_batched_tokens") is None


@settings(max_examples=40, deadline=None)
@given(gib=st.floats(4, 200), more=st.floats(0.1, 50), concurrency=st.sampled_from([None, 1, 7, 64, 500]))
def test_more_memory_never_holds_fewer_requests(gib: float, more: float, concurrency: int | None) -> None:
    for config in (qwen25_1_5b(), qwen2_vl_7b()):
        small, large = (plan(config, card(amount), concurrency=concurrency) for amount in (gib, gib + more))
        for name in ENGINES:
            a, b = engine(small, name), engine(large, name)
            assert b.fits or not a.fits
            if a.fits:
                # A larger card may afford a larger step, or wider weights, and then pays for them.
                same = a.value("max_num_batched_tokens") == b.value("max_num_batched_tokens") and a.made == b.made
                assert b.value("max_num_seqs") >= a.value("max_num_seqs") or not same
                assert a.requests_at_once >= a.value("max_num_seqs") >= 1


@settings(max_examples=40, deadline=None)
@given(gib=st.floats(1, 200), prompt=st.integers(1, 30000), answer=st.integers(1, 2000))
def test_proposals_are_consistent(gib: float, prompt: int, answer: int) -> None:
    result = plan(qwen25_1_5b(), card(gib), prompt_tokens=prompt, max_tokens=answer)
    for found in result.engines:
        if not found.fits:
            assert found.shortage_bytes > 0
            assert found.proposals == ()
            continue
        length, seqs = found.value("max_model_len"), found.value("max_num_seqs")
        assert prompt + answer <= length <= 32768
        if found.engine != "hf":
            assert seqs <= found.value("max_num_batched_tokens")
            assert length <= found.kv_tokens  # engines refuse to start otherwise
        if found.engine == "native":
            assert found.value("kv_cache_bytes") // result.kv_bytes_per_block >= found.kv_blocks
        if found.engine in ("vllm", "sglang"):
            assert found.value("gpu_memory_utilization") <= 0.95


# ---- weights that an engine makes or holds otherwise --------------------------------------------------------


def test_native_makes_weights_that_do_not_fit_int8_by_itself_as_it_does_when_it_loads() -> None:
    result = plan(qwen2_vl_7b(), card(15.65), images=SCREEN, engines=("native",))
    found = engine(result, "native")
    assert result.fits
    assert found.made == "int8"
    assert "loaded int8 by itself: bfloat16 weights lack" in found.verdict
    assert sum(p.bytes for p in found.parts if p.kind == "weights") / GIB == pytest.approx(9.37, abs=0.01)
    assert "--quantization" not in found.launch  # nobody has to ask for it
    assert [a for a in result.advice if a.topic == "does not fit"] == []


def test_native_makes_weights_int4_by_itself_where_int8_does_not_fit_either() -> None:
    found = engine(plan(qwen2_vl_7b(), card(9.5), images=SCREEN, engines=("native",)), "native")
    assert found.fits
    assert found.made == "int4"


def test_where_int8_and_int4_do_not_fit_either_it_is_said_by_how_much() -> None:
    found = engine(plan(qwen2_vl_7b(), card(7.65), images=SCREEN, engines=("native",)), "native")
    assert not found.fits
    asked = {
        name: engine(plan(qwen2_vl_7b(), card(7.65), images=SCREEN, quantization=name), "native")
        for name in ("int8", "int4")
    }
    for name, one in asked.items():
        amount = format_bytes(one.shortage_bytes)
        assert f"{name} weights lack {amount}" in found.verdict


@pytest.mark.parametrize("chosen", [{"dtype": "bfloat16"}, {"quantization": "int8"}])
def test_weights_keep_the_format_that_was_asked_for(chosen: dict[str, Any]) -> None:
    small = 15.65 if "dtype" in chosen else 9.5
    found = engine(plan(qwen2_vl_7b(), card(small), images=SCREEN, **chosen), "native")
    assert not found.fits
    assert found.made == ""


def test_the_others_ways_out_are_said_where_native_fits_by_itself_alone() -> None:
    result = plan(qwen2_vl_7b(), card(15.65), images=SCREEN)
    assert [e.engine for e in result.engines if e.fits] == ["native"]
    assert any(a.topic == "does not fit" for a in result.advice)


MACHINE = Device("cpu", "CPU, 2 cores", 96 * GIB, 64 * GIB, 1, None, "test", cores=2)


def weights_of(result: Plan) -> dict[str, float]:
    return {part.name: part.bytes for part in result.weights}


def test_int4_on_a_cpu_is_planned_as_the_numbers_it_stands_for() -> None:
    dense, four = (plan(qwen2_vl_7b(), MACHINE, engines=("native",), quantization=name) for name in (None, "int4"))
    assert weights_of(four) == weights_of(dense)
    assert "int4 weights become float32 here: neither smaller nor faster" in engine(four, "native").verdict
    awq = plan({**qwen2_vl_7b(), "quantization_config": {"quant_method": "awq", "bits": 4}}, MACHINE)
    assert weights_of(awq) == weights_of(dense)


def test_int8_on_a_cpu_takes_embedding_and_head_and_on_a_gpu_leaves_them() -> None:
    found = weights_of(plan(qwen2_vl_7b(), MACHINE, engines=("native",), quantization="int8"))
    assert found["embedding"] == found["lm_head"] == 152064 * (3584 + 4)  # int8, and a float32 scale a row
    found = weights_of(plan(qwen2_vl_7b(), card(24), engines=("native",), quantization="int8"))
    assert found["embedding"] == found["lm_head"] == 152064 * 3584 * 2


def test_int8_on_a_cpu_is_made_of_the_whole_model_which_has_to_be_loaded_first() -> None:
    small = dataclasses.replace(MACHINE, total_bytes=32 * GIB, free_bytes=24 * GIB)
    found = engine(plan(qwen2_vl_7b(), small, engines=("native",), quantization="int8"), "native")
    assert not found.fits
    # 24 GiB less a tenth and 0.6 of the process, for 30.89
    assert "9.89 GiB are missing to load the weights, 30.89 GiB in float32 until all are there" in found.verdict
    assert plan(qwen2_vl_7b(), small, engines=("native",), quantization="int8", dtype="bfloat16").fits


# ---- proposals and commands ---------------------------------------------------------------------------------


def test_the_vllm_command_has_every_proposed_value() -> None:
    result = plan(qwen2_vl_7b(), card(24), model="Qwen/Qwen2-VL-7B-Instruct", images=SCREEN * 2, concurrency=8)
    found = engine(result, "vllm")
    flags = words(found.launch)
    assert found.launch.startswith("vllm serve Qwen/Qwen2-VL-7B-Instruct --generation-config vllm")
    assert flags["--max-model-len"] == str(found.value("max_model_len"))
    assert flags["--max-num-batched-tokens"] == str(found.value("max_num_batched_tokens"))
    assert flags["--max-num-seqs"] == str(found.value("max_num_seqs"))
    assert float(flags["--gpu-memory-utilization"]) == found.value("gpu_memory_utilization")
    assert json.loads(flags["--limit-mm-per-prompt"]) == {"image": 2, "video": 0}
    # 1080×1920 becomes 1092×1932
    assert json.loads(flags["--mm-processor-kwargs"]) == {"max_pixels": 1092 * 1932}


def test_the_sglang_command_uses_its_own_names() -> None:
    found = engine(plan(qwen2_vl_7b(), card(24), model="a/b", images=SCREEN), "sglang")
    flags = words(found.launch)
    assert found.launch.startswith("python -m sglang.launch_server --model-path a/b")
    assert flags["--context-length"] == str(found.value("max_model_len"))
    assert flags["--chunked-prefill-size"] == str(found.value("max_num_batched_tokens"))
    assert flags["--max-running-requests"] == str(found.value("max_num_seqs"))
    assert float(flags["--mem-fraction-static"]) == found.value("gpu_memory_utilization")
    assert json.loads(flags["--limit-mm-data-per-request"]) == {"image": 1, "video": 0}


@pytest.mark.parametrize("name", ["native", "hf"])
def test_our_own_commands_are_understood_by_our_own_parser(name: str) -> None:
    from visavis.cli.app import build_parser

    found = engine(plan(qwen2_vl_7b(), card(24), model="a/b", images=SCREEN, dtype="float16"), name)
    args = build_parser().parse_all(shlex.split(found.launch)[1:])
    assert args.backend == name
    assert args.words_left == []
    assert args.max_tokens == "512"
    assert int(args.max_num_seqs) == found.value("max_num_seqs")
    assert args.dtype == "float16"
    if name == "native":
        from visavis.cli.options import engine_options

        kept = engine_options(args, (name,), warmup=True)
        assert kept.kv_cache_bytes == found.value("kv_cache_bytes")
        assert kept.max_num_batched_tokens == found.value("max_num_batched_tokens")


def test_every_number_has_its_reason() -> None:
    for config in (qwen25_1_5b(), qwen2_vl_7b()):
        for found in plan(config, card(24), concurrency=3).engines:
            assert found.proposals
            for proposal in found.proposals:
                assert len(proposal.why) > 20, proposal
            for part in (*found.parts, *found.activations):
                assert part.why, part


def test_qwen3_vl_bounds_are_given_as_size() -> None:
    config = qwen3_vl_235b_fp8()
    found = engine(plan(config, card(141, 2), ranks=2, images=SCREEN), "vllm")
    given_size = json.loads(words(found.launch)["--mm-processor-kwargs"])
    assert given_size == {"size": {"shortest_edge": 65536, "longest_edge": 1088 * 1920}}


def test_memory_in_use_by_others_is_left_to_them() -> None:
    alone, shared = (plan(qwen25_1_5b(), card(24, used=used)) for used in (0, 10))
    assert engine(shared, "vllm").value("gpu_memory_utilization") <= (24 - 10) / 24
    assert engine(shared, "vllm").kv_blocks < engine(alone, "vllm").kv_blocks - 9.5 * GIB / 458752
    assert any(p.name == "other programs" and p.bytes == 10 * GIB for p in engine(shared, "hf").parts)


def test_a_queue_is_no_failure() -> None:
    found = engine(plan(qwen2_vl_7b(), card(24), images=SCREEN, concurrency=500), "vllm")
    assert found.fits
    assert "the others wait" in found.verdict
    why = next(p.why for p in found.proposals if p.name == "max_num_seqs")
    assert f"{found.value('max_num_seqs')} of the 500" in why


PC = Device("cpu", "CPU, 8 cores", 64 * GIB, 50 * GIB, 1)


@pytest.mark.parametrize(
    ("device", "name", "limit"),
    [
        *((PC, name, 8) for name in ("native", "hf", "vllm")),
        *((card(80), name, limit) for name, limit in zip(ENGINES, (64, 64, 256, 256), strict=True)),
    ],
)
def test_a_default_limit_is_said_with_what_memory_would_hold(device: Device, name: str, limit: int) -> None:
    def verdict(concurrency: int | None) -> str:
        result = plan(qwen25_1_5b(), device, prompt_tokens=200, max_tokens=100, concurrency=concurrency)
        return engine(result, name).verdict

    said = re.fullmatch(rf"fits {limit} requests .*\(default limit {limit}; memory would hold (\d+)\)", verdict(None))
    assert said is not None, verdict(None)
    most = int(said[1])
    assert verdict(most) == f"fits {most} requests of 300 tokens at once"
    assert most in (2048, 4096) or verdict(most + 1).startswith(
        f"fits {most} of {most + 1} "
    )  # a step's tokens, no more


def test_without_a_concurrency_what_memory_bounds_is_no_default() -> None:
    found = engine(plan(qwen2_vl_7b(), card(24), images=SCREEN), "vllm")
    assert "default" not in found.verdict
    assert int(re.findall(r"fits (\d+) ", found.verdict)[0]) < 256


def test_steps_grow_with_the_prompt_and_shrink_with_the_card() -> None:
    def step(gib: float, prompt: int) -> Any:
        found = engine(plan(qwen2_vl_7b(), card(gib), images=(), prompt_tokens=prompt, max_tokens=10), "vllm")
        return found.value("max_num_batched_tokens")

    assert step(80, 100) == 2048
    assert step(80, 5000) == 8192
    assert step(80, 30000) == 16384
    assert step(18.5, 5000) < 8192


def test_fp8_cache_doubles_the_tokens() -> None:
    wide, narrow = (plan(qwen25_1_5b(), card(24), kv_dtype=k) for k in ("auto", "fp8"))
    assert engine(narrow, "vllm").kv_tokens == pytest.approx(2 * engine(wide, "vllm").kv_tokens, rel=1e-3)
    assert "--kv-cache-dtype fp8" in engine(narrow, "vllm").launch
    assert "--kv-cache-dtype fp8_e4m3" in engine(narrow, "sglang").launch
    assert "--kv-cache-dtype" in engine(narrow, "native").verdict
    assert not engine(narrow, "native").fits


# ---- formats and engines that do not go together ------------------------------------------------------------


def test_load_time_formats_go_to_the_engines_that_make_them() -> None:
    fp8 = plan(qwen2_vl_7b(), card(24), model="a/b", quantization="fp8", images=SCREEN)
    assert "--quantization fp8" in engine(fp8, "vllm").launch
    assert engine(fp8, "sglang").fits
    assert "does not quantise while loading" in engine(fp8, "hf").verdict
    int8 = plan(qwen2_vl_7b(), card(16), model="a/b", quantization="int8", images=SCREEN)
    assert "--torchao-config int8wo" in engine(int8, "sglang").launch
    assert "it makes fp8, bitsandbytes-nf4" in engine(int8, "vllm").verdict


def test_quantised_checkpoints_are_not_quantised_again() -> None:
    config = {**qwen2_vl_7b(), "quantization_config": {"quant_method": "awq", "bits": 4}}
    result = plan(config, card(16), images=SCREEN)
    assert result.quantization == "awq"
    assert engine(result, "vllm").fits
    assert "--quantization" not in engine(result, "vllm").launch
    assert engine(result, "native").fits
    with pytest.raises(OptionError, match="quantised already \\('awq'\\)"):
        plan(config, card(16), quantization="int8")


def test_an_unknown_checkpoint_format_can_be_planned_as_a_known_one() -> None:
    config = {**qwen25_1_5b(), "quantization_config": {"quant_method": "int4"}}
    assert plan(config, card(24), quantization="int4", engines=("sglang",)).fits


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ranks": 3}, "--tensor-parallel-size 3 .*28 attention heads and 16 .*possible: 1, 2, 4"),
        ({"dtype": "bfloat61"}, "did you mean bfloat16"),
        ({"kv_dtype": "int3"}, "--kv-cache-dtype 'int3'"),
        ({"engines": ("vlm",)}, "did you mean vllm"),
        ({"quantization": "int44"}, "did you mean int4"),
    ],
)
def test_bad_options_are_refused_with_the_way_out(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        plan(qwen2_vl_7b(), card(24), **options)


def test_on_a_cpu_the_cache_is_as_large_as_needed() -> None:
    cpu = Device("cpu", "CPU", 32 * GIB, 20 * GIB, 1, None, "test")
    result = plan(qwen25_1_5b(), cpu, prompt_tokens=100, max_tokens=28, concurrency=2)
    assert result.dtype == "float32"
    native = engine(result, "native")
    assert native.kv_blocks == 2 * 8  # 128 tokens each
    assert native.value("kv_cache_bytes") >= 16 * 2 * 458752  # float32
    assert engine(result, "vllm").launch.startswith("VLLM_CPU_KVCACHE_SPACE=1 vllm serve")
    assert "--dtype float32" in engine(result, "vllm").launch
    assert "CUDA" in engine(result, "sglang").verdict
    assert all("cards" not in a.text for a in result.advice)


def _text_step(cores: int | None, dtype: str = "auto") -> MemoryPart:
    cpu = Device("cpu", "CPU", 64 * GIB, 50 * GIB, 1, None, "test", cores)
    result = plan(qwen25_1_5b(), cpu, prompt_tokens=100, max_tokens=28, concurrency=2, dtype=dtype)
    return next(part for part in engine(result, "native").activations if part.name == "text step")


def test_on_a_cpu_activations_are_float32_whatever_the_weights_are() -> None:
    single, half = _text_step(2), _text_step(2, "bfloat16")
    assert single.bytes <= half.bytes < 1.05 * single.bytes
    assert "2048 tokens" in half.why
    assert "up to 95 ×" in half.why  # 48 tokens a thread, less one
    assert half.why.endswith("× float32, on up to 2 threads")
    assert _text_step(2, "float16").why.endswith("× float16")  # plain torch


def test_on_a_cpu_of_unknown_or_many_cores_the_worst_number_of_threads_is_planned() -> None:
    unknown, many = _text_step(None), _text_step(43)  # 43 · 48 tokens are more than a step's
    assert unknown == many
    assert "the number of threads for which it is most" in unknown.why
    assert _text_step(2).bytes < _text_step(42).bytes <= unknown.bytes


# ---- experts and FP8: document 004's checkpoint -------------------------------------------------------------


def test_235b_fp8_fits_two_h200_and_not_one() -> None:
    one = plan(qwen3_vl_235b_fp8(), card(139.8), images=SCREEN)
    two = plan(qwen3_vl_235b_fp8(), card(139.8, 2), ranks=2, images=SCREEN)
    assert not one.fits
    assert any("2 such cards" in advice.text for advice in one.advice)
    assert engine(two, "vllm").fits
    assert engine(two, "sglang").fits
    assert "does not run model_type qwen3_vl_moe" in engine(two, "native").verdict
    assert two.weight_bytes / GIB == pytest.approx(110.7, abs=0.5)


def test_expert_widths_that_do_not_split_into_blocks_ask_for_whole_experts() -> None:
    four, eight = (plan(qwen3_vl_235b_fp8(), card(79.6, n), ranks=n, images=SCREEN, concurrency=8) for n in (4, 8))
    # 1536 / 4 = 384 = 3 · 128, but 1536 / 8 = 192
    assert "--enable-expert-parallel" not in engine(four, "vllm").launch
    assert "--enable-expert-parallel" in engine(eight, "vllm").launch
    assert "--ep-size 8" in engine(eight, "sglang").launch


def test_native_divides_a_model_over_cards_but_for_the_embedding() -> None:
    found = plan(qwen2_vl_7b(), card(24, 2), ranks=2, images=SCREEN)
    native, vllm = engine(found, "native"), engine(found, "vllm")
    assert native.fits
    assert "--tensor-parallel-size 2" in native.launch
    own = [next(p.bytes for p in e.parts if p.name == "engine's own") for e in (native, vllm)]
    half = 152064 * 3584 * 2 // 2  # vocabulary × hidden size × bfloat16; the weights count the other half
    assert own[0] - half == pytest.approx(0.4 * GIB, abs=2)  # NCCL's buffers
    assert own[1] == pytest.approx(0.5 * GIB, abs=2)


def test_transformers_lays_whole_layers_over_the_cards() -> None:
    found = engine(plan(qwen3_vl_235b_fp8(), card(139.8, 2), ranks=2, images=SCREEN, concurrency=1), "hf")
    assert found.fits
    assert "--engine-option device_map=auto" in found.launch
    assert "one after another" in next(p.why for p in found.proposals if p.name == "device_map")


# ---- documents ----------------------------------------------------------------------------------------------


def test_the_json_document_is_complete_and_plain() -> None:
    result = plan(qwen2_vl_7b(), card(24), model="a/b", images=SCREEN, concurrency=4)
    document = json.loads(json.dumps(as_dict(result), allow_nan=False))
    assert document["schema"] == "visavis.plan/1"
    assert document["parameters"] == 8_291_375_616
    assert document["kv_bytes_per_token"] == 57344
    assert sum(part["bytes"] for part in document["weights"]) == pytest.approx(document["weight_bytes"], abs=8)
    assert [e["engine"] for e in document["engines"]] == list(ENGINES)
    settings_of = {s["name"]: s for s in document["engines"][2]["settings"]}
    assert settings_of["max_model_len"]["flag"] == "--max-model-len"
    assert document["workload"]["images"][0]["resized"] == [1092, 1932]
    assert {a["topic"] for a in document["advice"]} >= {"max_model_len and max_num_batched_tokens"}


def test_one_line_for_an_error_names_values_that_fit() -> None:
    result = plan(qwen2_vl_7b(), card(24), images=SCREEN)
    line = in_one_line(result, "native")
    assert f"max_num_seqs {engine(result, 'native').value('max_num_seqs')}" in line
    assert "would fit" in line
    assert "\n" not in line
    assert "int4" in in_one_line(plan(qwen2_vl_7b(), card(16), images=SCREEN, dtype="bfloat16"), "native")
    assert in_one_line(result, "openai") == ""


def test_plans_are_plain_data_that_compare_equal() -> None:
    a, b = (plan(qwen25_1_5b(), card(24)) for _ in range(2))
    assert a == b
    assert dataclasses.asdict(a)["engines"][0]["engine"] == "native"
