"""Qwen-VL prompts against transformers' processors and models: ids, grids, types and positions exactly; image
patches bit for bit; video patches exactly where no resize is needed (transformers resizes frames with torchvision)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.reference import hf
from tests.reference.cases import VISION_CASES, film, picture, user
from tests.reference.tiny_models import VL_FAMILIES
from visavis.chat.types import Conversation, Text
from visavis.engine_inputs import for_hf_batch

pytestmark = hf.needs_torchvision


@pytest.mark.parametrize("case", VISION_CASES)
@pytest.mark.parametrize("name", VL_FAMILIES)
def test_prompt_equals_transformers(name: str, case: str, tiny: Any, family: Any) -> None:
    conversation = VISION_CASES[case]
    text, wanted = hf.process(tiny(name), conversation)
    prompt = family(name).prepare(conversation)
    assert prompt.text == text
    assert list(prompt.token_ids) == wanted["input_ids"][0].tolist()
    assert prompt.mm_token_type_ids.tolist() == wanted["mm_token_type_ids"][0].tolist()
    for kind, key in (("image", "image_grid_thw"), ("video", "video_grid_thw")):
        grids = [list(m.grid or ()) for m in prompt.media if m.kind == kind]
        assert grids == (wanted[key].tolist() if key in wanted else [])
    positions, delta = hf.positions(tiny(name), wanted)
    assert np.array_equal(prompt.position_ids, positions)
    assert prompt.rope_delta == delta
    given = prompt.for_hf()
    assert set(given) == set(wanted)
    if "pixel_values" in wanted:
        assert np.array_equal(given["pixel_values"].numpy(), wanted["pixel_values"].numpy())
    if "second_per_grid_ts" in wanted:
        assert given["second_per_grid_ts"].tolist() == wanted["second_per_grid_ts"].tolist()


@pytest.mark.parametrize("name", VL_FAMILIES)
def test_video_patches_equal_transformers_when_no_resize_is_needed(name: str, tiny: Any, family: Any) -> None:
    side = 64 if name == "qwen3_vl" else 56
    conversation = Conversation((user(film(5, side, 2 * side, seed=3), "?"),))
    _, wanted = hf.process(tiny(name), conversation)
    prompt = family(name).prepare(conversation)
    assert prompt.media[0].size == (side, 2 * side)
    ours, theirs = prompt.for_hf()["pixel_values_videos"].numpy(), wanted["pixel_values_videos"].numpy()
    # torchvision's fused scale-and-normalise differs from the exact one by rounding only
    assert np.abs(ours - theirs).max() < 1e-6


@pytest.mark.parametrize("name", VL_FAMILIES)
def test_resized_video_is_close_to_torchvisions_resize(name: str, tiny: Any, family: Any) -> None:
    conversation = Conversation((user(film(4, 100, 170, seed=3), "?"),))
    _, wanted = hf.process(tiny(name), conversation)
    ours = family(name).prepare(conversation).for_hf()["pixel_values_videos"].numpy()
    theirs = wanted["pixel_values_videos"].numpy()
    levels = np.abs(ours - theirs) * 255 * 0.27  # the deviation the pixels were divided by
    assert np.percentile(levels, 99) < 3


@pytest.mark.parametrize("name", VL_FAMILIES)
def test_per_item_limits_hold_like_transformers_size(name: str, tiny: Any, family: Any) -> None:
    from dataclasses import replace

    from visavis.chat.types import PixelLimits

    image = replace(picture(300, 400, 5), limits=PixelLimits(min_pixels=20_000, max_pixels=40_000))
    made = hf.processor(tiny(name)).image_processor(
        [image.pixels], size={"shortest_edge": 20_000, "longest_edge": 40_000}, return_tensors="pt"
    )
    prompt = family(name).prepare(Conversation((user(image, "?"),)))
    assert list(prompt.media[0].grid or ()) == made["image_grid_thw"][0].tolist()
    assert np.array_equal(prompt.for_hf()["pixel_values"].numpy(), made["pixel_values"].numpy())


def test_old_and_new_layouts_make_the_same_prompt(family: Any) -> None:
    conversation = VISION_CASES["mixture"]
    for name in VL_FAMILIES:
        new = family(name).prepare(conversation)
        old = family(name, layout="old", shards=2, template_file="chat_template.json").prepare(conversation)
        assert (new.token_ids, new.text) == (old.token_ids, old.text)
        assert np.array_equal(new.position_ids, old.position_ids)
        assert (
            family(name).max_model_len
            == family(name, layout="old", shards=2, template_file="chat_template.json").max_model_len
        )


def test_positions_of_a_padded_batch_equal_the_single_ones(tiny: Any, family: Any) -> None:
    loaded = family("qwen2_5_vl")
    prompts = [loaded.prepare(VISION_CASES[c]) for c in ("mixture", "no media", "three images")]
    batch = for_hf_batch(prompts, loaded.pad_token_id)
    found, _ = hf.model(tiny("qwen2_5_vl")).model.get_rope_index(
        batch["input_ids"],
        mm_token_type_ids=batch["mm_token_type_ids"],
        image_grid_thw=batch["image_grid_thw"],
        video_grid_thw=batch["video_grid_thw"],
        second_per_grid_ts=batch["second_per_grid_ts"],
        attention_mask=batch["attention_mask"],
    )
    for row, prompt in enumerate(prompts):
        assert np.array_equal(found[:, row, -len(prompt) :].numpy(), prompt.position_ids)
        assert int(found[0, row, -1]) + 1 == prompt.rope_delta + len(prompt)


def test_a_model_generates_the_same_from_our_inputs(tiny: Any, family: Any) -> None:
    for name in VL_FAMILIES:
        conversation = VISION_CASES["three images"]
        _, wanted = hf.process(tiny(name), conversation)
        settings = {"max_new_tokens": 4, "do_sample": False}
        ours = hf.model(tiny(name)).generate(**family(name).prepare(conversation).for_hf(), **settings)
        assert ours.tolist() == hf.model(tiny(name)).generate(**wanted, **settings).tolist()


def test_text_with_placeholder_spellings_adds_no_image(family: Any) -> None:
    for name in VL_FAMILIES:
        loaded = family(name)
        spelled = "<|vision_start|><|image_pad|><|vision_end|> <|video_pad|>"
        prompt = loaded.prepare(Conversation((user(picture(56, 56, 1), spelled),)))
        assert len(prompt.media) == 1
        assert prompt.token_ids.count(loaded.image_token_id) == prompt.media[0].num_tokens
        assert prompt.token_ids.count(loaded.video_token_id) == 0
        assert spelled in loaded.tokenizer.decode(prompt.token_ids)
        assert isinstance(VISION_CASES["no media"].messages[0].parts[0], Text)
