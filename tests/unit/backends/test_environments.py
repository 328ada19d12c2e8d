"""Environments: made once, continued after an interruption, gone after a failure."""

from __future__ import annotations

import fcntl
import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from visavis.backends import environments
from visavis.backends.environments import Recipe, Step, build, find_environment, remove
from visavis.backends.interpreters import find_interpreter
from visavis.backends.recipes import recipe_for
from visavis.errors import BackendError, OptionError


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without pip, a virtual environment takes a tenth of a second."""
    monkeypatch.setattr(environments, "_maker", lambda uv: [sys.executable, "-m", "venv", "--without-pip"])


@pytest.fixture
def step(tmp_path: Path) -> Callable[..., Step]:
    """`step("name")`: a step that writes its name, its prefix and a variable into a list; `code` is run after it."""
    trace = tmp_path / "trace"

    def make(name: str, code: str = "") -> Step:
        script = tmp_path / f"{name}.py"
        script.write_text(
            "import os, sys\n"
            f"print({name!r}, sys.prefix, os.environ.get('PYTHONPATH'), file=open({str(trace)!r}, 'a'))\n"
            f"{code}\n"
        )
        return Step(name, script=str(script))

    return make


def _recipe(*steps: Step) -> Recipe:
    return Recipe("vllm", "1.0", "cpu", "vllm", steps, download_gb=0.001, disk_gb=0.001)


def _trace(tmp_path: Path) -> list[str]:
    file = tmp_path / "trace"
    return [line.split()[0] for line in file.read_text().splitlines()] if file.exists() else []


def test_steps_run_in_order_in_the_environment_and_only_once(
    tmp_path: Path, step: Callable[..., Step], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    recipe, root, said = _recipe(step("a"), step("b")), tmp_path / "envs", list[str]()
    verified: list[Path] = []
    made = build(recipe, root, said.append, verified.append)
    again = build(recipe, root, said.append, verified.append)
    assert made == again == find_environment("vllm", root)
    assert (made.engine, made.version, made.variant) == ("vllm", "1.0", "cpu")
    assert made.python == root / "vllm" / "bin" / "python"
    assert (tmp_path / "trace").read_text().splitlines() == [f"{n} {root / 'vllm'} None" for n in "ab"]
    assert verified == [made.python]
    assert [line for line in said if "/2 " in line] == ["vllm: 1/2 a", "vllm: 2/2 b"]


def test_a_failed_step_leaves_nothing_but_its_last_words(tmp_path: Path, step: Callable[..., Step]) -> None:
    recipe, root = _recipe(step("a"), step("b", "sys.exit('no such wheel')")), tmp_path / "envs"
    with pytest.raises(BackendError, match=r"b failed \(exit code 1\); the log is .*vllm\.log:\nno such wheel"):
        build(recipe, root, lambda line: None)
    assert not (root / "vllm").exists()
    assert find_environment("vllm", root) is None


def test_an_engine_that_does_not_answer_is_not_kept(tmp_path: Path, step: Callable[..., Step]) -> None:
    def verify(python: Path) -> None:
        raise BackendError("it said nothing")

    with pytest.raises(BackendError, match="it said nothing"):
        build(_recipe(step("a")), tmp_path / "envs", lambda line: None, verify)
    assert not (tmp_path / "envs" / "vllm").exists()


def test_an_interrupted_installation_goes_on_where_it_stopped(
    tmp_path: Path, step: Callable[..., Step], monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, root, said = _recipe(step("a"), step("b"), step("c")), tmp_path / "envs", list[str]()
    call = environments._call

    def interrupted(command: Any, log: Path, what: str) -> None:
        if what == "b":
            raise KeyboardInterrupt
        call(command, log, what)

    monkeypatch.setattr(environments, "_call", interrupted)
    with pytest.raises(KeyboardInterrupt):
        build(recipe, root, said.append)
    assert said[-1] == "vllm: stopped; the same command goes on from here"
    assert find_environment("vllm", root) is None
    monkeypatch.setattr(environments, "_call", call)
    build(recipe, root, said.append)
    assert _trace(tmp_path) == ["a", "b", "c"]
    assert find_environment("vllm", root) is not None


def test_another_recipe_starts_anew(tmp_path: Path, step: Callable[..., Step]) -> None:
    first, root = _recipe(step("a")), tmp_path / "envs"
    build(first, root, lambda line: None)
    marker = root / "vllm" / "marker"
    marker.touch()
    made = build(replace(first, version="2.0"), root, lambda line: None)
    assert made.version == "2.0"
    assert not marker.exists()
    step("a", "print('changed')")  # the script's text counts too
    build(replace(first, version="2.0"), root, lambda line: None)
    assert _trace(tmp_path) == ["a", "a", "a"]


def test_too_small_a_disk_is_said_before_anything_is_made(
    tmp_path: Path, step: Callable[..., Step], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: type("Usage", (), {"free": int(2e9)})())
    recipe = replace(_recipe(step("a")), download_gb=2.0, disk_gb=4.0)
    with pytest.raises(OptionError, match=r"needs 6\.0 GB .* has 2\.0 GB free.*VISAVIS_ENVIRONMENTS"):
        build(recipe, tmp_path / "envs", lambda line: None)
    assert not (tmp_path / "envs" / "vllm").exists()


def test_two_installations_at_once_are_refused(tmp_path: Path, step: Callable[..., Step]) -> None:
    root = tmp_path / "envs"
    root.mkdir()
    with (root / ".vllm.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(OptionError, match="another process is installing vllm"):
            build(_recipe(step("a")), root, lambda line: None)
    build(_recipe(step("a")), root, lambda line: None)


def test_a_half_made_or_emptied_environment_is_none(tmp_path: Path) -> None:
    folder = tmp_path / "vllm"
    folder.mkdir()
    assert find_environment("vllm", tmp_path) is None
    state = {"engine": "vllm", "version": "1", "variant": "cpu", "finished": True}
    (folder / environments.STATE_FILE).write_text(json.dumps(state))
    assert find_environment("vllm", tmp_path) is None  # no interpreter in it
    (folder / environments.STATE_FILE).write_text("{")
    assert find_environment("vllm", tmp_path) is None
    assert remove("vllm", tmp_path)
    assert not remove("vllm", tmp_path)


def test_there_is_no_sglang_for_the_cpu_and_nothing_for_others() -> None:
    with pytest.raises(OptionError, match="no build for machines without a CUDA GPU"):
        recipe_for("sglang", cuda=False)
    with pytest.raises(OptionError, match="'hf'; known: vllm, sglang"):
        recipe_for("hf", cuda=False)
    assert recipe_for("vllm", cuda=False).variant == "cpu"


def test_an_interpreter_that_was_named_must_have_the_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VISAVIS_ENVIRONMENTS", str(tmp_path))
    monkeypatch.delenv("VISAVIS_VLLM_PYTHON", raising=False)
    assert find_interpreter("vllm", ("no-such-distribution",)) is None
    monkeypatch.setenv("VISAVIS_VLLM_PYTHON", str(tmp_path / "python"))
    with pytest.raises(OptionError, match=r"VISAVIS_VLLM_PYTHON='.*' is no program"):
        find_interpreter("vllm", ("pytest",))
    monkeypatch.setenv("VISAVIS_VLLM_PYTHON", sys.executable)
    with pytest.raises(OptionError, match="has no no-such-distribution; install it there"):
        find_interpreter("vllm", ("no-such-distribution",))
    found = find_interpreter("vllm", ("no-such-distribution", "pytest"))
    assert found is not None
    assert (found.path, found.version) == (sys.executable, pytest.__version__)
