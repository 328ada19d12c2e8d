"""What a prompt, a completion and a mistyped keyword look like to someone at a Python prompt."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import visavis
from visavis.completion import Completion, MediaSize, Timings, TokenLogprobs
from visavis.errors import OptionError
from visavis.prompt import Prompt
from visavis.sampling import ResolvedSampling

CHAT = Completion(
    text="word " * 5000,
    token_ids=tuple(range(5000)),
    finish_reason="length",
    backend="native",
    model="tiny",
    prompt_tokens=12,
    image_tokens=0,
    sampling=ResolvedSampling(max_tokens=5000),
    timings=Timings(token_times=tuple(float(i) for i in range(5000))),
    logprobs=(TokenLogprobs(1, -0.5),) * 5000,
)


@pytest.fixture(scope="module")
def prompt() -> Prompt:
    picture = np.zeros((450, 800, 3), np.uint8)
    return visavis.prepare([{"role": "user", "content": [*({"type": "image", "image": picture},) * 5, "hi " * 500]}])


def test_a_prompts_repr_is_one_short_line_with_counts_and_sizes(prompt: Prompt) -> None:
    shown = repr(prompt)
    assert len(shown) < 300
    assert "\n" not in shown
    assert f"{len(prompt)} tokens" in shown
    height, width = prompt.media[0].size
    assert f"800×450 → {width}×{height}, {prompt.media[0].num_tokens} tokens" in shown
    assert "2 more" in shown
    assert len(repr(prompt.media)) < 500


def test_a_completions_repr_is_one_short_line() -> None:
    shown = repr(CHAT)
    assert len(shown) < 250
    assert "5000 tokens, length" in shown
    assert "'word word" in shown
    assert "error 'broke'" in repr(replace(CHAT, error="broke"))


def test_a_chat_without_images_has_no_boxes() -> None:
    found = CHAT.boxes()
    assert (found.items, found.rejects) == ((), ())


def test_an_image_that_was_not_there_is_refused() -> None:
    with pytest.raises(OptionError, match="had 0 images"):
        CHAT.boxes(1)
    with pytest.raises(OptionError, match="had 1 images"):
        replace(CHAT, media_sizes=(MediaSize((10, 10), (28, 28)),)).boxes(1)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"max_pixel": 5}, "prepare has no argument 'max_pixel'; did you mean max_pixels"),
        ({"bogus": 1}, "known: tools"),
    ],
)
def test_an_unknown_keyword_of_prepare_is_named_and_is_a_type_error(given: dict[str, int], said: str) -> None:
    with pytest.raises(OptionError, match=said) as refused:
        visavis.prepare("hi", **given)
    assert isinstance(refused.value, TypeError)
