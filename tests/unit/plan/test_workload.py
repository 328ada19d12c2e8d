"""What a request is: images after the one resize, text, answer; what nobody said is assumed aloud."""

from __future__ import annotations

import pytest

from tests.unit.plan.configs import qwen2_vl_7b, qwen3_vl_235b_fp8, qwen25_1_5b
from visavis.errors import ContextLengthError, MediaError, ModelError, OptionError
from visavis.families.resize import PixelBounds
from visavis.plan.shape import read_shape
from visavis.plan.workload import workload

QWEN2_VL = read_shape(qwen2_vl_7b())
QWEN3_VL = read_shape(qwen3_vl_235b_fp8())
TEXT = read_shape(qwen25_1_5b())


@pytest.mark.parametrize(
    ("size", "bounds", "tokens"),
    [
        # published examples of the resize rule, (height, width)
        ((434, 368), None, 208),
        ((1080, 1920), PixelBounds(3136, 1280 * 28 * 28), 1222),
        ((1724, 1362), PixelBounds(3136, 1280 * 28 * 28), 1240),
        ((27, 332), None, 12),
        ((1, 1), None, 4),
    ],
)
def test_image_tokens_follow_the_one_resize(size: tuple[int, int], bounds: PixelBounds | None, tokens: int) -> None:
    work = workload(QWEN2_VL, images=[size], bounds=bounds)
    assert work.image_tokens == tokens
    assert work.images[0].patches == 4 * tokens


def test_qwen3_vl_counts_in_32_pixel_cells() -> None:
    assert workload(QWEN3_VL, images=[(1080, 1920)]).image_tokens == 2040
    assert workload(QWEN3_VL, images=[(434, 368)]).image_tokens == 168


def test_a_request_is_text_images_with_their_markers_and_answer() -> None:
    work = workload(QWEN2_VL, images=[(434, 368), (27, 332)], prompt_tokens=100, max_tokens=50)
    assert work.prompt_tokens == 100 + 208 + 2 + 12 + 2
    assert work.tokens == work.prompt_tokens + 50
    assert work.largest_image is not None
    assert work.largest_image.tokens == 208


def test_what_was_not_said_is_assumed_and_said() -> None:
    work = workload(QWEN2_VL)
    assert len(work.images) == 1
    assert [n.split("(")[-1] for n in work.notes] == ["--image)", "--prompt-tokens)", "--max-tokens)", "--concurrency)"]
    asked = workload(QWEN2_VL, images=(), prompt_tokens=5, max_tokens=6, concurrency=7)
    assert asked.notes == ()
    assert asked.tokens == 11


def test_assumptions_bend_to_a_small_context_but_requests_do_not() -> None:
    work = workload(TEXT, max_model_len=64)
    assert work.tokens <= 64
    with pytest.raises(ContextLengthError, match=r"one request needs 128 .* context is 64"):
        workload(TEXT, prompt_tokens=100, max_tokens=28, max_model_len=64)


def test_images_for_a_text_model_are_refused() -> None:
    with pytest.raises(ModelError, match=r"--image.*qwen2 has no vision"):
        workload(TEXT, images=[(10, 10)])


def test_extreme_shapes_are_refused_by_number() -> None:
    with pytest.raises(MediaError, match="--image number 2"):
        workload(QWEN2_VL, images=[(100, 100), (10, 5000)])


@pytest.mark.parametrize("name", ["prompt_tokens", "max_tokens", "concurrency"])
def test_counts_start_at_one(name: str) -> None:
    with pytest.raises(OptionError, match=name.replace("_", "-")):
        workload(TEXT, **{name: 0})  # type: ignore[arg-type]
