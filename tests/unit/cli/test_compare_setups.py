"""compare's command line: names, settings of one alone, examples, files; on the fake engine."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.servers.scripted import Exchange, Server, piece, serving, usage
from visavis.backends import registry

if TYPE_CHECKING:
    from tests.unit.cli.conftest import Cli

ASKED = ("--ask", "say a word", "--rounds", "1", "--no-batch")
MARKED = json.dumps("<|box_start|>(1,2)<|box_end|>")


def example(folder: Path, settings: str) -> str:
    (folder / "messages.json").write_text('[{"role": "user", "content": "say a word"}]', "utf-8")
    (folder / "settings.toml").write_text(settings, "utf-8")
    return str(folder)


def by_name(document: Any) -> dict[str, Any]:
    return {b["backend"]: b for b in document["backends"]}


def test_one_engine_under_two_names_with_settings_of_their_own(cli: Cli) -> None:
    options = ("--set", "b.special_tokens=none", "--set", f"fake.answers={MARKED}")
    done = cli("compare", *ASKED, "--backends", "a=fake,b=fake", *options, "--json")
    assert done.code == 0, done.err
    found = by_name(done.json)
    assert [b["engine"] for b in found.values()] == ["fake", "fake"]
    assert found["a"]["answers"][0]["text"] == "<|box_start|>(1,2)<|box_end|>"
    assert found["b"]["answers"][0]["text"] == "(1,2)"
    setting = found["b"]["answers"][0]["sampling"]["settings"]["special_tokens"]
    assert setting == {"value": "none", "origin": "set for b"}
    (cause,) = done.json["pairs"][0]["differences"][0]["causes"]
    assert (cause["kind"], cause["how"], cause["settings"]) == ("special tokens", "alone", ["special_tokens"])
    assert done.json["command"].startswith("visavis compare --ask 'say a word'")


def test_an_examples_folder_and_its_settings(cli: Cli, tmp_path: Path) -> None:
    folder = example(
        tmp_path, f"[mine]\nbackend = 'fake'\nanswers = '{json.loads(MARKED)}'\nmax_new_tokens = 2\n[fake]\n"
    )
    done = cli("compare", folder, "--rounds", "1", "--json")
    assert done.code == 0, done.err
    found = by_name(done.json)
    assert list(found) == ["mine", "fake"]
    assert len(found["mine"]["answers"][0]["token_ids"]) == 2
    assert found["mine"]["own"]["max_new_tokens"] == 2


def test_another_engine_may_stand_in_for_one_of_an_example(cli: Cli, tmp_path: Path) -> None:
    folder = example(tmp_path, "[one]\nbackend = 'hf'\nmax_tokens = 3\n[two]\nbackend = 'vllm'\ntop_k = 5\n")
    done = cli("compare", folder, "--backends", "one=fake,two=fake", "--rounds", "1", "--json")
    assert done.code == 0, done.err
    assert by_name(done.json)["one"]["own"] == {"max_tokens": 3}


def test_the_way_out_where_an_examples_engine_is_not_here_does_work(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "find_interpreter", lambda *_: None)
    folder = example(tmp_path, "[mine]\nbackend = 'fake'\nanswers = 'word'\n[vllm]\nbackend = 'vllm'\nmax_tokens = 2\n")
    complaint = cli("compare", folder, "--rounds", "1").complaint
    assert "backend vllm cannot run here: not installed; to add it: visavis backends install vllm; or " in complaint
    done = cli("compare", folder, "--rounds", "1", "--json", *shlex.split(complaint[complaint.index("--backends") :]))
    assert done.code == 0, done.err
    assert {name: b["engine"] for name, b in by_name(done.json).items()} == {"mine": "fake", "vllm": "native"}
    assert by_name(done.json)["vllm"]["own"] == {"max_tokens": 2}


def test_no_engine_stands_in_for_one_that_does_not_exist(cli: Cli, tmp_path: Path) -> None:
    complaint = cli("compare", example(tmp_path, "[one]\nbackend = 'vlm'\n[two]\nbackend = 'native'\n")).complaint
    assert complaint.endswith("unknown backend 'vlm'; did you mean vllm?")


def test_report_and_csv_are_written(cli: Cli, tmp_path: Path) -> None:
    page, table = tmp_path / "r.html", tmp_path / "r.csv"
    done = cli("compare", *ASKED, "--backends", "fake", "--report", str(page), "--csv", str(table))
    assert done.code == 0, done.err
    assert page.read_text("utf-8").startswith("<!doctype html>")
    assert len(table.read_text("utf-8-sig").splitlines()) == 2
    assert str(page) in done.err


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--backends", "a=fake,a=fake"], "names a twice"),
        (["--backends", "a.b=fake"], "NAME=BACKEND"),
        (["--backends", "fake", "--set", "fale.top_k=1"], "did you mean fake.top_k?"),
        (["--backends", "fake", "--set", "fake.topk=1"], "did you mean top_k?"),
        (["--backends", "fake", "--set", "fake.top_k=x"], "top_k 'x'"),
        (["--backends", "fake", "--set", "fake.temperature=-1"], "temperature -1"),
        (["--backends", "fake", "--set", "repetition_penalty=1.1"], "say --repetition-penalty, or fake.repetition"),
        (["--backends", "fake", "--settings", "absent.toml"], "no such file"),
        (["--backends", "fake", "--report", "/no/such/folder/r.html"], "cannot be written"),
        (["--backends", "fake", "--csv", "/"], "cannot be written"),
    ],
)
def test_refused_before_any_engine_starts(cli: Cli, argv: list[str], said: str) -> None:
    done = cli("compare", *ASKED, *argv)
    assert done.code == 2
    assert said in done.complaint
    assert "start" not in done.err


def test_folder_that_is_no_example(cli: Cli, tmp_path: Path) -> None:
    assert "no messages.json" in cli("compare", str(tmp_path)).complaint


def test_caches_are_switched_off_and_it_is_said(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("visavis.cli.compare_setups.CACHES_OFF", {"fake": {"noise": False}})
    done = cli("compare", *ASKED, "--backends", "fake", "--json")
    assert any("caches of earlier prompts are off" in n and "fake noise=false" in n for n in done.json["notes"])
    chosen = cli("compare", *ASKED, "--backends", "fake", "--set", "fake.noise=true", "--json")
    assert not any("caches" in n for n in chosen.json["notes"])


def test_one_seed_for_all_where_tokens_are_drawn(cli: Cli) -> None:
    done = cli("compare", *ASKED, "--backends", "a=fake,b=fake", "--set", "b.temperature=0.5", "--json")
    seeds = {b["answers"][0]["sampling"]["settings"]["seed"]["value"] for b in done.json["backends"]}
    assert seeds == {0}
    assert any("seed 0 for all" in n for n in done.json["notes"])


def served(exchange: Exchange) -> None:
    exchange.begin_stream()
    for text in ("yes", " it", " is"):
        exchange.event(piece(text))
    exchange.event(piece(finish="stop"))
    exchange.event(usage(30, 4))
    exchange.event("[DONE]")


def test_a_server_without_ids_is_compared_by_its_texts_and_that_is_said(cli: Cli) -> None:
    with serving(Server(answers=[served])) as server:
        done = cli(
            "compare", *ASKED, "--backends", "fake,openai", "--set", 'fake.answers="yes it is"', "--set",
            f"openai.base_url={server.url}", "--set", "openai.model=m", "--set", "openai.dialect=openai",
        )  # fmt: skip
    assert done.code == 0, done.err
    assert "no ids, text 1/1" in done.out
    assert "fake and openai gave the same text on 1 prompt (openai gives no token ids to compare)" in done.out
    assert "openai gives no token ids: its texts are compared" in done.out
    assert "gave the same tokens" not in done.out


def test_an_interpreter_for_one_name_by_flag_or_in_its_table(cli: Cli, tmp_path: Path) -> None:
    flag = cli("compare", *ASKED, "--backends", "a=fake,b=fake", "--python", "b=/no/python", "--json")
    (a, b) = (by_name(flag.json)[name] for name in "ab")
    assert a["error"] is None
    assert "/no/python" in b["error"]
    folder = example(tmp_path, "[a]\nbackend = 'fake'\n[b]\nbackend = 'fake'\npython = '/no/other'\n")
    table = cli("compare", folder, "--rounds", "1", "--json")
    assert "/no/other" in by_name(table.json)["b"]["error"]
    assert by_name(table.json)["b"]["own"] == {}
    unknown = cli("compare", *ASKED, "--backends", "a=fake", "--python", "c=/no/python")
    assert "'c' is not used here; a, fake" in unknown.complaint


@pytest.mark.parametrize(
    ("own", "said"),
    [
        ([], " · greedy"),
        (["b.temperature=0.7"], " · greedy but for b"),
        (["a.temperature=0.5", "b.temperature=0.7"], ""),
        (["b.temperature=0"], " · greedy"),
    ],
)
def test_the_first_line_calls_greedy_only_what_is(cli: Cli, own: list[str], said: str) -> None:
    options = [word for setting in own for word in ("--set", setting)]
    done = cli("compare", *ASKED, "--backends", "a=fake,b=fake", *options)
    assert done.code == 0, done.err
    assert done.out.splitlines()[0] == f"a and b answer 1 prompt with tiny-screen{said}"
