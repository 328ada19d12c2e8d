"""What families promise beside parity: counts, limits, hashes, refusals, declared formats, light imports."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.reference.cases import TEXT_CASES, VISION_CASES, film, picture, said, user
from tests.reference.tiny_models import VL_FAMILIES
from visavis.chat.types import Conversation, Image, PixelLimits
from visavis.errors import ContextLengthError, MediaError, MessageError, ModelError, OptionError
from visavis.families import load_family
from visavis.families.common import media_hash
from visavis.families.registry import load

TEXT_FAMILIES = ("qwen2", "qwen3", "llama")


@pytest.mark.parametrize("name", TEXT_FAMILIES)
def test_text_prompts_are_plain(name: str, family: Any) -> None:
    loaded = family(name)
    prompt = loaded.prepare(TEXT_CASES["turns"])
    assert loaded.name == prompt.family == name
    assert prompt.canonical_ids == prompt.token_ids
    assert prompt.position_ids.tolist() == [list(range(len(prompt)))]
    assert prompt.rope_delta == 0
    assert not prompt.media
    assert prompt.patch_rule is None


def test_llama_has_one_bos(family: Any) -> None:
    loaded = family("llama")
    prompt = loaded.prepare(TEXT_CASES["plain"])
    bos = loaded.tokenizer.token_to_id("<|begin_of_text|>")
    assert prompt.token_ids[0] == bos
    assert prompt.token_ids.count(bos) == 1


def test_eos_and_pad_come_from_the_folder(family: Any) -> None:
    qwen, llama = family("qwen2_vl"), family("llama")
    assert [qwen.tokenizer.id_to_token(i) for i in qwen.eos_token_ids] == ["<|im_end|>", "<|endoftext|>"]
    assert qwen.tokenizer.id_to_token(qwen.pad_token_id) == "<|endoftext|>"
    assert [llama.tokenizer.id_to_token(i) for i in llama.eos_token_ids] == ["<|eot_id|>", "<|end_of_text|>"]
    assert llama.tokenizer.id_to_token(llama.pad_token_id) == "<|finetune_right_pad_id|>"


@pytest.mark.parametrize("name", TEXT_FAMILIES)
def test_an_image_for_a_text_model_is_refused_by_its_part(name: str, family: Any) -> None:
    image = replace(picture(30, 30), where="messages[0].content[1]")
    with pytest.raises(MessageError, match=r"messages\[0\]\.content\[1\]: .* text-only model"):
        family(name).prepare(Conversation((user("what?", image),)))
    with pytest.raises(MessageError, match="text-only model"):
        family(name).count(Conversation((user("what?", image),)))


@pytest.mark.parametrize("case", VISION_CASES)
@pytest.mark.parametrize("name", VL_FAMILIES)
def test_count_equals_the_prompt(name: str, case: str, family: Any) -> None:
    prompt = family(name).prepare(VISION_CASES[case])
    report = family(name).count(VISION_CASES[case])
    assert report.total == len(prompt)
    assert [(m.kind, m.original_size, m.size, m.tokens) for m in report.media] == [
        (m.kind, m.original_size, m.size, m.num_tokens) for m in prompt.media
    ]
    assert report.text_tokens == len(prompt) - prompt.num_image_tokens
    assert report.fits


@pytest.mark.parametrize("name", VL_FAMILIES)
def test_spans_point_at_the_visual_tokens(name: str, family: Any) -> None:
    loaded = family(name)
    prompt = loaded.prepare(VISION_CASES["mixture"])
    seen = np.zeros(len(prompt), dtype=bool)
    ids = np.asarray(prompt.token_ids)
    for item in prompt.media:
        token = loaded.image_token_id if item.kind == "image" else loaded.video_token_id
        inside = ids[item.span.start : item.span.stop] == token
        assert inside.sum() == item.num_tokens
        assert inside[0]
        assert inside[-1]
        seen[item.span.start : item.span.stop] = inside
        assert item.canonical_span.length == 1
        assert prompt.canonical_ids[item.canonical_span.start] == token
    assert np.array_equal(seen, prompt.visual_mask)


def test_qwen3_vl_writes_the_time_of_each_pair_of_frames(family: Any) -> None:
    # frames at 0, 0.5, 1, 1.5, 2 s; pairs (0, 0.5), (1, 1.5), (2, 2): means 0.25, 1.25, 2
    loaded = family("qwen3_vl")
    prompt = loaded.prepare(Conversation((user(film(5, 64, 64, source_fps=24, every=12), "?"),)))
    text = loaded.tokenizer.decode(prompt.token_ids)
    assert [text.count(f"<{s} seconds>") for s in ("0.2", "1.2", "2.0")] == [1, 1, 1]
    assert prompt.media[0].timestamps == (0.0, 0.5, 1.0, 1.5, 2.0)


def test_too_long_a_prompt_gives_both_numbers_and_each_items_share(family: Any) -> None:
    loaded = family("qwen2_vl", max_positions=100)
    big = replace(picture(300, 300, 1), where="messages[0].content[0]")
    conversation = Conversation((user(big, "what?"),))
    report = loaded.count(conversation)
    assert not report.fits
    assert report.media[0].tokens == 121  # round(300 / 28) = 11 cells a side
    with pytest.raises(ContextLengthError) as caught:
        loaded.prepare(conversation)
    for part in (str(report.total), " 100", "messages[0].content[0] 121", "max_pixels"):
        assert part in str(caught.value)
    small = replace(big, limits=PixelLimits(max_pixels=28 * 28 * 30))
    assert loaded.prepare(Conversation((user(small, "what?"),))).num_image_tokens <= 30
    with pytest.raises(ContextLengthError, match="shorten the text"):
        loaded.prepare(Conversation((user("the dog " * 100),)))


def test_the_last_free_place_is_for_the_answer(family: Any) -> None:
    free = family("qwen2").count(TEXT_CASES["plain"]).total
    exact = family("qwen2", max_positions=free)
    with pytest.raises(ContextLengthError):
        exact.prepare(TEXT_CASES["plain"])
    assert len(family("qwen2", max_positions=free + 1).prepare(TEXT_CASES["plain"])) == free


def test_hashes_know_pixels_shape_kind_and_times(family: Any) -> None:
    loaded = family("qwen2_vl")

    def digest(*items: Any) -> list[str]:
        return [m.content_hash for m in loaded.prepare(Conversation((user(*items, "?"),))).media]

    flat = np.zeros((28 * 3, 28 * 5, 3), dtype=np.uint8)
    wide, tall = Image(flat), Image(flat.reshape(28 * 5, 28 * 3, 3))  # the same bytes, 84×140 and 140×84
    assert digest(wide)[0] != digest(tall)[0]
    assert digest(wide, wide)[0] == digest(wide, tall)[0] == digest(wide)[0]
    other = flat.copy()
    other[-1, -1, -1] = 1
    assert digest(Image(other)) != digest(wide)
    slow, fast = film(2, 56, 56, every=24), film(2, 56, 56, every=12)
    assert np.array_equal(slow.frames, fast.frames)
    assert digest(slow) != digest(fast)


def test_resized_height_and_width_are_taken_and_rounded_to_cells(family: Any) -> None:
    image = replace(picture(300, 500), limits=PixelLimits(resized_height=290, resized_width=170))
    # 290 / 28 = 10.36 → 10, 170 / 28 = 6.07 → 6
    assert family("qwen2_vl").prepare(Conversation((user(image, "?"),))).media[0].size == (280, 168)


def test_a_size_asked_for_by_a_slip_is_refused_before_its_tokens_are_written(family: Any) -> None:
    # 10¹² pixels = √(10¹²/15) · (3, 5) → 1275.5 million cells of 28²: as a list of ids, 10 GB
    image = replace(picture(300, 500), limits=PixelLimits(min_pixels=10**12), where="messages[0].content[0]")
    conversation = Conversation((user(picture(56, 56), image, "?"),))
    for do in (family("qwen2_vl").count, family("qwen2_vl").prepare):
        with pytest.raises(MediaError, match=r"messages\[0\]\.content\[0\]: .* 1,275,\d{3},\d{3} tokens.*min_pixels"):
            do(conversation)


def test_total_pixels_bound_a_whole_video(family: Any) -> None:
    video = film(8, 560, 560, seed=1)
    free = family("qwen2_vl").count(Conversation((user(video, "?"),))).media[0]
    assert free.size == (560, 560)
    bound = replace(video, total_pixels=400_000)
    # 400000 · 2 / 8 = 100000 a frame: 560² = 313600 shrinks by 1.7709, 560 / 1.7709 / 28 = 11.29 → 11 cells
    assert family("qwen2_vl").count(Conversation((user(bound, "?"),))).media[0].size == (308, 308)
    # the same 100000 of each frame: 316.2 / 32 = 9.88 → 9 cells
    assert family("qwen3_vl").count(Conversation((user(bound, "?"),))).media[0].size == (288, 288)


def test_aspect_ratio_is_refused_before_anything_is_resized(family: Any) -> None:
    image = Image(np.zeros((2, 500, 3), np.uint8), where="messages[0].content[0]")
    for name in VL_FAMILIES:
        with pytest.raises(MediaError, match=r"messages\[0\]\.content\[0\]: 500×2 .* 250\.0 times"):
            family(name).count(Conversation((user(image, "?"),)))


def test_media_where_the_template_shows_none_is_refused(tiny: Any, tmp_path: Path) -> None:
    folder = copied(tiny("qwen2_vl"), tmp_path)
    (folder / "chat_template.jinja").write_text(
        "{% for m in messages %}{% for p in m.content %}{{ p.text or '' }}{% endfor %}{% endfor %}", encoding="utf-8"
    )
    with pytest.raises(MessageError, match=r"1 images, but the chat template .* wrote 0"):
        load_family(str(folder)).prepare(Conversation((user(picture(56, 56), "?"),)))


def copied(folder: Path, target: Path) -> Path:
    """The small files of a tiny model, to change."""
    target.mkdir(exist_ok=True)
    for file in folder.iterdir():
        if file.suffix != ".safetensors":
            shutil.copy(file, target / file.name)
    return target


def edited(folder: Path, file: str, **changes: Any) -> Path:
    content = json.loads((folder / file).read_text(encoding="utf-8")) | changes
    (folder / file).write_text(json.dumps(content), encoding="utf-8")
    return folder


def test_box_format_is_declared_and_can_be_overridden(tiny: Any, tmp_path: Path) -> None:
    for name in VL_FAMILIES:
        assert load(tiny(name)).box_format == name
    assert load(tiny("qwen2")).box_format == "none"
    folder = edited(copied(tiny("qwen2_5_vl"), tmp_path), "config.json", visavis_box_format="qwen2_vl")
    assert load(folder).box_format == "qwen2_vl"
    (folder / "visavis.json").write_text('{"box_format": "ui_tars"}', encoding="utf-8")
    assert load(folder).box_format == "ui_tars"
    assert load(folder, box_format="qwen3_vl").box_format == "qwen3_vl"
    assert load(folder).prepare(TEXT_CASES["plain"]).box_format == "ui_tars"
    with pytest.raises(OptionError, match="box_format 'qwen9' is unknown; known: qwen2_vl"):
        load(folder, box_format="qwen9")
    (folder / "visavis.json").write_text('{"box_format": "typo"}', encoding="utf-8")
    with pytest.raises(ModelError, match=r"visavis\.json: box_format 'typo' is unknown"):
        load(folder)


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({"min_pixels": 784, "max_pixels": 7840}, (784, 7840)),
        ({"min_pixels": None, "max_pixels": None, "size": {"shortest_edge": 800, "longest_edge": 8000}}, (800, 8000)),
        ({"min_pixels": None, "max_pixels": None, "size": {"min_pixels": 900, "max_pixels": 9000}}, (900, 9000)),
        ({"min_pixels": None, "max_pixels": None}, (56 * 56, 28 * 28 * 1280)),
    ],
)
def test_pixel_bounds_are_read_in_every_layout(
    changes: dict[str, Any], wanted: tuple[int, int], tiny: Any, tmp_path: Path
) -> None:
    folder = edited(copied(tiny("qwen2_vl"), tmp_path), "preprocessor_config.json", **changes)
    found = load(folder).settings.image_bounds  # type: ignore[attr-defined]
    assert (found.min_pixels, found.max_pixels) == wanted


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"resample": 2}, "resample 2 is not supported"),
        ({"do_resize": False}, "do_resize False is not supported"),
        ({"patch_size": 0}, "patch_size 0 is not a size"),
        ({"image_mean": [1]}, "not three numbers"),
        ({"image_mean": [0.5, 0.5, float("nan")]}, "not three numbers"),
        ({"image_std": [0.5, 0, 0.5]}, "divide by zero"),
        ({"rescale_factor": "1/255"}, "rescale_factor '1/255' is no factor"),
        ({"min_pixels": 10, "max_pixels": 5}, "bounds pixels from 10 to 5"),
        ({"min_pixels": "many"}, "min_pixels 'many' is not a size"),
    ],
)
def test_processor_settings_we_do_not_follow_are_refused(
    changes: dict[str, Any], message: str, tiny: Any, tmp_path: Path
) -> None:
    folder = edited(copied(tiny("qwen2_vl"), tmp_path), "preprocessor_config.json", **changes)
    with pytest.raises(ModelError, match=message):
        load(folder)


def test_files_that_disagree_about_the_patches_are_refused(tiny: Any, tmp_path: Path) -> None:
    folder = edited(copied(tiny("qwen2_vl"), tmp_path), "preprocessor_config.json", patch_size=16)
    with pytest.raises(ModelError, match=r"patch_size is 14 in config\.json and 16 in preprocessor_config\.json"):
        load(folder)


def test_a_video_without_frames_is_refused(family: Any) -> None:
    empty = replace(film(1, 30, 30), frames=np.zeros((0, 30, 30, 3), np.uint8), timestamps=(), where="part 2")
    with pytest.raises(MediaError, match="part 2: the video has no frames"):
        family("qwen2_vl").count(Conversation((user(empty, "?"),)))


def test_one_frame_is_a_video_too(family: Any) -> None:
    for name in VL_FAMILIES:
        prompt = family(name).prepare(Conversation((user(film(1, 64, 64), "?"),)))
        assert prompt.media[0].grid is not None
        assert prompt.media[0].grid[0] == 1
        assert len(prompt.for_hf()["pixel_values_videos"]) == np.prod(prompt.media[0].grid)


@pytest.mark.parametrize("file", ["preprocessor_config.json", "tokenizer.json", "chat_template.jinja", "config.json"])
def test_a_missing_file_is_named(file: str, tiny: Any, tmp_path: Path) -> None:
    folder = copied(tiny("qwen2_vl"), tmp_path)
    (folder / file).unlink()
    with pytest.raises(ModelError, match=file.replace(".", r"\.")) as caught:
        load(folder).prepare(TEXT_CASES["plain"])
    assert str(folder) in str(caught.value)


def test_an_unknown_text_model_still_makes_prompts(tiny: Any, tmp_path: Path) -> None:
    folder = edited(copied(tiny("qwen2"), tmp_path), "config.json", model_type="some_new_lm")
    loaded = load(folder)
    assert loaded.name == "text"
    assert loaded.prepare(TEXT_CASES["plain"]).token_ids == load(tiny("qwen2")).prepare(TEXT_CASES["plain"]).token_ids


def test_counting_imports_neither_torch_nor_transformers(tiny: Any) -> None:
    code = (
        "import sys, numpy as np\n"
        "from visavis.families import load_family\n"
        "from visavis.chat.types import Conversation, Image, Message, Text\n"
        "family = load_family(sys.argv[1])\n"
        "image = Image(np.zeros((60, 90, 3), np.uint8))\n"
        "conversation = Conversation((Message('user', (image, Text('hello'))),))\n"
        "assert family.count(conversation).total == len(family.prepare(conversation))\n"
        "heavy = {'torch', 'transformers', 'av', 'huggingface_hub', 'rich'} & set(sys.modules)\n"
        "print(sorted(heavy))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tiny("qwen2_vl"))], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_generation_prompt_can_be_left_out(family: Any) -> None:
    loaded = family("qwen2_vl")
    conversation = Conversation((user("a"), said("assistant", "b")))
    with_prompt = loaded.prepare(conversation)
    without = loaded.prepare(conversation, add_generation_prompt=False)
    assert with_prompt.text == without.text + "<|im_start|>assistant\n"
    assert loaded.count(conversation, add_generation_prompt=False).total == len(without)


def test_a_large_picture_is_hashed_to_its_last_piece_on_any_number_of_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (700, 800, 3), dtype=np.uint8)
    other = pixels.copy()
    other[-1, -1, -1] ^= 1
    digests = []
    for cores in (1, 4):
        monkeypatch.setattr("visavis.families.common.usable_cores", lambda cores=cores: cores)
        digests.append((media_hash("image", pixels), media_hash("image", other)))
    assert digests[0] == digests[1]
    assert digests[0][0] != digests[0][1]
