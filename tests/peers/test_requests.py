"""What one request may ask of a real engine, and what it is told when the engine cannot do it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from visavis.backends.worker import WorkerModel
from visavis.errors import OptionError
from visavis.sampling import SamplingParams

pytestmark = pytest.mark.peers

Start = Callable[..., WorkerModel]
Tiny = Callable[[str], Path]
HELLO = [{"role": "user", "content": "Hello"}]


def _as_transformers_computes(folder: Path, ids: tuple[int, ...], answer: tuple[int, ...]) -> list[list[float]]:
    """Log-probabilities over the vocabulary at each position of the answer."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        logits = model(torch.tensor([[*ids, *answer]])).logits[0]
    found: list[list[float]] = logits.log_softmax(-1)[len(ids) - 1 : -1].tolist()
    return found


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_one_engine_many_wishes(start: Start, tiny: Tiny, engine: str) -> None:
    """One start, many checks: starting is what takes the time."""
    folder = tiny("qwen2")
    model = start(engine, folder)
    prompt = model.prepare(HELLO)

    def ask(**asked: object) -> object:
        return model.complete([prompt], SamplingParams.from_mapping(asked))[0]

    plain = model.complete([prompt], SamplingParams(max_tokens=12, ignore_eos=True))[0]
    assert plain.finish_reason == "length"
    assert (plain.prompt_tokens, len(plain.timings.token_times)) == (len(prompt), 12)
    assert list(plain.timings.token_times) == sorted(plain.timings.token_times)

    # log-probabilities are those of the raw distribution, at the right positions
    scored = model.complete([prompt], SamplingParams(max_tokens=6, ignore_eos=True, logprobs=3))[0]
    assert scored.token_ids == plain.token_ids[:6]
    rows = _as_transformers_computes(folder, prompt.token_ids, scored.token_ids)
    assert scored.logprobs is not None
    assert len(scored.logprobs) == 6
    for entry, token, row in zip(scored.logprobs, scored.token_ids, rows, strict=True):
        best = sorted(range(len(row)), key=row.__getitem__, reverse=True)[:3]
        assert entry.token_id == token
        assert math.isclose(entry.logprob, row[token], abs_tol=1e-3)
        assert [i for i, _ in entry.top] == best
        assert all(math.isclose(p, row[i], abs_tol=1e-3) for i, p in entry.top)

    # an id that ends the answer is the last one, and named
    end = plain.token_ids[4]
    at = plain.token_ids.index(end)
    stopped = model.complete([prompt], SamplingParams(max_tokens=12, ignore_eos=True, stop_token_ids=(end,)))[0]
    assert stopped.token_ids == plain.token_ids[: at + 1]
    assert (stopped.finish_reason, stopped.stop_reason) == ("stop", end)

    # a stop string cuts the text exactly, and is found by us
    cut = plain.text[2:5]
    shorter = model.complete([prompt], SamplingParams(max_tokens=12, ignore_eos=True, stop=(cut,)))[0]
    assert shorter.text == plain.text[: plain.text.index(cut)]
    assert (shorter.finish_reason, shorter.stop_reason) == ("stop", cut)

    # a bias of 100 on a token makes it the only one; -100 on the best one removes it
    chosen = model.complete([prompt], SamplingParams(max_tokens=3, ignore_eos=True, logit_bias=((9, 100.0),)))[0]
    assert chosen.token_ids == (9, 9, 9)
    first = plain.token_ids[0]
    banned = model.complete([prompt], SamplingParams(max_tokens=1, ignore_eos=True, logit_bias=((first, -100.0),)))[0]
    assert banned.token_ids[0] == max((i for i in range(len(rows[0])) if i != first), key=rows[0].__getitem__)

    # deltas join to the whole
    deltas = list(model.stream_batch([prompt, prompt], SamplingParams(max_tokens=12, ignore_eos=True)))
    for index in (0, 1):
        assert "".join(d.text for d in deltas if d.index == index) == plain.text
        assert tuple(i for d in deltas if d.index == index for i in d.token_ids) == plain.token_ids

    # several answers of one prompt
    drawn = model.complete([prompt], SamplingParams(max_tokens=6, ignore_eos=True, temperature=1.5, n=3))[0]
    assert len(drawn.alternatives) == 2
    assert len({drawn.token_ids, *(a.token_ids for a in drawn.alternatives)}) > 1

    # the prompt that the engine saw is compared with ours
    wrong = replace(prompt, token_ids=(*prompt.token_ids[:-1], prompt.token_ids[-1] - 1))
    if engine == "vllm":  # takes canonical ids, so that the expanded ones can differ
        refused = model.complete([wrong], SamplingParams(max_tokens=2))[0]
        assert refused.finish_reason == "error"
        assert f"position {len(prompt) - 1}" in (refused.error or "")
        with pytest.raises(OptionError, match=r"temperature 0\.001.*raises values under 0\.01"):
            ask(temperature=0.001)
        with pytest.raises(OptionError, match="bad_words"):
            ask(bad_words=["x"])
    else:
        with pytest.raises(OptionError, match=r"sglang cannot honour repetition_penalty 1\.1"):
            ask(repetition_penalty=1.1)
        with pytest.raises(OptionError, match="top_k and top_p together"):
            ask(temperature=1.0, top_k=5, top_p=0.5)
        with pytest.raises(OptionError, match="prompt_logprobs"):
            ask(prompt_logprobs=1)
    assert model.complete([prompt], SamplingParams(max_tokens=12, ignore_eos=True))[0].token_ids == plain.token_ids


def test_vllm_penalises_as_specified(start: Start, tiny: Tiny) -> None:
    """Prompt and answer count for repetition_penalty; native is the reference, its own tests hold it to the spec."""
    params = SamplingParams(
        max_tokens=16, ignore_eos=True, repetition_penalty=1.3, presence_penalty=0.4, frequency_penalty=0.3
    )
    got = {}
    for engine in ("native", "vllm"):
        model = start(engine, tiny("qwen2"), enforce_eager=engine == "vllm")
        got[engine] = model.complete([model.prepare(HELLO)], params)[0].token_ids
    assert got["vllm"] == got["native"]


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_unknown_engine_options_get_the_nearest(start: Start, tiny: Tiny, engine: str) -> None:
    wrong = {"vllm": "enable_prefix_cachin", "sglang": "disable_radix_cach"}[engine]
    with pytest.raises(OptionError, match=rf"{engine} has no option '{wrong}'; did you mean {engine}\.{wrong}"):
        start(engine, tiny("qwen2"), extra={wrong: True})
