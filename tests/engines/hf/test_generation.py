"""`HuggingFaceModel` against transformers called directly, and against itself: batch = single, streams, aborts."""

from __future__ import annotations

import json
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from tests.engines.hf.conftest import Folder, Load, mixed_prompts, picture
from tests.reference.tiny_models import FAMILIES, VL_FAMILIES
from visavis.backends.hf import HuggingFaceModel
from visavis.backends.options import EngineOptions
from visavis.errors import OptionError
from visavis.prompt import Prompt
from visavis.sampling import SamplingParams

pytestmark = pytest.mark.engines


def params(**values: Any) -> SamplingParams:
    return SamplingParams.from_mapping({"max_tokens": 24, "ignore_eos": True, **values})


def plain_generate(folder: Path, prompt: Prompt, family: str, tokens: int) -> list[int]:
    """Transformers' own greedy answer to the prompt alone, with nothing of ours but the inputs."""
    auto = transformers.AutoModelForImageTextToText if family in VL_FAMILIES else transformers.AutoModelForCausalLM
    model = auto.from_pretrained(folder, dtype=torch.float32).eval()
    out = model.generate(**prompt.for_hf(), do_sample=False, max_new_tokens=tokens, min_new_tokens=tokens)
    return out[0, len(prompt) :].tolist()


@pytest.mark.parametrize("family", list(FAMILIES))
def test_greedy_answers_are_transformers_own_alone_and_in_a_batch(family: str, folder: Folder, loaded: Load) -> None:
    model = loaded(family)
    prompts = mixed_prompts(model, family)
    # min_tokens bans EOS in both, which is how transformers is made to go on.
    asked = SamplingParams(max_tokens=24, min_tokens=24)
    together = [list(c.token_ids) for c in model.complete(prompts, asked)]
    alone = [list(model.complete([p], asked)[0].token_ids) for p in prompts]
    assert together == alone
    for place in (1, len(prompts) - 1):
        assert alone[place] == plain_generate(folder(family), prompts[place], family, 24)


@pytest.mark.parametrize("family", VL_FAMILIES)
def test_videos_beside_images_and_text_in_one_batch(family: str, folder: Folder, loaded: Load) -> None:
    model = loaded(family)
    frames = [picture(seed, 64, 96) for seed in range(4)]
    content = [{"type": "video", "video": frames, "fps": 2.0}, {"type": "text", "text": "what happens?"}]
    with_video = model.prepare([{"role": "user", "content": content}])
    assert with_video.media[0].kind == "video"
    prompts = [with_video, *mixed_prompts(model, family)[-2:], mixed_prompts(model, family)[0]]
    asked = SamplingParams(max_tokens=16, min_tokens=16)
    together = [list(c.token_ids) for c in model.complete(prompts, asked)]
    assert together == [list(model.complete([p], asked)[0].token_ids) for p in prompts]
    assert together[0] == plain_generate(folder(family), with_video, family, 16)


@pytest.mark.parametrize("name", ["make_llava", "make_idefics3", "make_smolvlm", "make_minicpmv"])
def test_other_families_run_through_transformers_own_processor(name: str, tmp_path: Path) -> None:
    from tests.reference import tiny_generic

    for needed in ("num2words", "torchvision") if name in ("make_smolvlm", "make_minicpmv") else ():
        pytest.importorskip(needed, reason="transformers' processor of that family needs it")
    with HuggingFaceModel() as model:
        model.load(str(getattr(tiny_generic, name)(tmp_path / name)), EngineOptions())
        look = {"type": "text", "text": "look"}
        contents: list[Any] = ["hi", [{"type": "image", "image": picture(1, 90, 130)}, look], "a longer question " * 5]
        prompts = [model.prepare([{"role": "user", "content": content}]) for content in contents]
        asked = params(max_tokens=8)
        together = model.complete(prompts, asked)
        assert [c.error for c in together] == [None] * 3
        assert [c.token_ids for c in together] == [model.complete([p], asked)[0].token_ids for p in prompts]


def test_unequal_requests_in_one_batch_each_get_their_own(loaded: Load) -> None:
    model = loaded("qwen2_vl")
    prompts = mixed_prompts(model, "qwen2_vl")
    asked = [
        params(max_tokens=3),
        params(temperature=1.0, seed=1, top_p=0.9),
        params(temperature=0.7, seed=2, top_k=30, min_p=0.02, repetition_penalty=1.3, logprobs=3),
        params(presence_penalty=1.5, frequency_penalty=0.5, logit_bias={40: 5, 41: -100}),
        params(temperature=1.0, seed=1, bad_words=["the"], min_tokens=20, ignore_eos=False),
    ]
    together = model.complete(prompts, asked)
    alone = [model.complete([p], [s])[0] for p, s in zip(prompts, asked, strict=True)]
    assert [c.token_ids for c in together] == [c.token_ids for c in alone]
    assert [c.text for c in together] == [c.text for c in alone]
    assert len(together[0].token_ids) == 3
    assert together[1].token_ids != model.complete([prompts[1]], [params()])[0].token_ids, "it really samples"
    assert together[1].token_ids != model.complete([prompts[1]], [params(temperature=1.0, seed=9)])[0].token_ids


def test_more_requests_than_fit_wait_their_turn(folder: Folder, loaded: Load) -> None:
    prompts = mixed_prompts(loaded("qwen2"), "qwen2")
    expected = [c.token_ids for c in loaded("qwen2").complete(prompts, params())]
    with HuggingFaceModel() as model:
        model.load(str(folder("qwen2")), EngineOptions(max_num_seqs=2, warmup=False))
        got = model.complete(prompts, params())
    assert [c.token_ids for c in got] == expected
    assert got[2].timings.queue_s > got[0].timings.token_times[-1], "the third waited for the first two"


@pytest.mark.parametrize("number", [1, 0])
def test_the_folders_generation_config_decides_nothing(
    folder: Folder, loaded: Load, tmp_path: Path, number: int
) -> None:
    """Neither its sampling nor its lengths, penalties or banned tokens."""
    copy = tmp_path / "model"
    copy.mkdir()
    for file in folder("qwen2").iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    path = copy / "generation_config.json"
    loud = {"do_sample": True, "temperature": 3.0, "repetition_penalty": 5.0, "max_new_tokens": 2, "num_beams": 1}
    loud |= {"suppress_tokens": [40, 41, 42], "no_repeat_ngram_size": 1, "min_new_tokens": number}
    path.write_text(json.dumps(json.loads(path.read_text()) | loud))
    prompts = mixed_prompts(loaded("qwen2"), "qwen2")[:1]
    with HuggingFaceModel() as model:
        model.load(str(copy), EngineOptions(warmup=False))
        got = model.complete(prompts, params())[0]
    assert got.token_ids == loaded("qwen2").complete(prompts, params())[0].token_ids


def test_eos_and_stop_ids_end_an_answer(loaded: Load) -> None:
    model = loaded("qwen2")
    prompt = mixed_prompts(model, "qwen2")[0]
    whole = model.complete([prompt], params())[0].token_ids
    stop = whole[5]
    first = whole.index(stop)
    (got,) = model.complete([prompt], params(stop_token_ids=[stop]))
    assert (got.token_ids, got.finish_reason, got.stop_reason) == (whole[: first + 1], "stop", stop)
    (later,) = model.complete([prompt], params(stop_token_ids=[stop], min_tokens=first + 2))
    assert stop not in later.token_ids[: first + 2]
    assert len(later.token_ids) >= first + 2
    eos = model.resolve(prompt).eos_token_ids[0]
    (ended,) = model.complete([prompt], SamplingParams(max_tokens=5, logit_bias=((eos, 100.0),)))
    assert (ended.token_ids, ended.finish_reason, ended.stop_reason, ended.text) == ((eos,), "stop", eos, "")


def test_logprobs_are_the_raw_ones_of_a_forward_pass(folder: Folder, loaded: Load) -> None:
    """Raw: before penalties, bias and temperature, which all are set here."""
    model = loaded("qwen2")
    prompts = mixed_prompts(model, "qwen2")[:2]
    asked = params(max_tokens=6, logprobs=4, temperature=0.5, seed=3, repetition_penalty=1.4, logit_bias={9: 2})
    reference = transformers.AutoModelForCausalLM.from_pretrained(folder("qwen2"), dtype=torch.float32).eval()
    for prompt, got in zip(prompts, model.complete(prompts, asked), strict=True):
        ids = torch.tensor([[*prompt.token_ids, *got.token_ids]])
        with torch.no_grad():
            rows = reference(input_ids=ids).logits[0, len(prompt) - 1 : -1].float().log_softmax(-1)
        assert got.logprobs is not None
        assert len(got.logprobs) == 6
        for row, token_id, told in zip(rows, got.token_ids, got.logprobs, strict=True):
            assert told.token_id == token_id
            assert told.logprob == pytest.approx(float(row[token_id]), abs=1e-4)
            best = row.topk(4)
            assert [i for i, _ in told.top] == best.indices.tolist()
            assert [p for _, p in told.top] == pytest.approx(best.values.tolist(), abs=1e-4)


def test_tokens_are_told_one_by_one_as_they_come(loaded: Load) -> None:
    model = loaded("qwen2")
    prompts = mixed_prompts(model, "qwen2")[:2]
    deltas = list(model.stream_batch(prompts, params(max_tokens=8)))
    told = [d for d in deltas if d.token_ids]
    assert {len(d.token_ids) for d in told} == {1}
    assert [d.index for d in told] == [0, 1] * 8
    for completion in (d.completion for d in deltas if d.completion is not None):
        times = completion.timings.token_times
        assert len(times) == 8
        assert list(times) == sorted(times)
        assert times[0] > 0
        assert completion.timings.total_s >= times[-1]


def test_closing_a_stream_ends_the_generation(loaded: Load) -> None:
    model = loaded("qwen2")
    prompt = mixed_prompts(model, "qwen2")[0]
    before = threading.active_count()
    with closing(model.stream_batch([prompt], params(max_tokens=4000))) as deltas:
        next(deltas)
    (got,) = model.complete([prompt], params(max_tokens=4))
    assert len(got.token_ids) == 4
    assert threading.active_count() <= before + 1, "one thread serves all batches"


def test_a_stop_string_ends_its_row_and_the_others_go_on(loaded: Load) -> None:
    model = loaded("qwen2")
    prompts = mixed_prompts(model, "qwen2")
    whole = model.complete(prompts, params(max_tokens=60, special_tokens="all"))
    stop = whole[0].text[8:11]
    got = model.complete(
        prompts,
        [params(max_tokens=60, special_tokens="all", stop=stop), *[params(max_tokens=60, special_tokens="all")] * 2],
    )
    assert got[0].text == whole[0].text[: whole[0].text.index(stop)]
    assert (got[0].stop_reason, got[0].finish_reason) == (stop, "stop")
    assert [c.token_ids for c in got[1:]] == [c.token_ids for c in whole[1:]]


# ---- failures ------------------------------------------------------------------------------------------------------


def test_logits_that_are_not_finite_fail_their_request_alone(folder: Folder, loaded: Load, tmp_path: Path) -> None:
    """The embedding of one token is NaN, so only prompts with that token are spoilt."""
    copy = tmp_path / "model"
    copy.mkdir()
    for file in folder("qwen2").iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    weights = load_file(copy / "model.safetensors")
    clean = loaded("qwen2")
    poison = clean.prepare("#").token_ids
    (token_id,) = set(poison) - set(clean.prepare("hi").token_ids)
    weights["model.embed_tokens.weight"][token_id] = torch.nan
    save_file(weights, copy / "model.safetensors", metadata={"format": "pt"})
    with HuggingFaceModel() as model:
        model.load(str(copy), EngineOptions(warmup=False))
        prompts = [model.prepare("hi"), model.prepare("#"), model.prepare("hi")]
        got = model.complete(prompts, [params(max_tokens=4), params(max_tokens=4, temperature=1), params(max_tokens=4)])
    assert [c.finish_reason for c in got] == ["length", "error", "length"]
    assert "not finite" in (got[1].error or "")
    assert got[1].token_ids == ()
    assert got[0].token_ids == clean.complete([clean.prepare("hi")], params(max_tokens=4))[0].token_ids


def test_ids_outside_the_vocabulary_are_refused_before_anything_runs(loaded: Load) -> None:
    model = loaded("qwen2")
    prompts = mixed_prompts(model, "qwen2")[:2]
    with pytest.raises(OptionError, match=r"^prompt 0: logit_bias 1000000 .* its ids are 0 to 511$"):
        model.complete(prompts, [params(logit_bias={10**6: 1}), params(max_tokens=2)])


def test_a_prompt_that_breaks_the_batch_fails_alone(loaded: Load) -> None:
    """Its patches do not fit its grid: transformers raises for the whole batch."""
    import dataclasses

    model = loaded("qwen2_vl")
    good, bad = mixed_prompts(model, "qwen2_vl")[0], mixed_prompts(model, "qwen2_vl")[3]
    bad = dataclasses.replace(bad, token_ids=tuple(i for i in bad.token_ids if i != bad.image_token_id))
    got = model.complete([good, bad, good], params(max_tokens=3))
    assert [c.finish_reason for c in got] == ["length", "error", "length"]
    assert (got[1].error or "").startswith("hf failed: ")


def test_images_for_a_text_model_are_refused(loaded: Load) -> None:
    model = loaded("qwen2")
    prompt = mixed_prompts(loaded("qwen2_vl"), "qwen2_vl")[3]
    with pytest.raises(OptionError, match=r"hf takes no images with this model: messages\[0\]\.content\[0\]"):
        model.complete([prompt], params())
