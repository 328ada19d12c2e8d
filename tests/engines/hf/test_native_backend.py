"""`NativeModel`: the same interface over visavis' own engine, and the same answers as `hf` whatever is asked."""

from __future__ import annotations

import dataclasses
import os
from contextlib import closing
from typing import Any

import pytest
import torch

from tests.engines.hf.conftest import Folder, Load, mixed_prompts
from visavis.backends.native import NativeModel
from visavis.backends.options import EngineOptions
from visavis.child_process import descendants
from visavis.errors import OptionError
from visavis.sampling import SamplingParams

pytestmark = pytest.mark.engines


def params(**values: Any) -> SamplingParams:
    return SamplingParams.from_mapping({"max_tokens": 24, "ignore_eos": True, **values})


@pytest.mark.parametrize("family", ["qwen2", "qwen3_vl"])
def test_sampled_and_penalised_answers_are_the_same_tokens_on_both_engines(
    family: str, folder: Folder, loaded: Load
) -> None:
    hf = loaded(family)
    prompts = mixed_prompts(hf, family)
    asked = [
        params(temperature=1.0, seed=1, top_p=0.9),
        params(temperature=0.7, seed=2, top_k=30, min_p=0.02, repetition_penalty=1.3),
        params(presence_penalty=1.5, frequency_penalty=0.5, logit_bias={40: 5, 41: -100}),
        params(temperature=1.2, seed=5, min_tokens=20, ignore_eos=False, logprobs=2),
        params(temperature=1.0, seed=6, n=2),
    ][: len(prompts)]
    with NativeModel() as native:
        native.load(str(folder(family)), EngineOptions(warmup=False))
        got = native.complete(prompts, asked)
    expected = hf.complete(prompts, asked)
    for one, other in zip(got, expected, strict=True):
        assert (one.error, other.error) == (None, None)
        assert one.token_ids == other.token_ids
        assert (one.text, one.finish_reason) == (other.text, other.finish_reason)
        assert [a.token_ids for a in one.alternatives] == [a.token_ids for a in other.alternatives]


def test_a_model_over_two_processes_answers_as_hf_and_leaves_none_behind(folder: Folder, loaded: Load) -> None:
    hf = loaded("qwen3_vl")
    prompts = mixed_prompts(hf, "qwen3_vl")
    before = set(descendants(os.getpid()))
    with NativeModel() as native:
        native.load(str(folder("qwen3_vl")), EngineOptions(warmup=False, device="cpu", tensor_parallel_size=2))
        assert native.info is not None
        assert native.info.settings["tensor_parallel_size"] == 2
        assert "cannot wait for other ranks" in native.info.settings["kernels"]
        assert len(set(descendants(os.getpid())) - before) == 1
        got = native.complete(prompts, params())
    assert set(descendants(os.getpid())) <= before
    assert [c.token_ids for c in got] == [c.token_ids for c in hf.complete(prompts, params())]


def test_what_was_loaded_is_told(folder: Folder) -> None:
    with NativeModel() as model:
        model.load(str(folder("qwen2_vl")), EngineOptions(max_model_len=512, max_num_seqs=3, extra={"block_size": 8}))
        info = model.info
        assert info is not None
        assert (info.backend, info.device, info.dtype, info.max_model_len) == ("native", "cpu", "float32", 512)
        assert list(info.phases) == ["tokenizer", "import", "compile", "load", "warm-up"]
        assert (info.settings["max_num_seqs"], info.settings["block_size"]) == (3, 8)
        assert info.settings["kv_cache_bytes"] > 0
        assert model.capabilities().batching == "continuous"


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"quantization": "fp8"}, "quantization .fp8. is not known to the native engine; it makes int8 and int4"),
        ({"quantization": "awq"}, "quantization awq was asked for and the checkpoint's config.json declares none"),
        ({"gpu_memory_utilization": 0.5}, "native has no gpu_memory_utilization"),
        ({"device": "mps"}, "mps"),
        ({"extra": {"blocksize": 8}}, "did you mean native.block_size"),
    ],
)
def test_what_it_cannot_do_is_refused_by_name(folder: Folder, options: dict[str, Any], named: str) -> None:
    with pytest.raises(OptionError, match=named):
        NativeModel().load(str(folder("qwen2")), EngineOptions(**options))


def test_float16_of_a_bfloat16_checkpoint_is_marked_and_warned_of(folder: Folder) -> None:
    with pytest.warns(UserWarning, match="float16 for a bfloat16 checkpoint"):
        model = NativeModel().load(
            str(folder("qwen2", dtype=torch.bfloat16)), EngineOptions(dtype="float16", warmup=False)
        )
    assert model.info is not None
    assert "float16" in model.info.marks[0]
    model.close()


def test_a_request_that_cannot_run_fails_alone(folder: Folder, loaded: Load) -> None:
    with NativeModel() as model:
        model.load(str(folder("qwen2")), EngineOptions(warmup=False))
        good = mixed_prompts(loaded("qwen2"), "qwen2")[0]
        bad = dataclasses.replace(good, token_ids=(*good.token_ids[:-1], 10**6))
        got = model.complete([good, bad, good], params(max_tokens=4))
    assert [c.finish_reason for c in got] == ["length", "error", "length"]
    assert "1000000" in (got[1].error or "")


def test_closing_a_stream_frees_the_engine_for_the_next(folder: Folder, loaded: Load) -> None:
    prompts = mixed_prompts(loaded("qwen2"), "qwen2")
    with NativeModel() as model:
        model.load(str(folder("qwen2")), EngineOptions(warmup=False))
        expected = [c.token_ids for c in model.complete(prompts, params())]
        with closing(model.stream_batch(prompts, params(max_tokens=2000))) as deltas:
            next(deltas)
        assert model._engine is not None
        assert not model._engine.has_work
        assert [c.token_ids for c in model.complete(prompts, params())] == expected


@pytest.mark.parametrize("family", ["qwen2", "qwen3_vl"])
def test_bans_and_prompt_logprobs_are_the_same_on_both_engines(family: str, folder: Folder, loaded: Load) -> None:
    hf = loaded(family)
    prompts = mixed_prompts(hf, family)[:3]
    free = hf.complete(prompts, params())
    words = [hf.family.tokenizer.decode([c.token_ids[2]]).strip() or "x" for c in free]  # type: ignore[union-attr]
    asked = [
        params(bad_words=words, prompt_logprobs=2),
        params(bad_words_ids=[list(free[1].token_ids[2:4]), [free[1].token_ids[0]]], logprobs=1, prompt_logprobs=0),
        params(temperature=0.9, seed=4, bad_words=words),
    ]
    with NativeModel() as native:
        native.load(str(folder(family)), EngineOptions(warmup=False))
        got = native.complete(prompts, asked)
    expected = hf.complete(prompts, asked)
    for prompt, one, other in zip(prompts, got, expected, strict=True):
        assert (one.error, other.error) == (None, None)
        assert one.token_ids == other.token_ids
        assert (one.prompt_logprobs is None) == (other.prompt_logprobs is None)
        if one.prompt_logprobs is None or other.prompt_logprobs is None:
            continue
        assert (one.prompt_logprobs[0], other.prompt_logprobs[0]) == (None, None)
        assert len(one.prompt_logprobs) == len(other.prompt_logprobs) == len(prompt)
        for mine, theirs in zip(one.prompt_logprobs[1:], other.prompt_logprobs[1:], strict=True):
            assert mine is not None
            assert theirs is not None
            assert mine.token_id == theirs.token_id
            assert mine.logprob == pytest.approx(theirs.logprob, abs=1e-4)
            assert [v for _, v in mine.top] == pytest.approx([v for _, v in theirs.top], abs=1e-4)
    assert got[0].prompt_logprobs is not None
    assert got[1].token_ids[0] != free[1].token_ids[0]


def test_an_id_the_model_does_not_have_is_refused_before_anything_runs(folder: Folder, loaded: Load) -> None:
    prompt = mixed_prompts(loaded("qwen2"), "qwen2")[0]
    with NativeModel() as model:
        model.load(str(folder("qwen2")), EngineOptions(warmup=False))
        size = model.family.vocab_size  # type: ignore[union-attr]
        for values in ({"logit_bias": {size: 1.0}}, {"stop_token_ids": [size]}, {"bad_words_ids": [[size]]}):
            with pytest.raises(OptionError, match=f"is no token of this model: its ids are 0 to {size - 1}"):
                model.complete([prompt], params(**values))


def test_structured_answers_are_the_same_on_both_engines_and_valid(folder: Folder, loaded: Load) -> None:
    hf = loaded("qwen2")
    prompts = mixed_prompts(hf, "qwen2")[:3]
    schema = {"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 2, "maxItems": 3}
    asked = [
        params(max_tokens=60, temperature=1.0, seed=3, json_schema=schema, ignore_eos=False),
        params(temperature=1.0, seed=4),
        params(max_tokens=60, regex="[0-9]{4,6}"),
    ][: len(prompts)]
    with NativeModel() as native:
        native.load(str(folder("qwen2")), EngineOptions(warmup=False))
        got = native.complete(prompts, asked)
    expected = hf.complete(prompts, asked)
    for one, other, values in zip(got, expected, asked, strict=True):
        assert (one.error, other.error) == (None, None)
        assert (one.token_ids, one.text, one.finish_reason) == (other.token_ids, other.text, other.finish_reason)
        assert one.valid == other.valid == (None if values.structured is None else True)
