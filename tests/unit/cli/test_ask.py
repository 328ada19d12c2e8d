"""`visavis ask`: answer on stdout, words about it on stderr, JSON for machines, boxes drawn."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.unit.cli.conftest import BOX, Cli


def test_answer_alone_is_on_stdout(cli: Cli, screen: str) -> None:
    done = cli.ask("where is search?", "--image", screen)
    assert (done.code, done.out) == (0, BOX + "\n")
    assert "bundled model tiny-screen" in done.err
    assert "first token 100 ms · per token 10.0 ms" in done.err  # the fake engine's clock
    # 0–1000 of 320×160: x · 0.32, y · 0.16
    assert "box Search: 32, 32, 96, 64 pixels" in done.err


def test_marks_of_the_engine_stand_beside_its_name_on_the_last_line(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    from visavis.backends.fake import FakeModel

    assert "fake · " in cli.ask("hello").err.splitlines()[-1]
    load = FakeModel._load
    marks = ("int8 weights, made at load", "offloaded")
    monkeypatch.setattr(FakeModel, "_load", lambda self, *given: replace(load(self, *given), marks=marks))
    assert "fake (int8 weights, made at load; offloaded) · " in cli.ask("hello").err.splitlines()[-1]


def test_lists_of_numbers_are_one_line_of_json_each(cli: Cli, screen: str) -> None:
    text = f"a list: [\n  1,\n  2\n] {BOX}"
    done = cli.ask("where is search?", "--image", screen, "--json", answer=text)
    found = done.json
    assert found["text"] == text  # what only looks like one stays
    lines = [line.strip() for line in done.out.splitlines()]
    assert f'"token_ids": {found["token_ids"]},' in lines
    assert f'"token_times_s": {json.dumps(found["timings"]["token_times_s"])},' in lines
    assert len(found["token_ids"]) > 20
    assert not any(line.rstrip(",").replace(".", "").isdigit() for line in lines)


def test_quiet_says_nothing_but_the_answer(cli: Cli, screen: str) -> None:
    done = cli.ask("where is search?", "--image", screen, "--quiet")
    assert (done.code, done.out, done.err) == (0, BOX + "\n", "")


def test_json_holds_text_ids_boxes_counts_times_and_settings(cli: Cli, screen: str) -> None:
    done = cli.ask("where is search?", "--image", screen, "--json", "--top-k", "1", "--temperature", "1.5")
    document = done.json
    assert document["schema"] == "visavis.ask/1"
    assert document["text"] == BOX
    assert document["finish_reason"] == "stop"
    assert len(document["token_ids"]) == document["completion_tokens"]
    assert document["boxes"][0]["items"][0]["box"] == [32.0, 32.0, 96.0, 64.0]
    # 320×160 in cells of 28: 308×168 = 11·6 tokens
    assert document["media"][0]["size"] == [168, 308]
    assert document["image_tokens"] == 66
    assert document["prompt_tokens"] > 66
    assert document["timings"]["first_token_s"] == pytest.approx(0.1)
    assert set(document["timings"]["load_phases_s"]) >= {"tokenizer", "load"}
    settings = document["sampling"]["settings"]
    assert settings["temperature"]["value"] == 0.0
    assert "request" in settings["temperature"]["origin"]
    assert settings["max_tokens"]["origin"].startswith("default cap")
    assert any("top_k 1" in note and "greedy" in note for note in document["sampling"]["notes"])
    assert document["backend"]["name"] == "fake"


def test_noise_of_libraries_stays_out_of_the_json(cli: Cli) -> None:
    done = cli.ask("hi", "--json", "--engine-option", "noise=true")
    assert done.json["text"] == BOX
    assert "fake engine: loading" in done.err


def test_draw_paints_the_upright_original(cli: Cli, tmp_path: Path) -> None:
    photo = tmp_path / "photo.jpg"
    exif = Image.Exif()
    exif[0x0112] = 6  # shown rotated by 90°: 160×320 stored as 320×160
    Image.new("RGB", (320, 160), (128, 128, 128)).save(photo, exif=exif, quality=95)
    out = tmp_path / "out.png"
    done = cli.ask("where?", "--image", str(photo), "--draw", str(out))
    assert done.code == 0
    picture = np.asarray(Image.open(out)).astype(int)
    assert picture.shape == (320, 160, 3)
    # the box is x 16–48, y 64–128 of the upright image
    touched = np.abs(picture - 128).max(axis=2) > 60
    assert touched[96, 13:16].any()
    assert touched[96, 48:52].any()
    assert not touched[66:126, 18:46].any()


def test_draw_without_a_box_writes_the_image_unmarked_and_says_so(cli: Cli, screen: str, tmp_path: Path) -> None:
    done = cli.ask("where?", "--image", screen, "--draw", str(tmp_path / "out.png"), answer="nowhere")
    assert done.code == 0
    assert "no box in the answer" in done.err
    assert (np.asarray(Image.open(tmp_path / "out.png")) == (200, 210, 220)).all()


def test_draw_image_picks_which_of_several(cli: Cli, screen: str, tmp_path: Path) -> None:
    other = tmp_path / "other.png"
    Image.new("RGB", (100, 100)).save(other)
    out = tmp_path / "out.png"
    images = ("--image", screen, "--image", str(other))
    assert cli.ask("where?", *images, "--draw", str(out), "--draw-image", "2").code == 0
    assert Image.open(out).size == (100, 100)
    assert "give 1 to 2" in cli.ask("where?", *images, "--draw", str(out), "--draw-image", "3").complaint


def test_system_prompt_and_images_reach_the_prompt_in_order(cli: Cli, screen: str) -> None:
    plain = cli.ask("hi there", "--json").json["prompt_tokens"]
    longer = cli.ask("hi there", "--system", "Answer in one word.", "--image", screen, "--image", screen, "--json").json
    assert longer["image_tokens"] == 2 * 66
    assert longer["prompt_tokens"] > plain + 2 * 66


def test_sampling_flags_reach_the_engine(cli: Cli) -> None:
    done = cli.ask(
        *("hi", "--json", "--max-tokens", "7", "--temperature", "0.5", "--top-p", "0.9", "--top-k", "20"),
        *("--min-p", "0.1", "--repetition-penalty", "1.1", "--presence-penalty", "0.2", "--frequency-penalty", "0.3"),
        *("--seed", "5", "--stop", "x", "--stop", "y", "--stop-token-id", "9", "--ignore-eos", "--logit-bias", "3:-2"),
        *("--bad-word", "no", "--special-tokens", "all", "--min-tokens", "2", "--logprobs", "3"),
    )
    settings = {name: entry["value"] for name, entry in done.json["sampling"]["settings"].items()}
    assert settings["max_tokens"] == 7
    assert settings["temperature"] == 0.5
    assert (settings["top_p"], settings["top_k"], settings["min_p"]) == (0.9, 20, 0.1)
    assert (settings["repetition_penalty"], settings["presence_penalty"], settings["frequency_penalty"]) == (
        1.1,
        0.2,
        0.3,
    )
    assert (settings["seed"], settings["stop"], settings["stop_token_ids"]) == (5, ["x", "y"], [9])
    assert (settings["ignore_eos"], settings["logit_bias"], settings["bad_words"]) == (True, [[3, -2.0]], ["no"])
    assert (settings["special_tokens"], settings["min_tokens"], settings["logprobs"]) == ("all", 2, 3)


def test_several_answers_are_all_printed(cli: Cli) -> None:
    done = cli.ask("hi", "--n", "2", "--temperature", "1", answer="yes")
    assert done.out == "yes\n--- answer 2\nyes\n"
    assert "seed" in done.err


def test_stop_string_cuts_the_answer(cli: Cli) -> None:
    assert cli.ask("hi", "--stop", "<|box_start|>").out == "<|object_ref_start|>Search<|object_ref_end|>\n"


def test_messages_file_with_paths_relative_to_it(cli: Cli, screen: str, tmp_path: Path) -> None:
    file = tmp_path / "chat.json"
    content = [{"type": "image", "image": "screen.png"}, {"type": "text", "text": "where?"}]
    file.write_text(json.dumps([{"role": "user", "content": content}]), "utf-8")
    assert cli.ask("--messages", str(file), "--json").json["image_tokens"] == 66


def test_messages_file_with_several_conversations_points_to_compare(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "chats.json"
    file.write_text(json.dumps([[{"role": "user", "content": "a"}], [{"role": "user", "content": "b"}]]), "utf-8")
    assert "visavis compare --backends fake --messages" in cli.ask("--messages", str(file)).complaint


def test_messages_and_question_exclude_each_other(cli: Cli, tmp_path: Path) -> None:
    assert "exclude each other" in cli.ask("hi", "--messages", str(tmp_path / "x.json")).complaint


def test_control_characters_do_not_reach_a_terminal(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert "\x1b" not in cli.ask("hi", answer="a\x1b[31mb").out


def test_an_empty_system_prompt_is_not_the_templates_own(cli: Cli) -> None:
    own, none, empty = (
        cli.ask("hi", *more, "--json").json["prompt_tokens"] for more in ([], ["--system", "x"], ["--system", ""])
    )
    assert own > none == empty + 1  # "x" is one token; the bundled template's own system prompt is longer


@pytest.mark.parametrize("name", ["nul\0.png", "a" * 300 + ".png"])
def test_a_name_no_file_can_have_is_refused_before_the_answer(name: str, cli: Cli, screen: str, tmp_path: Path) -> None:
    done = cli.ask("where?", "--image", screen, "--draw", str(tmp_path / name))
    assert (done.code, done.out) == (2, "")
    assert "cannot be written" in done.complaint


def test_an_answer_is_not_lost_where_its_picture_cannot_be_written(
    cli: Cli, screen: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object, **kwargs: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("PIL.Image.Image.save", full)
    done = cli.ask("where?", "--image", screen, "--draw", str(tmp_path / "out.png"), "--json")
    assert done.code == 2
    assert "No space left on device" in done.complaint
    assert done.json["text"] == BOX
    assert done.json["drawn"] is None
    assert [p.name for p in tmp_path.iterdir()] == ["screen.png"]


def test_too_many_images_for_the_limit_are_refused_before_the_engine_starts(cli: Cli, screen: str) -> None:
    two = ("--image", screen, "--image", screen)
    assert cli.ask("which?", *two, "--limit-per-prompt", "image=2").code == 0
    done = cli.ask("which?", *two, "--limit-per-prompt", "image=1", "--engine-option", "fail_load=started")
    assert done.code == 2
    assert "2 images and limit_per_prompt allows 1" in done.complaint
