"""Models described in files."""

from __future__ import annotations

from pathlib import Path

import pytest

import visavis
from visavis.backends.description import is_description, read_description
from visavis.errors import ModelError, OptionError

CSV = "\ufeffframework;model_family;model_name;docker_image;module;class_name\n"


def _file(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_text(text, "utf-8")
    return str(path)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "m.toml",
            'backend = "fake"\nmodel = "org/name"\nbox_format = "qwen3_vl"\nspecial_tokens = "all"\n'
            '[sampling]\nmax_tokens = 7\n[options]\ndtype = "bfloat16"\n',
        ),
        (
            "m.yaml",
            "backend: fake\nmodel: org/name\nbox_format: qwen3_vl\nspecial_tokens: all\n"
            "sampling: {max_tokens: 7}\noptions: {dtype: bfloat16}\n",
        ),
    ],
)
def test_toml_and_yaml_say_the_same(tmp_path: Path, name: str, text: str) -> None:
    found = read_description(_file(tmp_path, name, text))
    assert (found.backend, found.model, found.box_format) == ("fake", "org/name", "qwen3_vl")
    assert found.options == {"dtype": "bfloat16"}
    assert found.sampling is not None
    assert found.sampling.asked() == {"max_tokens": 7, "special_tokens": "all"}


def test_load_takes_the_file_and_one_word_changes_the_engine(tmp_path: Path) -> None:
    text = 'backend = "fake"\nbox_format = "qwen3_vl"\n[sampling]\nmax_tokens = 2\n'
    text += '[options.extra]\nanswers = "one two three"\n'
    file = _file(tmp_path, "m.toml", text)
    with visavis.load(file) as model:
        assert model.name == "fake"
        completion = model.chat("hi")
        assert (len(completion.token_ids), completion.box_format) == (2, "qwen3_vl")
        assert completion.sampling.origins["max_tokens"] == "user config"
        assert len(model.chat("hi", max_tokens=1).token_ids) == 1
    with visavis.load(file, extra={"answers": "given here"}) as model:
        assert model.chat("hi", max_tokens=50).text == "given here"
    with pytest.raises(OptionError, match="native"):
        visavis.load(file, "native")  # whose option `answers` is not


def test_a_folder_beside_the_file_is_meant(tmp_path: Path) -> None:
    (tmp_path / "weights").mkdir()
    assert read_description(_file(tmp_path, "m.toml", 'model = "weights"')).model == str(tmp_path / "weights")


@pytest.mark.parametrize(
    ("name", "text", "kind", "words"),
    [
        ("m.toml", 'modell = "x"', OptionError, "unknown key 'modell'; did you mean model"),
        ("m.toml", 'box_format = "yolo"', OptionError, "box_format 'yolo' is not one of qwen2_vl"),
        ("m.toml", "options = 5", OptionError, "options 5 must hold names and values"),
        ("m.toml", "[sampling]\ntop_kk = 5", OptionError, "did you mean top_k"),
        ("m.toml", "model = ", ModelError, "cannot be read"),
        ("m.yaml", "a: [", ModelError, "cannot be read"),
        ("m.yaml", "- a", ModelError, "keys are needed"),
        ("m.csv", CSV + "ONNX;f;m;d;x;y\n", OptionError, "line 2: framework 'ONNX' is not"),
        ("m.csv", CSV + "vLLM;f;a;d;x;y\nvLLM;f;b;d;x;y\n", OptionError, r"has 2 models; name one: .*m\.csv#a"),
        ("m.csv", CSV + "vLLM;f;a;d;x;y\nSGLang;f;a;d;x;y\n", OptionError, "stands there for sglang, vllm"),
        ("m.csv", "framework;backend;model_name\nvLLM;hf;a\n", OptionError, "framework vLLM and backend hf disagree"),
        ("m.csv", "model_name\na\n", OptionError, "framework \\(or backend\\) is missing"),
        ("m.csv", "framework,model_name\nvLLM,a\n", OptionError, "separated by ;"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(
    tmp_path: Path, name: str, text: str, kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind, match=words):
        read_description(_file(tmp_path, name, text))


def test_vlmhyperbench_tables_give_backend_and_model(tmp_path: Path) -> None:
    rows = (
        "Hugging Face;Qwen2-VL;Qwen/Qwen2-VL-2B;img;m;C\nvLLM;Qwen2-VL;Qwen/Qwen2-VL-2B;img;m;C\nvLLM;S;other;i;m;C\n"
    )
    file = _file(tmp_path, "vlm_base.csv", CSV + rows)
    assert is_description(file)
    assert is_description(f"{file}#Qwen/Qwen2-VL-2B")
    assert not is_description("Qwen/Qwen2-VL-2B")
    assert not is_description(None)
    found = read_description(f"{file}#Qwen/Qwen2-VL-2B", "vllm")
    assert (found.backend, found.model) == ("vllm", "Qwen/Qwen2-VL-2B")
    assert read_description(f"{file}#other").backend == "vllm"
    with pytest.raises(OptionError, match="no model 'othr'; did you mean other"):
        read_description(f"{file}#othr")


def test_a_file_may_say_what_holds_for_several_engines(tmp_path: Path) -> None:
    """What stands there for another engine waits until that engine is asked for."""
    text = 'backend = "fake"\n[options]\ndtype = "float32"\nvllm.enable_prefix_caching = false\n'
    text += '"fake.answers" = "from the file"\n[options.sglang]\nmax_total_tokens = 4096\n'
    file = _file(tmp_path, "m.toml", text)
    found = read_description(file)
    assert found.options["extra"] == {
        "fake.answers": "from the file",
        "vllm.enable_prefix_caching": False,
        "sglang.max_total_tokens": 4096,
    }
    assert found.options_for(("sglang",), ("fake", "vllm", "sglang")) == {
        "dtype": "float32",
        "extra": {"sglang.max_total_tokens": 4096},
    }
    with visavis.load(file) as model:
        assert model.chat("hi").text == "from the file"


def test_an_interpreter_for_the_files_backend_or_for_each(tmp_path: Path) -> None:
    one = _file(tmp_path, "one.toml", 'backend = "vllm"\npython = "/opt/vllm/bin/python"\n')
    assert read_description(one).python == {"vllm": "/opt/vllm/bin/python"}
    with pytest.raises(OptionError, match=r"--python vllm='/opt/vllm/bin/python' is no program that can be run"):
        visavis.load(one)
    both = _file(tmp_path, "two.toml", '[python]\nvllm = "~/v"\nsglang = "/s"\n')
    assert read_description(both).python == {"vllm": str(Path("~/v").expanduser()), "sglang": "/s"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('python = "/x"', "python '/x' is for which backend"),
        ('backend = "vllm"\npython = 5', "python 5 must be a path, or a table"),
        ('backend = ""', "backend '' is no name"),
        ("model = 7", "model 7 is no name"),
        ("[options]\nmax_modl_len = 5", r"m\.toml: unknown engine option 'max_modl_len'; did you mean max_model_len"),
        ('[options]\ndtype = "int3"', r"m\.toml: dtype 'int3' is not valid"),
        ('backend = "fake"\n[options]\nvlm.enforce_eager = true', r"vlm\.enforce_eager.*did you mean vllm"),
    ],
)
def test_slips_in_a_file_are_found_before_an_engine_starts(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(OptionError, match=words):
        visavis.load(_file(tmp_path, "m.toml", text), None)


def test_a_file_that_is_not_there_is_no_hub_id() -> None:
    with pytest.raises(ModelError, match=r"there is no file 'nowhere/m\.toml'"):
        visavis.load("nowhere/m.toml")
