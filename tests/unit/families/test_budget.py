"""Too many visual tokens for the context: the error names a `max_pixels` that fits, and it does."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.reference.cases import film, picture, user
from tests.reference.tiny_models import VL_FAMILIES
from visavis.chat import Conversation, Image, PixelLimits, Video
from visavis.errors import ContextLengthError
from visavis.families import Family

CASES: dict[str, tuple[Image | Video, ...]] = {
    "one image": (picture(900, 700, 1),),
    "three images": (picture(300, 400, 1), picture(40, 30, 2), picture(700, 200, 3)),
    "a video": (film(7, 200, 300),),
    "both": (picture(500, 300, 1), film(4, 160, 240)),
}


def proposed(error: ContextLengthError) -> tuple[int, int]:
    found = re.search(r"max_pixels (\d+) fits with (\d+) tokens for the answer", str(error))
    assert found, str(error)
    return int(found[1]), int(found[2])


def total(family: Family, items: tuple[Image | Video, ...], max_pixels: int | None) -> int:
    bounded = [replace(item, limits=PixelLimits(max_pixels=max_pixels)) for item in items]
    return family.count(Conversation((user(*bounded, "?"),))).total


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", VL_FAMILIES)
def test_the_bound_in_the_error_fits_and_is_the_largest(name: str, case: str, family: Any) -> None:
    loaded, items = family(name, max_positions=180), CASES[case]
    with pytest.raises(ContextLengthError) as caught:
        loaded.prepare(Conversation((user(*items, "?"),)))
    bound, kept = proposed(caught.value)
    assert kept == 45  # a quarter of a short context
    assert total(loaded, items, bound) <= 180 - 45
    assert total(loaded, items, bound + loaded.patch_rule.cell**2) > 180 - 45


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", VL_FAMILIES)
def test_an_engine_with_a_smaller_context_names_a_bound_too(name: str, case: str, family: Any) -> None:
    loaded, items = family(name), CASES[case]
    prompt = loaded.prepare(Conversation((user(*items, "?"),)))
    bound = loaded.fitting_max_pixels(prompt, 140)
    assert total(loaded, items, bound) <= 140 < total(loaded, items, bound + loaded.patch_rule.cell**2)


def test_an_engine_says_it_with_its_own_context(family: Any) -> None:
    from visavis.backends.fake import FakeModel
    from visavis.backends.options import EngineOptions

    loaded = family("qwen2_vl")
    model = FakeModel(family=loaded).load(options=EngineOptions(max_model_len=200, warmup=False))
    with pytest.raises(ContextLengthError, match="the context is 200: no room") as caught:
        model.complete([loaded.prepare(Conversation((user(*CASES["one image"], "?"),)))])
    bound, kept = proposed(caught.value)
    assert (kept, total(loaded, CASES["one image"], bound) <= 150) == (50, True)


def test_many_frames_have_another_way_out(family: Any) -> None:
    with pytest.raises(ContextLengthError, match="lower fps or max_frames"):
        family("qwen2_vl", max_positions=180).prepare(Conversation((user(*CASES["a video"], "?"),)))


def test_no_bound_is_named_where_the_text_alone_is_too_long(family: Any) -> None:
    loaded = family("qwen2_vl", max_positions=180)
    with pytest.raises(ContextLengthError, match="; lower max_pixels, send fewer items or shorten the text") as caught:
        loaded.prepare(Conversation((user(picture(60, 60), "the dog " * 200),)))
    assert "fits" not in str(caught.value)


def test_more_images_than_the_context_has_places_get_no_bound(family: Any) -> None:
    """56 × 56 is 4 tokens; a bound of one cell makes 1 of them, and two markers stand around each."""
    loaded = family("qwen2_vl", max_positions=180)
    with pytest.raises(ContextLengthError, match="; lower max_pixels, send fewer items"):
        loaded.prepare(Conversation((user(*[picture(56, 56, i) for i in range(60)], "?"),)))


def test_a_size_fixed_above_the_original_has_an_end(family: Any) -> None:
    loaded = family("qwen2_vl")
    fixed = replace(picture(30, 30), limits=PixelLimits(resized_height=560, resized_width=560))
    prompt = loaded.prepare(Conversation((user(fixed, "?"),)))
    assert prompt.num_image_tokens == 400
    assert loaded.fitting_max_pixels(prompt, 200) is not None


def test_ask_refuses_beforehand_with_the_bound(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from PIL import Image as PILImage

    from visavis.cli.app import main

    file = tmp_path / "screen.png"
    PILImage.fromarray(picture(480, 360).pixels).save(file)
    assert main(["ask", "Where is it?", "--image", str(file), "--max-model-len", "200"]) == 2
    said = capsys.readouterr().err
    assert "the context is 200" in said
    bound, kept = proposed(ContextLengthError(said))
    assert kept == 50
    assert main(["count", "Where is it?", "--image", str(file), "--max-pixels", str(bound), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["conversations"][0]["total"] <= 150
