"""Prompts in the forms engines take."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from tests.reference import hf
from tests.reference.cases import TEXT_CASES, VISION_CASES, film, picture, user
from tests.reference.tiny_models import VL_FAMILIES
from visavis.chat.types import Conversation, PixelLimits
from visavis.engine_inputs import for_hf_batch, seconds_per_grid
from visavis.errors import OptionError
from visavis.families.resize import PixelBounds, smart_resize, smart_resize_video


def test_text_models_get_ids_and_mask_only(family: Any) -> None:
    prompt = family("qwen2").prepare(TEXT_CASES["plain"])
    given = prompt.for_hf()
    assert set(given) == {"input_ids", "attention_mask"}
    assert given["input_ids"].tolist() == [list(prompt.token_ids)]
    assert given["attention_mask"].tolist() == [[1] * len(prompt)]


def test_a_batch_is_padded_on_the_left_and_keeps_the_order_of_its_media(family: Any) -> None:
    loaded = family("qwen2_5_vl")
    prompts = [loaded.prepare(VISION_CASES[c]) for c in ("one image", "no media", "mixture")]
    batch = for_hf_batch(prompts, loaded.pad_token_id)
    length = max(len(p) for p in prompts)
    for row, prompt in enumerate(prompts):
        missing = length - len(prompt)
        assert batch["input_ids"][row].tolist() == [loaded.pad_token_id] * missing + list(prompt.token_ids)
        assert batch["attention_mask"][row].tolist() == [0] * missing + [1] * len(prompt)
        assert batch["mm_token_type_ids"][row].tolist() == [0] * missing + prompt.mm_token_type_ids.tolist()
    singles = [p.for_hf() for p in prompts]
    for name in ("pixel_values", "image_grid_thw", "pixel_values_videos", "video_grid_thw", "second_per_grid_ts"):
        parts = [single[name].numpy() for single in singles if name in single]
        assert np.array_equal(batch[name].numpy(), np.concatenate(parts))


@pytest.mark.parametrize("name", ["qwen2_5_vl", "qwen3_vl"])
def test_batched_generation_equals_single_generation(name: str, tiny: Any, family: Any, transformers: Any) -> None:
    loaded = family(name)
    model = transformers.AutoModelForImageTextToText.from_pretrained(tiny(name)).eval()
    prompts = [loaded.prepare(VISION_CASES[c]) for c in ("one image", "no media", "mixture")]
    settings = {"max_new_tokens": 3, "do_sample": False, "eos_token_id": None}
    batch = model.generate(**for_hf_batch(prompts, loaded.pad_token_id), **settings)[:, -3:]
    for row, prompt in enumerate(prompts):
        assert batch[row].tolist() == model.generate(**prompt.for_hf(), **settings)[0, -3:].tolist()


def test_batches_of_different_models_are_refused(family: Any) -> None:
    with pytest.raises(OptionError, match="different models"):
        for_hf_batch([family("qwen2").prepare(TEXT_CASES["plain"]), family("qwen3").prepare(TEXT_CASES["plain"])], 0)
    with pytest.raises(OptionError, match="at least one"):
        for_hf_batch([], 0)


def test_seconds_per_grid_is_two_frames_at_the_sampled_rate(family: Any) -> None:
    # every 6th frame of 24 a second: 4 frames a second, two to a patch: half a second
    prompt = family("qwen2_5_vl").prepare(Conversation((user(film(4, 56, 56, every=6), "?"),)))
    assert seconds_per_grid(prompt.media[0], 2) == 0.5
    assert prompt.for_hf()["second_per_grid_ts"].tolist() == [0.5]
    assert "second_per_grid_ts" not in family("qwen2_vl").prepare(VISION_CASES["video"]).for_hf()


def test_vllm_text_prompts_are_ids_alone(family: Any) -> None:
    prompt = family("qwen2_vl").prepare(VISION_CASES["no media"])
    assert prompt.for_vllm() == {"prompt_token_ids": list(prompt.canonical_ids)}


@pytest.mark.parametrize("name", VL_FAMILIES)
def test_vllm_gets_canonical_ids_and_pixels_its_resize_leaves_alone(name: str, family: Any) -> None:
    loaded = family(name)
    prompt = loaded.prepare(VISION_CASES["mixture"])
    given = prompt.for_vllm()
    assert given["prompt_token_ids"] == list(prompt.canonical_ids)
    images = [m for m in prompt.media if m.kind == "image"]
    videos = [m for m in prompt.media if m.kind == "video"]
    for item, sent in zip(images, given["multi_modal_data"]["image"], strict=True):
        assert np.array_equal(np.asarray(sent), item.pixels)
    for item, (frames, metadata) in zip(videos, given["multi_modal_data"]["video"], strict=True):
        assert np.array_equal(frames[: len(item.pixels)], item.pixels)
        # an odd Qwen3-VL video ends as its patches do, with the last frame twice
        assert len(frames) == len(item.pixels) + (len(item.pixels) % 2 if name == "qwen3_vl" else 0)
        assert np.array_equal(frames[len(item.pixels) :], item.pixels[-1:].repeat(len(frames) - len(item.pixels), 0))
        assert metadata["do_sample_frames"] is False
        times = [i / metadata["fps"] for i in metadata["frames_indices"]]
        assert times[: len(item.pixels)] == pytest.approx(item.timestamps)
    options = given["mm_processor_kwargs"]
    bounds = PixelBounds(options["min_pixels"], options["max_pixels"])
    cell = loaded.patch_rule.cell
    for item in images:
        assert smart_resize(*item.size, cell=cell, bounds=bounds) == item.size
    for item in videos:
        if name == "qwen3_vl":
            frames = len(item.pixels)
            assert smart_resize_video(frames, *item.size, cell=cell, temporal=2, bounds=bounds) == item.size
        else:
            assert smart_resize(*item.size, cell=cell, bounds=bounds) == item.size
    assert options["size"] == {"shortest_edge": bounds.min_pixels, "longest_edge": bounds.max_pixels}
    rates = [m.fps for m in videos]
    assert options["fps"] == rates
    assert given["multi_modal_uuids"] == {
        "image": [m.content_hash for m in images],
        "video": [m.content_hash for m in videos],
    }


def test_one_rate_is_a_number_not_a_list(family: Any) -> None:
    prompt = family("qwen2_5_vl").prepare(VISION_CASES["video"])
    assert prompt.for_vllm()["mm_processor_kwargs"]["fps"] == prompt.media[0].fps == 2.0


def test_a_small_and_a_large_image_both_pass_vllms_bounds(family: Any) -> None:
    prompt = family("qwen2_vl").prepare(Conversation((user(picture(30, 30), picture(700, 900), "?"),)))
    options = prompt.for_vllm()["mm_processor_kwargs"]
    assert (options["min_pixels"], options["max_pixels"]) == (56 * 56, 700 * 896)


@hf.needs_torchvision
@pytest.mark.parametrize("name", VL_FAMILIES)
def test_the_processor_vllm_runs_makes_our_prompt_of_it(name: str, tiny: Any, family: Any) -> None:
    """vLLM hands text, media and options to transformers' processor: the sizes come out unchanged."""
    import torch

    image = replace(picture(400, 500, 1), limits=PixelLimits(max_pixels=50_000))
    video = replace(film(6, 200, 300, seed=1), limits=PixelLimits(min_pixels=1000, max_pixels=3500))
    prompt = family(name).prepare(Conversation((user(image, "x", video, "y", picture(30, 30, 2)),)))
    assert prompt.num_image_tokens < 400
    given = prompt.for_vllm()
    options = given["mm_processor_kwargs"]
    frames, metadata = given["multi_modal_data"]["video"][0]
    made = hf.processor(tiny(name))(
        text=[prompt.text],
        images=given["multi_modal_data"]["image"],
        videos=[torch.from_numpy(frames).permute(0, 3, 1, 2)],
        video_metadata=[{k: v for k, v in metadata.items() if k != "do_sample_frames"}],
        do_sample_frames=False,
        size=options["size"],
    )
    assert made["input_ids"][0] == list(prompt.token_ids)


@hf.needs_torchvision
@pytest.mark.parametrize("frames", [1, 2, 3, 5, 9])
@pytest.mark.parametrize("name", VL_FAMILIES)
def test_vllms_processor_takes_any_number_of_frames_as_they_are(name: str, frames: int, tiny: Any, family: Any) -> None:
    """Round(5 / 2) is 2: transformers' Qwen3-VL bounds 5 frames as 4 and makes patches of 6."""
    prompt = family(name).prepare(Conversation((user(film(frames, 64, 64, seed=frames), "?"),)))
    assert processed_for_vllm(tiny(name), prompt) == (list(prompt.token_ids), [list(prompt.media[0].grid or ())])


@hf.needs_torchvision
@pytest.mark.parametrize("rate", [30.0, 25.0, 24000 / 1001, 30000 / 1001])
def test_vllm_writes_the_same_timestamps_into_a_qwen3_prompt(rate: float, tiny: Any, family: Any) -> None:
    """10 s at 2 frames a second, first and last included: frames 0, 15.7, 31.5 … lie on no grid of half seconds."""
    total = round(10 * rate)
    indices = tuple(int(i) for i in np.linspace(0, total - 1, 20).round())
    video = replace(
        film(20, 32, 32),
        timestamps=tuple(float(i / Fraction(rate).limit_denominator(1001)) for i in indices),
        fps=20 / total * rate,
        source_fps=rate,
        frame_indices=indices,
        total_frames=total,
    )
    prompt = family("qwen3_vl").prepare(Conversation((user(video, "?"),)))
    ids, grids = processed_for_vllm(tiny("qwen3_vl"), prompt)
    assert ids == list(prompt.token_ids)
    assert grids == [list(prompt.media[0].grid or ())]


def processed_for_vllm(folder: Any, prompt: Any) -> tuple[list[int], list[list[int]]]:
    """(ids, video grids) that transformers' processor makes of the text and what vLLM is given."""
    import torch

    given = prompt.for_vllm()
    videos = given["multi_modal_data"]["video"]
    made = hf.processor(folder)(
        text=[prompt.text],
        videos=[torch.from_numpy(frames).permute(0, 3, 1, 2) for frames, _ in videos],
        video_metadata=[{k: v for k, v in metadata.items() if k != "do_sample_frames"} for _, metadata in videos],
        do_sample_frames=False,
        size=given["mm_processor_kwargs"]["size"],
    )
    return list(made["input_ids"][0]), [list(map(int, grid)) for grid in made["video_grid_thw"]]
