"""Settings of one backend alone: what is understood, what is refused, and how."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from visavis.backends.options import EngineOptions
from visavis.chat.types import Conversation, Image, Message, PixelLimits, Text
from visavis.compare.prepare import with_limits, with_system
from visavis.compare.settings_file import find_settings_file, read_settings_file
from visavis.compare.setups import make_setup, options_of
from visavis.errors import OptionError
from visavis.sampling import SamplingParams


def test_own_settings_stand_over_what_holds_for_all() -> None:
    setup = make_setup("hf", "hf", {"max_new_tokens": 128}, SamplingParams(max_tokens=16, top_k=5))
    assert setup.sampling == SamplingParams(max_tokens=128, top_k=5)
    assert setup.said == {"max_tokens"}


def test_words_of_peoples_scripts() -> None:
    own = {"skip_special_tokens": False, "do_sample": False, "torch_dtype": "bfloat16", "max_pixels": "1280*28*28"}
    setup = make_setup("a", "hf", own, SamplingParams())
    assert setup.sampling == SamplingParams(special_tokens="all", temperature=0.0)
    assert setup.pixels == PixelLimits(max_pixels=1003520)
    assert options_of(EngineOptions(), setup.engine).dtype == "bfloat16"
    assert make_setup("a", "hf", {"skip_special_tokens": True}, SamplingParams()).sampling.special_tokens == "none"


def test_an_engines_own_option_and_seed() -> None:
    own = {"attn_implementation": "eager", "engine_seed": 7, "seed": 3}
    setup = make_setup("a", "hf", own, SamplingParams())
    options = options_of(EngineOptions(extra={"max_memory": 1}), setup.engine)
    assert (options.seed, options.extra) == (7, {"max_memory": 1, "attn_implementation": "eager"})
    assert setup.sampling.seed == 3


@pytest.mark.parametrize(
    ("backend", "own", "said"),
    [
        ("hf", {"repetition_penality": 1.1}, "did you mean repetition_penalty?"),
        ("vllm", {"repetition_penality": 1.1}, "did you mean repetition_penalty?"),
        ("native", {"blok_size": 32}, "did you mean block_size?"),
        ("hf", {"attn_implementaton": "x"}, "did you mean attn_implementation?"),
        ("hf", {"special_tokens": "some"}, "structural"),
        ("hf", {"skip_special_tokens": "no"}, "true or false"),
        ("hf", {"max_pixels": "many"}, "1280*28*28"),
        ("hf", {"dtype": "int3"}, "float32"),
        ("hf", {"generation_config": 1}, "true or false"),
        ("hf", {"system": 1}, "text is needed"),
        ("hf", {"n": 2}, "unknown setting 'n'"),
    ],
)
def test_refused_with_the_way_out(backend: str, own: dict[str, object], said: str) -> None:
    with pytest.raises(OptionError) as error:
        make_setup("mine", backend, own, SamplingParams())
    assert said in str(error.value)
    assert "settings of mine" in str(error.value)


def test_option_that_only_an_installed_engine_knows_is_passed_on() -> None:
    assert make_setup("v", "vllm", {"swap_space": 4}, SamplingParams()).engine == {"swap_space": 4}


def test_settings_files_in_toml_and_json(tmp_path: Path) -> None:
    tables = {"mine": {"backend": "hf", "top_k": 5}, "vllm": {"repetition_penalty": 1.05}}
    toml, plain = tmp_path / "settings.toml", tmp_path / "two.json"
    toml.write_text('[mine]\nbackend = "hf"\ntop_k = 5\n[vllm]\nrepetition_penalty = 1.05\n', "utf-8")
    plain.write_text(json.dumps(tables), "utf-8")
    assert read_settings_file(str(toml)) == read_settings_file(str(plain)) == tables
    assert find_settings_file(tmp_path) == str(toml)


@pytest.mark.parametrize(
    ("text", "said"),
    [("top_k = 5", "stands in no table"), ("[a", "not valid TOML"), ("", "one table"), ('["a.b"]\nx = 1', "no dot")],
)
def test_broken_settings_files(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "s.toml"
    file.write_text(text, "utf-8")
    with pytest.raises(OptionError, match=said):
        read_settings_file(str(file))
    with pytest.raises(OptionError, match="no such file"):
        read_settings_file(str(tmp_path / "absent.toml"))


def test_limits_of_a_backend_win_over_those_beside_the_image() -> None:
    import numpy as np

    image = Image(np.zeros((4, 4, 3), np.uint8), limits=PixelLimits(min_pixels=100, max_pixels=1000))
    fixed = Image(np.zeros((4, 4, 3), np.uint8), limits=PixelLimits(resized_height=28, resized_width=28))
    conversation = Conversation((Message("user", (image, Text("x"), fixed)),))
    one, _, two = with_limits(conversation, PixelLimits(max_pixels=500)).messages[0].parts
    assert isinstance(one, Image)
    assert isinstance(two, Image)
    assert one.limits == PixelLimits(min_pixels=100, max_pixels=500)
    assert two.limits == PixelLimits(max_pixels=500)


def test_system_prompt_replaces_the_one_there_was() -> None:
    conversation = Conversation((Message("system", (Text("old"),)), Message("user", (Text("x"),))))
    changed = with_system(conversation, "new")
    assert [(m.role, m.parts[0]) for m in changed.messages] == [("system", Text("new")), ("user", Text("x"))]
