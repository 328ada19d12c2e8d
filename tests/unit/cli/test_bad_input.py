"""Bad input: exit code 2 and one line that names the fault and the way out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image

from tests.unit.cli.conftest import Cli


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["aks", "hi"], "did you mean ask?"),
        (["ask"], 'visavis ask "what is this?" --image screen.png'),
        (["ask", ""], "question is empty"),
        (["ask", "photo.png"], 'visavis ask "what is this?" --image photo.png'),
        (["ask", "clip.mp4"], "--video clip.mp4"),
        (["ask", "chat.json"], "visavis ask --messages chat.json"),
        (["ask", "https://example.com/a"], "looks like a file"),
        (["ask", "Qwen/Qwen2-VL-7B-Instruct"], 'visavis ask "what is this?" -m Qwen/Qwen2-VL-7B-Instruct'),
        (["ask", "Qwen/Qwen2-VL-7B-Instruct", "what is this?"], "looks like a model"),
        (["ask", "what", "is", "this"], "put it in quotes"),
        (["ask", "hi", "--temprature", "1"], "did you mean --temperature?"),
        (["ask", "hi", "--temprature=1"], "did you mean --temperature?"),
        (["ask", "hi", "--temp", "1"], "did you mean --temperature?"),
        (["ask", "hi", "\u2013-json"], "did you mean --json?"),
        (["ask", "hi", "\u2014temperature=1"], "did you mean --temperature?"),
        (["ask", "--messages", ""], "cannot be read"),
        (["ask", "--messages", "chat.json", "--system", ""], "--system exclude each other"),
        (["ask", "hi", "--temperature"], "--temperature"),
        (["ask", "hi", "--temperature", "hot"], "temperature 'hot'"),
        (["ask", "hi", "--temperature", "-1"], "temperature -1"),
        (["ask", "hi", "--max-tokens", "1.5"], "max_tokens '1.5'"),
        (["ask", "hi", "--dtype", "int3"], "auto, float32, bfloat16 or float16"),
        (["ask", "hi", "--kv-cache", "lots"], "2GiB"),
        (["ask", "hi", "--max-pixels", "many"], "1280*28*28"),
        (["ask", "hi", "--logit-bias", "5"], "TOKEN_ID:VALUE"),
        (["ask", "hi", "--engine-option", "fast"], "NAME=VALUE"),
        (["ask", "hi", "--special-tokens", "struct"], "did you mean structural?"),
        (["ask", "hi", "--fps", "2"], "add --video"),
        (["ask", "hi", "--backend", "transformer"], "hf"),
        (["ask", "hi", "--draw", "out.png", "--backend", "fake"], "--draw needs an image"),
        (["ask", "--image", "a.png"], "question is missing"),
        (["compare", "screen.png"], 'did you mean: visavis compare --ask "what is this?" --image screen.png'),
        (["compare", "native", "hf"], "engines are named by a flag: visavis compare --backends native,hf"),
        (["compare", "what is this?"], "visavis compare --ask 'what is this?'"),
        (["compare", "/no/where"], "there is no folder '/no/where'; an example is a folder with messages.json"),
        (["compare", "--report", "/no/where/r.html"], "--report '/no/where/r.html' cannot be written"),
        (["bench", "native,hf"], "engines are named by a flag: visavis bench --backends native,hf"),
        (["bench", "repot"], "bench: 'repot' is unknown; did you mean report?"),
        (["nope"], "command: 'nope' is unknown; known: ask, "),
        (["ask", "hi", "--min-pixels", "99", "--max-pixels", "9"], "--min-pixels 99 is more than --max-pixels 9"),
        (["ask", "hi", "--image", "a.png", "--draw", "a.xyz"], "--draw 'a.xyz': the file must end in .png"),
        (["backends", "install", "openai"], "openai has no environment of its own and is here already"),
        (["compare", "--backends", "native,native"], "names native twice"),
        (["compare", "--backends", ","], "names none"),
        (["compare", "--backends", "natvie"], "did you mean native?"),
        (["compare", "--report", "both.out", "--csv", "both.out"], "both name 'both.out'"),
        (["compare", "--rounds", "0"], "whole number from 1 on"),
        (["compare", "--ask", "photo.png"], "looks like a file"),
        (["count"], "nothing to count"),
        (["samples"], "DIR"),
        (["samples", "a", "b"], "one too many"),
        (["samples", ""], "name is empty"),
        (["samples", "a" * 300], "File name too long"),
        (["backends", "install", "vllm", "please"], "not understood"),
    ],
)
def test_one_line_and_exit_code_2(cli: Cli, argv: list[str], said: str) -> None:
    done = cli(*argv)
    assert done.code == 2
    assert said in done.complaint
    assert done.out == ""


def test_missing_image_is_named_by_its_flag(cli: Cli) -> None:
    done = cli.ask("what is this?", "--image", "nowhere.png")
    assert (done.code, done.out) == (2, "")
    assert done.complaint.startswith("visavis: --image nowhere.png: no such file")
    assert "messages[" not in done.complaint


@pytest.mark.parametrize("command", [("ask", "hi"), ("compare", "--ask", "hi"), ("count",)])
@pytest.mark.parametrize("system", [(), ("--system", "s")])
def test_an_image_that_is_none_is_named_by_its_flag(
    cli: Cli, command: tuple[str, ...], system: tuple[str, ...], screen: str, tmp_path: Path
) -> None:
    text = tmp_path / "notes.png"
    text.write_text("these are no pixels")
    done = cli(*command, *system, "--image", screen, "--image", str(text))
    assert done.code == 2
    assert done.complaint == f"visavis: --image {text} is plain text, not an image"


def test_an_image_too_thin_is_named_by_its_flag(cli: Cli, tmp_path: Path) -> None:
    Image.new("RGB", (3000, 3)).save(tmp_path / "thin.png")
    for command in (("ask", "hi"), ("count",)):
        done = cli(*command, "--image", str(tmp_path / "thin.png"))
        assert done.complaint.startswith(f"visavis: --image {tmp_path / 'thin.png'}: 3000×3 pixels")


def test_in_a_messages_file_the_place_is_named(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "m.json").write_text('[{"role": "user", "content": [{"type": "image", "image": "nowhere.png"}]}]')
    assert "messages[0].content[0].image" in cli.ask("--messages", str(tmp_path / "m.json")).complaint


def test_corrupt_image_names_its_flag(cli: Cli, tmp_path: Path, screen: str) -> None:
    broken = tmp_path / "broken.png"
    broken.write_bytes(Path(screen).read_bytes()[:60])
    done = cli.ask("compare these", "--image", screen, "--image", str(broken))
    assert done.code == 2
    assert done.complaint.startswith(f"visavis: --image {broken}")


@pytest.mark.parametrize("how", ["itself", "link", "hard link", "file URL", "messages file"])
def test_draw_never_overwrites_its_own_image(cli: Cli, screen: str, tmp_path: Path, how: str) -> None:
    before, other = Path(screen).read_bytes(), tmp_path / "other.png"
    if how == "link":
        other.symlink_to(screen)
    elif how == "hard link":
        other.hardlink_to(screen)
    out = str(other) if "link" in how else screen
    if how == "messages file":
        (tmp_path / "m.json").write_text(
            json.dumps([{"role": "user", "content": [{"type": "image", "image": Path(screen).name}]}])
        )
        asked = ["--messages", str(tmp_path / "m.json")]
    else:
        asked = ["where?", "--image", Path(screen).as_uri() if how == "file URL" else screen]
    done = cli.ask(*asked, "--draw", out)
    assert (done.code, done.out) == (2, "")
    assert "would overwrite what is read here" in done.complaint
    assert Path(screen).read_bytes() == before
    assert cli.ask(*asked, "--draw", str(tmp_path / "third.png")).code == 0


@pytest.mark.parametrize("flag", ["--report", "--csv"])
def test_compare_never_overwrites_what_it_reads(cli: Cli, screen: str, tmp_path: Path, flag: str) -> None:
    messages, settings = tmp_path / "m.json", tmp_path / "s.json"
    messages.write_text(json.dumps([{"role": "user", "content": [{"type": "image", "image": Path(screen).name}]}]))
    settings.write_text(json.dumps({"a": {"backend": "fake"}, "b": {"backend": "fake"}}))
    for read in (screen, str(messages), str(settings)):
        before = Path(read).read_bytes()
        done = cli("compare", "--messages", str(messages), "--settings", str(settings), flag, read)
        assert (done.code, done.out) == (2, "")
        assert f"{flag} " in done.complaint
        assert "would overwrite what is read here" in done.complaint
        assert Path(read).read_bytes() == before


def test_draw_into_a_missing_folder_is_refused_before_anything_is_loaded(cli: Cli, screen: str, tmp_path: Path) -> None:
    done = cli.ask("where?", "--image", screen, "--draw", str(tmp_path / "no" / "out.png"), "-m", "no/such-model")
    assert done.code == 2
    assert "does not exist" in done.complaint
    assert "such-model" not in done.complaint


def test_model_folder_without_config_is_named(cli: Cli, tmp_path: Path) -> None:
    done = cli("count", "hi", "-m", str(tmp_path))
    assert done.code == 2
    assert "config.json" in done.complaint


def test_no_command_shows_help_on_stderr(cli: Cli) -> None:
    done = cli()
    assert (done.code, done.out) == (2, "")
    assert "compare" in done.err


@pytest.mark.parametrize("command", ["ask", "compare", "bench", "count", "plan", "samples", "backends"])
def test_help_of_every_command(cli: Cli, command: str) -> None:
    done = cli(command, "--help")
    assert done.code == 0
    assert "--json" in done.out
    assert "None" not in done.out


def test_bench_does_not_offer_the_lengths_it_refuses(cli: Cli) -> None:
    text = cli("bench", "--help").out
    assert not [flag for flag in ("--max-tokens", "--min-tokens", "--ignore-eos") if flag in text]
    assert "--output-tokens" in text
    assert "--output-tokens" in cli("bench", "--max-tokens", "5").complaint


def test_defaults_are_shown_in_help(cli: Cli) -> None:
    text = " ".join(cli("ask", "--help").out.split())
    for default in ("default: native", "default: the bundled tiny-screen", "default: structural", "at most 1024"):
        assert default in text


def test_engine_failure_is_exit_code_1(cli: Cli) -> None:
    done = cli("ask", "hi", "--backend", "fake", "--engine-option", "fail_load=out of memory")
    assert done.code == 1
    assert "out of memory" in done.complaint


def test_failed_request_is_exit_code_1(cli: Cli) -> None:
    done = cli("ask", "hi", "--backend", "fake", "--engine-option", 'fail={"0": "it broke"}')
    assert (done.code, done.out) == (1, "")
    assert "it broke" in done.complaint


def test_unforeseen_error_is_one_line_that_says_how_to_see_more(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def explode(args: object) -> int:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr("visavis.cli.backends.run", explode)
    done = cli("backends")
    assert done.code == 1
    assert "ZeroDivisionError" in done.complaint
    assert "VISAVIS_TRACEBACK" in done.complaint


def test_ctrl_c_is_130_without_a_word(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(args: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("visavis.cli.backends.run", interrupt)
    done = cli("backends")
    assert (done.code, done.out, done.err) == (130, "", "")
