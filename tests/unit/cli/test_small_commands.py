"""`count`, `samples` and `backends`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli.conftest import Cli


def test_count_shows_total_and_each_image(cli: Cli, screen: str) -> None:
    done = cli("count", "where is search?", "--image", screen)
    assert done.code == 0
    assert "320×160 → 308×168" in done.out
    assert "66  image" in done.out


def test_count_equals_what_a_request_costs(cli: Cli, screen: str) -> None:
    counted = cli("count", "where is search?", "--image", screen, "--json").json["conversations"][0]
    asked = cli.ask("where is search?", "--image", screen, "--json").json
    assert counted["total"] == asked["prompt_tokens"]
    assert counted["media"][0]["tokens"] == asked["image_tokens"] == 66
    assert counted["fits"] is True


def test_count_of_an_image_without_a_question(cli: Cli, screen: str) -> None:
    document = cli("count", "--image", screen, "--json").json["conversations"][0]
    assert document["media"][0]["tokens"] == 66


def test_pixel_limits_change_the_count(cli: Cli, screen: str) -> None:
    # at most 16 cells: 320×160 → 140×56 is 5·2 = 10 tokens (scale sqrt(320·160/12544) = 2.02, floored to cells)
    document = cli("count", "--image", screen, "--max-pixels", "16*28*28", "--json").json["conversations"][0]
    assert document["media"][0]["tokens"] == 10


def test_count_that_does_not_fit_says_so(cli: Cli) -> None:
    done = cli("count", "word " * 5000)
    assert done.code == 0
    assert "no room for an answer" in done.out


def test_samples_are_copied_and_readable(cli: Cli, tmp_path: Path) -> None:
    target = tmp_path / "made" / "samples"
    done = cli("samples", str(target), "--json")
    assert done.code == 0
    assert len(done.json["samples"]) == 12
    assert sorted(Path(f).name for f in done.json["files"]) == sorted(p.name for p in target.iterdir())
    counted = cli("count", "--messages", str(target / "samples.json"), "--json").json["conversations"]
    assert [c["id"] for c in counted] == done.json["samples"]


def test_samples_never_overwrite_another_file_unless_forced(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "samples.json").write_text("mine", "utf-8")
    done = cli("samples", str(tmp_path))
    assert done.code == 2
    assert "--force" in done.complaint
    assert [p.name for p in tmp_path.iterdir()] == ["samples.json"]
    assert cli("samples", str(tmp_path), "--force").code == 0
    assert json.loads((tmp_path / "samples.json").read_text("utf-8"))["samples"]
    assert cli("samples", str(tmp_path)).code == 0  # the same files again are no conflict


def test_backends_name_what_is_missing_and_what_adds_it(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    from visavis.backends import registry
    from visavis.backends.registry import Availability

    install = "'/a folder/of some depth/.venv/bin/python3' -m pip install 'visavis[hf]'"
    entries = [
        Availability("native", True, "1.0", "/usr/bin/python3"),
        Availability("hf", False, None, "/usr/bin/python3", "transformers not installed", install),
    ]
    monkeypatch.setattr(registry, "availability", lambda: entries)
    monkeypatch.setenv("COLUMNS", "60")
    shown = cli("backends").out
    assert f"to add hf: {install}" in shown.splitlines()  # whole, however narrow the terminal is
    assert "transformers not installed" in shown
    document = cli("backends", "--json").json["backends"]
    assert [(b["name"], b["can_run"]) for b in document] == [("native", True), ("hf", False)]


def test_install_says_the_size_makes_the_environment_and_checks_that_it_answers(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from visavis.backends import environments, install

    asked = []

    def build(recipe: Any, root: Any, say: Any, verify: Any) -> environments.Environment:
        asked.append((recipe.engine, recipe.variant, verify is not None))
        return environments.Environment(tmp_path, recipe.engine, recipe.version, recipe.variant)

    monkeypatch.setattr(install, "build", build)
    done = cli("backends", "install", "vllm", "--cpu", "--json")
    assert asked == [("vllm", "cpu", True)]
    assert done.json["interpreter"] == str(tmp_path / "bin" / "python")
    assert "about 1.5 GB to download, 3.6 GB on disk" in done.err


def test_remove_deletes_the_environment(cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("VISAVIS_ENVIRONMENTS", str(tmp_path))
    (tmp_path / "vllm" / "bin").mkdir(parents=True)
    assert cli("backends", "remove", "vllm").out == "vllm is removed\n"
    assert list(tmp_path.iterdir()) == []
    assert "not installed" in cli("backends", "remove", "vllm").complaint


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["install"], "vllm | sglang"),
        (["install", "native"], "those that may: vllm, sglang"),
        (["remove", "hf"], "no environment of its own"),
        (["list", "vllm"], "visavis backends install NAME"),
        (["instal", "vllm"], "did you mean install?"),
        (["install", "vllm", "--cpu", "--cuda"], "not allowed with"),
    ],
)
def test_wrong_actions_are_told_the_right_ones(cli: Cli, argv: list[str], said: str) -> None:
    done = cli("backends", *argv)
    assert done.code == 2
    assert said in done.complaint
