"""Structured output through the engine: the bundled model, whose answers are random enough at a high temperature."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import visavis
from tests.unit.engine.helpers import text_prompt
from visavis.engine import EngineConfig, NativeEngine
from visavis.engine.structured import Grammars, allowed_bias
from visavis.errors import MissingExtraError, OptionError
from visavis.sampling import ResolvedSampling, SamplingParams, StructuredOutput

pytestmark = pytest.mark.engines

FOLDER = Path(visavis.__file__).parent / "assets" / "tiny-screen"
CONFIG = json.loads((FOLDER / "config.json").read_text())
CONFIG_VOCAB = int(CONFIG.get("text_config", CONFIG)["vocab_size"])
EOS = json.loads((FOLDER / "generation_config.json").read_text())["eos_token_id"]
ENDS = tuple(EOS) if isinstance(EOS, list) else (EOS,)
BOX = {
    "type": "object",
    "properties": {
        "label": {"type": "string", "maxLength": 8},
        "box": {
            "type": "array",
            "items": {"type": "integer", "minimum": 0, "maximum": 999},
            "minItems": 4,
            "maxItems": 4,
        },
        "kind": {"enum": ["button", "link"]},
    },
    "required": ["label", "box", "kind"],
    "additionalProperties": False,
}


def structured(**values: Any) -> StructuredOutput:
    found = SamplingParams.from_mapping(values).structured
    assert found is not None
    return found


@pytest.fixture(scope="module")
def engine() -> Iterator[NativeEngine]:
    engine = make()
    yield engine
    engine.close()


def make(**settings: Any) -> NativeEngine:
    return NativeEngine(FOLDER, CONFIG, EngineConfig(**{"kernels": "torch", "max_model_len": 512, **settings}))


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(FOLDER / "tokenizer.json"))


def run(engine: NativeEngine, asked: list[ResolvedSampling], ids: list[int] | None = None) -> list[dict[str, Any]]:
    for i, sampling in enumerate(asked):
        prompt = text_prompt([*(ids or [65, 66, 67]), 70 + i], axes=engine.model_config.rope.num_axes)
        engine.add_request(str(i), prompt, sampling)
    answers: list[dict[str, Any]] = [{"ids": [], "why": None, "stop": None, "error": None} for _ in asked]
    while engine.has_work:
        for output in engine.step():
            mine = answers[int(output.request_id)]
            mine["ids"] += output.token_ids
            mine |= {"why": output.finish_reason, "stop": output.stop_reason, "error": output.error}
    assert engine.pool.num_free == engine.pool.num_blocks
    return answers


def hot(seed: int, **values: Any) -> ResolvedSampling:
    return ResolvedSampling(**{"max_tokens": 300, "temperature": 2.0, "seed": seed, "eos_token_ids": ENDS, **values})


def text(tokenizer: Any, answer: dict[str, Any]) -> str:
    return str(tokenizer.decode([i for i in answer["ids"] if i not in ENDS], skip_special_tokens=False))


def test_every_answer_is_what_the_schema_says_and_ends_by_itself(engine: NativeEngine, tokenizer: Any) -> None:
    answers = run(engine, [hot(seed, structured=structured(json_schema=BOX)) for seed in range(12)])
    found = set()
    for answer in answers:
        assert (answer["error"], answer["why"], answer["stop"]) == (None, "stop", None)
        got = json.loads(text(tokenizer, answer))
        assert list(got) == ["label", "box", "kind"]
        assert len(got["label"]) <= 8
        assert len(got["box"]) == 4
        assert all(type(v) is int and 0 <= v <= 999 for v in got["box"])
        assert got["kind"] in ("button", "link")
        found.add(json.dumps(got))
    assert len(found) == 12


def test_expressions_choices_and_grammars_are_kept_to(engine: NativeEngine, tokenizer: Any) -> None:
    kinds: list[tuple[StructuredOutput, Any]] = [
        (structured(regex=r"\d{3}-[a-f]{2,5}x"), re.compile(r"\d{3}-[a-f]{2,5}x").fullmatch),
        (structured(choice=["yes", "no", "not at all"]), ["yes", "no", "not at all"].__contains__),
        (structured(grammar='start: "<" /[a-d]{1,4}/ ">"'), re.compile("<[a-d]{1,4}>").fullmatch),
    ]
    for seed in range(6):
        for (_, matches), answer in zip(
            kinds, run(engine, [hot(seed, structured=kind) for kind, _ in kinds]), strict=True
        ):
            assert answer["why"] == "stop"  # after "no", which "not at all" begins with, by an end token
            assert matches(text(tokenizer, answer)), text(tokenizer, answer)


def test_each_choice_can_be_had_by_a_bias_for_it(engine: NativeEngine, tokenizer: Any) -> None:
    choices = ["left", "right", "up"]
    for choice in choices:
        bias = tuple((i, 50.0) for i in dict.fromkeys(tokenizer.encode(choice).ids))
        sampling = ResolvedSampling(max_tokens=20, logit_bias=bias, structured=structured(choice=choices))
        assert text(tokenizer, run(engine, [sampling])[0]) == choice


def test_an_answer_is_the_same_alone_in_a_batch_and_after_a_preemption(engine: NativeEngine) -> None:
    asked = [
        hot(1, max_tokens=110, structured=structured(json_schema=BOX)),
        hot(2, max_tokens=40),
        hot(3, max_tokens=110, structured=structured(regex="[a-z ]{30,60}"), repetition_penalty=1.2),
        hot(4, max_tokens=110, structured=structured(json_schema=BOX), top_k=50, logprobs=2),
        ResolvedSampling(max_tokens=40),
    ]
    together = run(engine, asked)
    alone = []
    for i, sampling in enumerate(asked):
        engine.add_request("0", text_prompt([65, 66, 67, 70 + i], axes=engine.model_config.rope.num_axes), sampling)
        ids: list[int] = []
        while engine.has_work:
            ids += [token for output in engine.step() for token in output.token_ids]
        alone.append(ids)
    assert [answer["ids"] for answer in together] == alone
    tight = make(block_size=4, num_blocks=32, max_model_len=128, max_num_batched_tokens=12)
    assert [answer["ids"] for answer in run(tight, asked)] == alone
    assert tight.scheduler.num_preemptions > 0
    tight.close()


def test_a_schema_that_makes_no_sense_is_refused_on_arrival_and_the_others_go_on(engine: NativeEngine) -> None:
    prompt = text_prompt([65], axes=engine.model_config.rope.num_axes)
    with pytest.raises(OptionError, match=r"structured: json_schema .* cannot be used: Invalid type: objekt"):
        engine.add_request("bad", prompt, hot(1, structured=structured(json_schema={"type": "objekt"})))
    assert not engine.has_work
    assert run(engine, [hot(1, structured=structured(choice=["a"]))])[0]["why"] == "stop"


# ---- with other options ----------------------------------------------------------------------------------------------


def test_the_end_is_allowed_only_where_the_grammar_allows_it(engine: NativeEngine) -> None:
    """A bias of 100 for the end ends the answer as soon as it may: after the three letters."""
    bias = tuple((end, 100.0) for end in ENDS)
    (answer,) = run(engine, [hot(1, logit_bias=bias, structured=structured(regex="[a-z]{3,9}"))])
    assert (answer["why"], answer["stop"]) == ("stop", answer["ids"][-1])
    assert answer["ids"][-1] in ENDS
    ignoring = hot(1, logit_bias=bias, structured=structured(regex="[a-z]{3,9}"), ignore_eos=True)
    (answer,) = run(engine, [ignoring])
    assert (answer["why"], answer["stop"]) == ("stop", None)
    assert not set(answer["ids"]) & set(ENDS)


def test_min_tokens_delays_the_end_but_a_complete_answer_ends(engine: NativeEngine, tokenizer: Any) -> None:
    bias = tuple((end, 100.0) for end in ENDS)
    (answer,) = run(engine, [hot(1, min_tokens=6, logit_bias=bias, structured=structured(regex="[ab]{1,30}"))])
    assert len(answer["ids"]) == 7
    assert answer["ids"][-1] in ENDS
    (answer,) = run(engine, [hot(1, min_tokens=200, structured=structured(choice=["yes"]))])
    assert (answer["why"], text(tokenizer, answer)) == ("stop", "yes")


def test_a_stop_token_ends_the_answer_in_the_middle(engine: NativeEngine, tokenizer: Any) -> None:
    stop = tokenizer.token_to_id("b")
    (answer,) = run(engine, [hot(1, stop_token_ids=(stop,), structured=structured(regex="ab{5}"))])
    if answer["ids"][-1] == stop:  # not a longer token that holds it
        assert answer["stop"] == stop
    single = [i for i in range(CONFIG_VOCAB) if set(tokenizer.decode([i])) == {"b"} and i != stop]
    banned = tuple((i,) for i in single)
    (answer,) = run(
        engine, [hot(1, stop_token_ids=(stop,), bad_words_ids=banned, structured=structured(regex="[ab]{9}"))]
    )
    assert (answer["stop"] == stop) == (stop in answer["ids"])


def test_bans_that_leave_nothing_fail_that_request_alone(engine: NativeEngine, tokenizer: Any) -> None:
    banned = tuple((i,) for i in range(CONFIG_VOCAB) if "y" in tokenizer.decode([i]))
    asked = [
        hot(1, bad_words_ids=banned, structured=structured(choice=["yes"])),
        hot(1, structured=structured(choice=["yes"])),
    ]
    bad, good = run(engine, asked)
    assert (bad["ids"], bad["why"]) == ([], "error")
    assert "bans leave no token" in bad["error"]
    assert (good["why"], good["error"]) == ("stop", None)


def test_an_answer_that_loves_blanks_still_ends(engine: NativeEngine, tokenizer: Any) -> None:
    """Every token of blanks is made far more likely than all others: without a bound it would never go on."""
    blank = [i for i in range(CONFIG_VOCAB) if (piece := tokenizer.decode([i])) and not piece.strip()]
    assert len(blank) > 3
    sampling = ResolvedSampling(
        max_tokens=400,
        logit_bias=tuple((i, 100.0) for i in blank),
        structured=structured(
            json_schema={"type": "array", "items": {"enum": [1, 2]}, "minItems": 3, "maxItems": 3},
        ),
    )
    (answer,) = run(engine, [sampling])
    assert answer["why"] == "stop"
    assert len(json.loads(text(tokenizer, answer))) == 3


def test_broken_logits_fail_a_structured_request_as_any_other(engine: NativeEngine) -> None:
    sample = engine.sampler.sample

    def plant(logits: torch.Tensor, seqs: Any) -> Any:
        for row, seq in enumerate(seqs):
            if seq.request_id == "0" and seq.num_output_tokens == 2:
                logits[row] = torch.nan
        return sample(logits, seqs)

    engine.sampler.sample = plant  # type: ignore[method-assign]
    try:
        broken, good = run(engine, [hot(seed, structured=structured(json_schema=BOX)) for seed in (1, 2)])
    finally:
        engine.sampler.sample = sample  # type: ignore[method-assign]
    assert "not finite" in broken["error"]
    assert good["why"] == "stop"


# ---- masks -----------------------------------------------------------------------------------------------------------


def test_the_mask_allows_what_the_grammar_takes_and_nothing_else(tokenizer: Any) -> None:
    """Each token of the vocabulary is tried by itself; in batches of 1 and 3."""
    grammars = Grammars(CONFIG_VOCAB, (FOLDER / "tokenizer.json").read_text)
    asked = [structured(json_schema=BOX), structured(regex="[a-c ]*z?"), structured(choice=["the", "there"])]
    taken: list[list[str]] = [['{"label"', ':"s', "e"], ["ab", "z"], ["the"]]
    states = [grammars.start(one, ResolvedSampling(max_tokens=1, eos_token_ids=ENDS)) for one in asked]
    for step in range(4):
        together = allowed_bias(states, CONFIG_VOCAB, torch.device("cpu"))
        for row, state in enumerate(states):
            alone = allowed_bias([state], CONFIG_VOCAB, torch.device("cpu"))[0]
            assert torch.equal(alone, together[row])
            allowed = set(np.flatnonzero((alone == 0).numpy()).tolist())
            expected = {i for i in range(CONFIG_VOCAB) if i not in ENDS and state._matcher.validate_tokens([i]) == 1}
            assert allowed - set(ENDS) == expected
            assert (set(ENDS) <= allowed) == state.accepting
        for state, words in zip(states, taken, strict=True):
            for token_id in tokenizer.encode(words[step]).ids if step < len(words) else ():
                state.take(token_id)
                assert state.error is None


def test_a_token_outside_the_grammar_is_an_error_of_that_answer() -> None:
    grammars = Grammars(CONFIG_VOCAB, (FOLDER / "tokenizer.json").read_text)
    state = grammars.start(structured(regex="[0-9]+"), ResolvedSampling(max_tokens=1, eos_token_ids=ENDS))
    state.take(70)
    assert state.error is not None
    assert not state.complete
    assert bool((allowed_bias([state], CONFIG_VOCAB, torch.device("cpu")) == -torch.inf).all())


def test_without_the_library_a_request_is_refused_with_the_line_that_installs_it(
    engine: NativeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    from visavis.engine import structured as module

    def missing() -> Any:
        raise MissingExtraError("structured output", "structured")

    monkeypatch.setattr(module, "library", missing)
    engine.grammars._tokenizers.clear()
    with pytest.raises(MissingExtraError, match="pip install"):
        run(engine, [hot(1, structured=structured(regex="a"))])
