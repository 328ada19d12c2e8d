"""Sampling: precedence, origins, notes, ranges and spellings (PAINS 1–3)."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from visavis.errors import ContextLengthError, OptionError
from visavis.sampling import DEFAULT_MAX_TOKENS, ResolvedSampling, SamplingParams, resolve

QWEN2_5_VL = {  # generation_config.json of Qwen/Qwen2.5-VL-7B-Instruct
    "bos_token_id": 151643,
    "pad_token_id": 151643,
    "do_sample": True,
    "eos_token_id": [151645, 151643],
    "repetition_penalty": 1.05,
    "temperature": 0.1,
    "top_p": 0.001,
    "top_k": 1,
    "transformers_version": "4.49.0",
}


def settle(request: dict[str, Any] | None = None, **more: Any) -> ResolvedSampling:
    arguments: dict[str, Any] = {"prompt_tokens": 10, "max_model_len": 4096} | more
    return resolve(SamplingParams.from_mapping(request) if request is not None else None, **arguments)


# ---- nobody says anything ------------------------------------------------------------------------------------------


def test_nothing_said_is_neutral_greedy_and_says_so() -> None:
    got = settle(eos_token_ids=(7,))
    assert got.greedy
    assert (got.temperature, got.top_p, got.top_k, got.min_p) == (0.0, 1.0, 0, 0.0)
    assert (got.repetition_penalty, got.presence_penalty, got.frequency_penalty) == (1.0, 0.0, 0.0)
    assert (got.n, got.seed, got.min_tokens, got.ignore_eos, got.special_tokens) == (1, 0, 0, False, "structural")
    assert (got.stop, got.stop_token_ids, got.logit_bias, got.bad_words) == ((), (), (), ())
    assert got.origins == {"max_tokens": "default cap 1024", "eos_token_ids": "model"}
    assert got.notes == ()


def test_the_answer_may_fill_the_context_up_to_a_stated_cap() -> None:
    assert settle(prompt_tokens=4000).max_tokens == 96
    assert settle(prompt_tokens=4000).origins["max_tokens"] == "rest of the context"
    assert settle(prompt_tokens=4096 - DEFAULT_MAX_TOKENS).origins["max_tokens"] == "rest of the context"
    far = settle(max_model_len=100_000)
    assert (far.max_tokens, far.origins["max_tokens"]) == (1024, "default cap 1024")


def test_min_tokens_raises_the_default_cap() -> None:
    got = settle({"min_tokens": 2000})
    assert (got.max_tokens, got.min_tokens) == (2000, 2000)
    assert got.origins["max_tokens"] == "default cap 1024, raised to min_tokens"


# ---- precedence ----------------------------------------------------------------------------------------------------


def test_request_beats_user_config_beats_generation_config_beats_neutral() -> None:
    got = settle(
        {"temperature": 0.7},
        user_config=SamplingParams(temperature=0.5, top_p=0.8),
        generation_config={"do_sample": True, "temperature": 0.3, "top_p": 0.4, "min_p": 0.05, "max_new_tokens": 99},
    )
    assert (got.temperature, got.top_p, got.min_p, got.max_tokens, got.top_k) == (0.7, 0.8, 0.05, 99, 0)
    assert {k: got.origins[k] for k in ("temperature", "top_p", "min_p", "max_tokens")} == {
        "temperature": "request",
        "top_p": "user config",
        "min_p": "generation_config.json",
        "max_tokens": "generation_config.json",
    }
    assert "top_k" not in got.origins


def test_the_folders_file_decides_nothing_unless_asked() -> None:
    assert settle().repetition_penalty == 1.0
    assert settle(generation_config=None).temperature == 0.0
    asked = settle(generation_config=QWEN2_5_VL)
    assert asked.repetition_penalty == 1.05
    assert asked.origins["repetition_penalty"] == "generation_config.json"


def test_qwen2_5_vls_own_file_is_greedy_in_disguise_and_the_notes_say_why() -> None:
    got = settle(generation_config=QWEN2_5_VL)
    assert got.greedy
    assert got.origins["temperature"] == "top_k 1 (generation_config.json)"
    (note,) = got.notes
    assert note == "top_k 1 keeps one token, which is greedy: temperature 0.1, top_p 0.001 changes nothing"


def test_a_folder_that_samples_without_a_temperature_means_one() -> None:
    got = settle(generation_config={"do_sample": True, "top_p": 0.8})
    assert (got.temperature, got.top_p) == (1.0, 0.8)


def test_a_folder_without_do_sample_is_greedy_as_in_transformers() -> None:
    got = settle(generation_config={"temperature": 0.6, "top_p": 0.9})
    assert got.greedy
    assert got.notes == (
        "generation_config.json has temperature 0.6, top_p 0.9 without do_sample: not used, as in transformers",
    )


def test_what_a_folder_asks_for_and_nobody_does_is_said() -> None:
    got = settle(
        generation_config={"num_beams": 4, "no_repeat_ngram_size": 3, "length_penalty": 1.0, "typical_p": None}
    )
    assert got.notes == (
        "generation_config.json has num_beams 4: not supported, not used",
        "generation_config.json has no_repeat_ngram_size 3: not supported, not used",
    )


def test_broken_values_in_the_folder_name_the_folder() -> None:
    with pytest.raises(OptionError, match=r"generation_config\.json: temperature 'hot' is not valid"):
        settle(generation_config={"do_sample": True, "temperature": "hot"})
    with pytest.raises(OptionError, match=r"top_p 1\.5 \(generation_config\.json\) is out of range: 0 to 1"):
        settle(generation_config={"do_sample": True, "top_p": 1.5})


# ---- the many spellings of greedy and of "off" ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_", "temperature_origin", "note"),
    [
        ({"temperature": 0}, "request", None),
        ({"temperature": 0.0, "top_p": 1.0, "top_k": -1, "min_p": 0}, "request", None),
        ({"temperature": 1e-6}, "request", None),
        ({"temperature": 0, "top_p": 0.9}, "request", "temperature 0 is greedy: top_p 0.9 changes nothing"),
        ({"temperature": 1e-6, "seed": 7}, "request", "temperature 1e-06 is greedy: seed 7 changes nothing"),
        (
            {"temperature": 1.5, "top_k": 1},
            "top_k 1 (request)",
            "top_k 1 keeps one token, which is greedy: temperature 1.5 changes nothing",
        ),
        (
            {"temperature": 0.7, "top_p": 0, "top_k": 40},
            "top_p 0 (request)",
            "top_p 0 keeps one token, which is greedy: temperature 0.7, top_k 40 changes nothing",
        ),
        (
            {"temperature": 0.7, "min_p": 1.0},
            "min_p 1 (request)",
            "min_p 1 keeps one token, which is greedy: temperature 0.7 changes nothing",
        ),
        (
            {"top_p": 0.9, "top_k": 40},
            None,
            "temperature was not given, and neutral is greedy: top_p 0.9, top_k 40 changes nothing",
        ),
        ({"seed": 3}, None, "temperature was not given, and neutral is greedy: seed 3 changes nothing"),
        ({"do_sample": False}, "request", None),
        (
            {"do_sample": False, "top_k": 50},
            "request",
            "temperature 0 is greedy: top_k 50 changes nothing",
        ),
    ],
)
def test_greedy_in_every_spelling(request_: dict[str, Any], temperature_origin: str | None, note: str | None) -> None:
    got = settle(request_)
    assert got.greedy
    assert (got.temperature, got.top_p, got.top_k, got.min_p) == (0.0, 1.0, 0, 0.0)
    assert got.origins.get("temperature") == temperature_origin
    assert got.notes == ((note,) if note else ())


def test_a_value_made_moot_is_no_longer_called_the_requests() -> None:
    got = settle({"temperature": 0, "top_p": 0.9})
    assert got.as_dict()["settings"]["top_p"] == {"value": 1.0, "origin": "neutral, as the answer is greedy"}


@pytest.mark.parametrize("off", [0, -1])
def test_top_k_off_in_both_spellings(off: int) -> None:
    got = settle({"temperature": 0.8, "top_k": off})
    assert (got.top_k, got.temperature, got.notes) == (0, 0.8, ())


def test_several_greedy_answers_are_called_what_they_are() -> None:
    got = settle({"n": 4})
    assert got.n == 4
    assert got.notes == ("temperature was not given, and neutral is greedy: all 4 answers will be the same",)
    assert settle({"n": 4, "temperature": 1}).notes == ()


def test_do_sample_true_alone_is_temperature_one() -> None:
    assert settle({"do_sample": True}).temperature == 1.0
    assert settle({"do_sample": True, "temperature": 0.3}).temperature == 0.3


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize(("do_sample", "temperature"), [(False, 0.7), (True, 0.0)])
def test_do_sample_against_the_temperature_is_refused_in_either_order(
    do_sample: bool, temperature: float, order: int
) -> None:
    pairs = [("do_sample", do_sample), ("temperature", temperature)][::order]
    with pytest.raises(OptionError, match=r"do_sample .* and temperature .* disagree"):
        SamplingParams.from_mapping(dict(pairs))


# ---- seeds ---------------------------------------------------------------------------------------------------------


def test_a_sampled_answer_without_a_seed_gets_one_that_is_shown() -> None:
    got = [settle({"temperature": 1}) for _ in range(8)]
    assert all(0 <= g.seed < 2**31 and g.origins["seed"] == "drawn at random" for g in got)
    assert len({g.seed for g in got}) > 1
    assert settle({"temperature": 1}, draw_seed=False).seed == 0
    assert settle({"temperature": 1, "seed": 5}).seed == 5
    assert settle({"temperature": 1, "seed": 0}).origins["seed"] == "request"


# ---- lengths -------------------------------------------------------------------------------------------------------


def test_max_tokens_beyond_the_context_is_cut_and_said() -> None:
    got = settle({"max_tokens": 500}, prompt_tokens=3996)
    assert got.max_tokens == 100
    assert got.origins["max_tokens"] == "request, cut to the rest of the context"
    assert got.notes == ("max_tokens 500 cut to 100: the context is 4096 tokens",)


def test_a_prompt_that_fills_the_context_is_refused_with_both_numbers() -> None:
    assert settle(prompt_tokens=4095).max_tokens == 1
    with pytest.raises(ContextLengthError, match="4096 tokens and the context is 4096"):
        settle(prompt_tokens=4096)


def test_min_above_max_is_refused_with_the_origins_of_both() -> None:
    with pytest.raises(OptionError, match=r"min_tokens 20 \(request\) is more than max_tokens 10 \(user config\)"):
        settle({"min_tokens": 20}, user_config=SamplingParams(max_tokens=10))
    with pytest.raises(OptionError, match=r"min_tokens 200 \(request\) .* max_tokens 96 \(rest of the context\)"):
        settle({"min_tokens": 200}, prompt_tokens=4000)


# ---- ranges --------------------------------------------------------------------------------------------------------

NAN = math.nan


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("max_tokens", 0),
        ("max_tokens", -5),
        ("min_tokens", -1),
        ("temperature", -0.1),
        ("temperature", 101),
        ("temperature", NAN),
        ("temperature", math.inf),
        ("top_p", -0.1),
        ("top_p", 1.01),
        ("top_p", NAN),
        ("top_k", -2),
        ("min_p", 1.2),
        ("repetition_penalty", 0),
        ("repetition_penalty", -1),
        ("presence_penalty", 2.1),
        ("frequency_penalty", -2.1),
        ("seed", -1),
        ("seed", 2**63),
        ("n", 0),
        ("n", 129),
        ("logprobs", -1),
        ("logprobs", 21),
        ("prompt_logprobs", 21),
    ],
)
def test_out_of_range_names_option_value_and_origin(name: str, bad: float) -> None:
    with pytest.raises(OptionError, match=rf"^{name} .*\(request\) is out of range"):
        settle({name: bad})


@pytest.mark.parametrize(
    ("name", "good"),
    [
        ("temperature", 100),
        ("top_p", 1),
        ("top_k", 10**9),
        ("repetition_penalty", 0.5),
        ("presence_penalty", -2),
        ("frequency_penalty", 2),
        ("seed", 2**63 - 1),
        ("n", 128),
        ("logprobs", 0),
        ("logprobs", 20),
    ],
)
def test_the_ends_of_a_range_are_in_it(name: str, good: float) -> None:
    assert getattr(settle({"temperature": 1, name: good}), name) == good


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("temperature", "hot"),
        ("temperature", True),
        ("max_tokens", 1.5),
        ("max_tokens", "many"),
        ("max_tokens", True),
        ("max_tokens", NAN),
        ("max_tokens", math.inf),
        ("stop", 7),
        ("stop", [""]),
        ("stop", ""),
        ("stop", ["a", 3]),
        ("stop", {"a": 1}),
        ("stop_token_ids", "151645"),
        ("stop_token_ids", [1.5]),
        ("stop_token_ids", [True]),
        ("stop_token_ids", {"1": 2}),
        ("logit_bias", [1, 2]),
        ("logit_bias", {"x": 1}),
        ("logit_bias", {1.5: 1}),
        ("logit_bias", [[5, 1], [5, 2]]),
        ("logit_bias", "5:1"),
        ("ignore_eos", "yes"),
        ("ignore_eos", 1),
        ("special_tokens", "some"),
        ("special_tokens", True),
        ("do_sample", "yes"),
    ],
)
def test_wrong_types_are_refused_by_name(name: str, bad: Any) -> None:
    with pytest.raises(OptionError, match=rf"^here: {name} .* is not valid: "):
        SamplingParams.from_mapping({name: bad}, where="here")


def test_ids_and_biases_have_ranges_too() -> None:
    with pytest.raises(OptionError, match="stop_token_ids -1"):
        settle({"stop_token_ids": [5, -1]})
    with pytest.raises(OptionError, match=r"logit_bias -3 \(request\) is no token of this model: ids begin at 0"):
        settle({"logit_bias": {-3: 1}})
    with pytest.raises(OptionError, match=r"logit_bias 3:101\.0"):
        settle({"logit_bias": {3: 101}})
    with pytest.raises(OptionError, match="logit_bias 3:nan"):
        settle({"logit_bias": {3: NAN}})


def test_a_long_value_is_never_echoed_whole() -> None:
    with pytest.raises(OptionError) as caught:
        SamplingParams.from_mapping({"temperature": "x" * 10_000})
    assert len(str(caught.value)) < 200


# ---- spellings -----------------------------------------------------------------------------------------------------


def test_an_unknown_option_is_refused_with_the_nearest() -> None:
    with pytest.raises(OptionError, match="unknown sampling option 'temprature'; did you mean temperature"):
        SamplingParams.from_mapping({"temprature": 1})
    with pytest.raises(OptionError, match="unknown sampling option 'max_token'; did you mean max_tokens"):
        SamplingParams.from_mapping({"max_token": 1})
    with pytest.raises(OptionError, match="known: bad_words, "):
        SamplingParams.from_mapping({"best_of": 2})


@pytest.mark.parametrize("alias", ["max_new_tokens", "max_completion_tokens", "max_tokens"])
def test_length_in_every_spelling(alias: str) -> None:
    assert SamplingParams.from_mapping({alias: 12}).max_tokens == 12


def test_two_spellings_must_agree() -> None:
    assert SamplingParams.from_mapping({"max_tokens": 5, "max_new_tokens": 5.0}).max_tokens == 5
    assert SamplingParams.from_mapping({"max_tokens": None, "max_new_tokens": 5}).max_tokens == 5
    with pytest.raises(OptionError, match="max_tokens and max_new_tokens are one option and disagree"):
        SamplingParams.from_mapping({"max_tokens": 5, "max_new_tokens": 6})


def test_outside_types_are_understood() -> None:
    got = SamplingParams.from_mapping(
        {
            "temperature": "0.5",
            "max_tokens": 8.0,
            "stop": "END",
            "bad_words": ["x", "y"],
            "stop_token_ids": [3, 4],
            "logit_bias": {"12": 5, "13": -1.5},
        }
    )
    assert (got.temperature, got.max_tokens, got.stop, got.bad_words) == (0.5, 8, ("END",), ("x", "y"))
    assert (got.stop_token_ids, got.logit_bias) == ((3, 4), ((12, 5.0), (13, -1.5)))
    assert SamplingParams.from_mapping({"stop_token_ids": 3}).stop_token_ids == (3,)
    assert SamplingParams.from_mapping({"stop_strings": ["a"]}).stop == ("a",)


def test_the_constructor_checks_types_as_well() -> None:
    stop: Any = "END"
    assert SamplingParams(stop=stop).stop == ("END",)
    hot: Any = "hot"
    with pytest.raises(OptionError, match="temperature 'hot'"):
        SamplingParams(temperature=hot)


# ---- what engines read ---------------------------------------------------------------------------------------------


def test_end_ids_are_the_models_and_the_users() -> None:
    got = settle({"stop_token_ids": [9]}, eos_token_ids=(2, 3))
    assert got.end_token_ids == (2, 3, 9)
    assert settle({"stop_token_ids": [9], "ignore_eos": True}, eos_token_ids=(2, 3)).end_token_ids == (9,)


def test_as_dict_is_json_with_an_origin_for_every_value() -> None:
    got = settle({"temperature": 0, "top_p": 0.5, "stop": ["a"]}, eos_token_ids=(2,)).as_dict()
    read = json.loads(json.dumps(got))
    assert read["settings"]["temperature"] == {"value": 0.0, "origin": "request"}
    assert read["settings"]["stop"] == {"value": ["a"], "origin": "request"}
    assert read["settings"]["eos_token_ids"] == {"value": [2], "origin": "model"}
    assert read["settings"]["min_p"] == {"value": 0.0, "origin": "neutral"}
    assert read["notes"] == ["temperature 0 is greedy: top_p 0.5 changes nothing"]
    assert "origins" not in read["settings"]
    assert set(read["settings"]) == set(ResolvedSampling.__dataclass_fields__) - {"origins", "notes"}


# ---- token ids, checked against the model ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_", "named"),
    [
        ({"logit_bias": {500: 1.0}}, "logit_bias 500"),
        ({"logit_bias": {3: 1.0, 999999: -5}}, "logit_bias 999999"),
        ({"stop_token_ids": [5, 500]}, "stop_token_ids 500"),
        ({"bad_words_ids": [[1, 2], [3, 501]]}, "bad_words_ids 501"),
        ({"bad_words_ids": [[-1]]}, "bad_words_ids -1"),
    ],
)
def test_ids_the_model_does_not_have_are_refused_with_the_ones_it_has(request_: dict[str, Any], named: str) -> None:
    with pytest.raises(OptionError, match=rf"^{named} \(request\) is no token of this model: its ids are 0 to 499$"):
        settle(request_, vocab_size=500)


def test_the_last_id_of_the_model_is_one() -> None:
    got = settle({"logit_bias": {499: 1.0}, "stop_token_ids": [499], "bad_words_ids": [[499]]}, vocab_size=500)
    assert (got.stop_token_ids, got.bad_words_ids) == ((499,), ((499,),))


def test_bad_words_are_spelled_as_ids_at_the_beginning_and_behind_a_space() -> None:
    spelled = {"cat": [7], " cat": [8, 9], "dog": [5], " dog": [5]}
    got = settle({"bad_words": ["cat", "dog"], "bad_words_ids": [[3, 4], [7]]}, encode=spelled.__getitem__)
    assert got.bad_words == ("cat", "dog")
    assert got.bad_words_ids == ((3, 4), (7,), (8, 9), (5,))
    text_only = settle({"bad_words": "cat"}, encode=spelled.__getitem__)
    assert text_only.bad_words_ids == ((7,), (8, 9))
    assert text_only.origins["bad_words_ids"] == "bad_words (request)"


def test_banning_the_end_token_is_refused_with_the_way_out() -> None:
    with pytest.raises(OptionError, match=r"bad_words_ids 7 .*end token; give ignore_eos or min_tokens"):
        settle({"bad_words_ids": [[7]]}, eos_token_ids=(7,))
    assert settle({"bad_words_ids": [[7, 8]]}, eos_token_ids=(7,)).bad_words_ids == ((7, 8),)


@pytest.mark.parametrize("bad", ["x", [1, 2], [[]], [["x"]], 5, [[1.5]]])
def test_bad_words_ids_need_lists_of_ids(bad: Any) -> None:
    with pytest.raises(OptionError, match=r"bad_words_ids .* is not valid"):
        SamplingParams.from_mapping({"bad_words_ids": bad})
