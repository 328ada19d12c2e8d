"""Backends by name."""

from __future__ import annotations

import pickle
import shlex
import subprocess
import sys
from importlib import metadata

import pytest

import visavis
from visavis.backends import registry
from visavis.backends.fake import FakeModel
from visavis.errors import MissingExtraError, OptionError, pip_install


def test_an_unknown_backend_gets_the_nearest() -> None:
    with pytest.raises(OptionError, match="unknown backend 'nativ'; did you mean native"):
        registry.new("nativ")
    with pytest.raises(OptionError, match="unknown backend 'transformers'; did you mean hf"):
        registry.new("transformers")
    with pytest.raises(OptionError, match=r"known: native, hf, vllm, sglang, openai$"):
        registry.new("llama.cpp")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("hg", r"unknown backend 'hg'; did you mean hf\?"),
        ("vlm", r"did you mean vllm\?"),
        ("sgl", r"did you mean sglang\?"),
        ("Native ", r"did you mean native\?"),
        ("", r"unknown backend ''; known: native, hf"),
        ("  ", "known: native, hf"),
    ],
)
def test_short_and_empty_names_are_no_backend(given: str, words: str) -> None:
    with pytest.raises(OptionError, match=words):
        visavis.load(backend=given)


@pytest.mark.parametrize(
    ("name", "meant"), [("bakend", "backend"), ("backends", "backend"), ("modell", "model"), ("pyton", "python")]
)
def test_a_misspelt_argument_of_load_gets_the_nearest(name: str, meant: str) -> None:
    with pytest.raises(OptionError, match=rf"load has no argument '{name}'; did you mean {meant}\?"):
        visavis.load(**{name: "hf"})


def test_the_fake_one_is_there_and_hidden() -> None:
    assert isinstance(registry.new("fake"), FakeModel)
    assert "fake" not in registry.NAMES
    assert "fake" not in [a.name for a in registry.availability()]


def test_create_checks_options_before_it_loads_anything() -> None:
    with pytest.raises(OptionError, match="fake: unknown engine option 'max_len'"):
        registry.create("fake", "/nowhere", {"max_len": 5})


def test_load_is_the_way_in() -> None:
    with visavis.load(None, "fake", extra={"answers": "from the script"}) as model:
        got = model.chat([{"role": "user", "content": "hi"}])
    assert got.text == "from the script"
    assert model.info is None


def test_unknown_extra_options_get_the_nearest() -> None:
    with pytest.raises(OptionError, match=r"answerz.*answers"):
        visavis.load(None, "fake", extra={"answerz": "x"})


def test_availability_names_every_backend_with_version_or_remedy() -> None:
    got = {a.name: a for a in registry.availability()}
    assert list(got) == list(registry.NAMES)
    assert got["native"].can_run
    assert got["native"].version == visavis.__version__
    assert got["hf"].version == _version("transformers")
    for entry in got.values():
        assert entry.can_run == (not entry.missing)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def test_what_is_missing_is_named_with_the_command_that_adds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    real = registry._version
    monkeypatch.setattr(registry, "_version", lambda p: None if p == "transformers" else real(p))
    (hf,) = [a for a in registry.availability() if a.name == "hf"]
    assert not hf.can_run
    assert hf.missing == "transformers not installed"
    assert hf.fix == f"{shlex.quote(sys.executable)} -m pip install 'visavis[hf]'"
    with pytest.raises(MissingExtraError, match=r"transformers.*pip install 'visavis\[hf\]'"):
        registry.new("hf")


def test_an_install_command_is_for_the_interpreter_that_runs_and_can_be_pasted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "executable", "/opt/my tools/python3")
    assert pip_install("visavis[hf]") == "'/opt/my tools/python3' -m pip install 'visavis[hf]'"
    error = MissingExtraError("reading a video file", "video")
    monkeypatch.setattr(sys, "executable", "/usr/bin/python3")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)  # a worker's interpreter may be another
    assert "'/opt/my tools/python3' -m pip install 'visavis[video]'" in str(error)


def test_what_another_interpreter_lacks_is_to_be_installed_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """`in_worker` is how that interpreter's own process asks."""
    monkeypatch.setattr(registry, "_version", lambda p: None if p == "accelerate" else "1")
    with pytest.raises(OptionError, match=rf"{sys.executable} has no accelerate: {sys.executable} -m pip install acc"):
        registry.new("hf", in_worker=True)


def test_what_takes_requests_meanwhile_is_known_without_loading() -> None:
    """transformers' `generate` answers a batch from its beginning to its end; all others are fed while they run."""
    assert [name for name in registry.NAMES if not registry.takes_arrivals(name)] == ["hf"]


def test_looking_what_can_run_imports_no_engine() -> None:
    script = (
        "import sys; from visavis.backends.registry import NAMES, availability, takes_arrivals\n"
        "availability(), [takes_arrivals(name) for name in NAMES]\n"
        "print([m for m in ('torch', 'transformers', 'vllm', 'sglang') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert out.stdout.strip() == "[]"
