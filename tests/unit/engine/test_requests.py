"""A request that can never run is refused on arrival, by the name of the part at fault."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.unit.engine.helpers import text_prompt
from tests.unit.engine.test_config import QWEN2, QWEN2_VL
from visavis.engine.model_config import ModelConfig
from visavis.engine.requests import make_sequence
from visavis.errors import ContextLengthError, InputError, MediaError, OptionError
from visavis.prompt import PatchRule, PreparedMedia, Prompt, Span
from visavis.sampling import ResolvedSampling

TEXT_MODEL = ModelConfig.from_dict(QWEN2)
VISION_MODEL = ModelConfig.from_dict(QWEN2_VL)
RULE = PatchRule(14, 2, 2, (0.5,) * 3, (0.5,) * 3)
IMAGE = 900


def accept(prompt: Prompt, model: ModelConfig = TEXT_MODEL, **sampling: Any) -> Any:
    return make_sequence(0, "r", prompt, ResolvedSampling(**{"max_tokens": 4, **sampling}), model, 20)


def picture(num_ids: int = 4, **fields: Any) -> Prompt:
    ids = [1, *[IMAGE] * num_ids, 2]
    item = {"grid": (1, 4, 4), "span": Span(1, 4)} | {k: fields.pop(k) for k in ("grid", "span") if k in fields}
    media = PreparedMedia(
        "image",
        np.zeros((56, 56, 3), np.uint8),
        (56, 56),
        (56, 56),
        num_tokens=4,
        canonical_span=Span(1, 1),
        content_hash="",
        where="messages[0].content[1]",
        **item,
    )
    return text_prompt(ids, axes=3, **{"media": (media,), "patch_rule": RULE, "image_token_id": IMAGE, **fields})


def test_a_good_image_request_knows_where_its_tokens_are() -> None:
    seq = accept(picture(), VISION_MODEL)
    assert [positions.tolist() for positions in seq.visual_positions] == [[1, 2, 3, 4]]


@pytest.mark.parametrize(
    ("prompt", "model", "error", "named"),
    [
        (text_prompt([]), TEXT_MODEL, InputError, "empty"),
        (text_prompt([1, 1000]), TEXT_MODEL, InputError, "token id 1000"),
        (text_prompt([1, -1]), TEXT_MODEL, InputError, "token id -1"),
        (text_prompt([1, 2], axes=3), TEXT_MODEL, InputError, r"\(3, 2\).*\(1, 2\)"),
        (text_prompt([1] * 17), TEXT_MODEL, ContextLengthError, "17 tokens.*20.*lower max_tokens to 3"),
        (text_prompt([1] * 20), TEXT_MODEL, ContextLengthError, "20 tokens.*room for 20.*shorten the prompt to 19 or"),
        (text_prompt([1] * 30), TEXT_MODEL, ContextLengthError, "30 tokens.*room for 20.*shorten the prompt to 19 or"),
        (text_prompt([1], processor_inputs={"pixel_values": np.zeros(1)}), TEXT_MODEL, InputError, "backend hf"),
        (picture(), TEXT_MODEL, InputError, r"\(3, 6\)"),
        (picture(position_ids=np.zeros((1, 6), np.int64)), TEXT_MODEL, MediaError, r"messages\[0\].*text only"),
        (picture(grid=None), VISION_MODEL, MediaError, r"messages\[0\].*grid"),
        (picture(num_ids=5, span=Span(1, 5)), VISION_MODEL, MediaError, "5 visual tokens.*makes 4"),
        (picture(num_ids=5), VISION_MODEL, MediaError, "belong to no image"),
        (picture(patch_rule=None), VISION_MODEL, MediaError, "patch rule"),
        (picture(patch_rule=PatchRule(16, 2, 2, (0.5,) * 3, (0.5,) * 3)), VISION_MODEL, MediaError, r"\(16, 2, 2\)"),
    ],
)
def test_prompts_that_cannot_run_are_refused(
    prompt: Prompt, model: ModelConfig, error: type[Exception], named: str
) -> None:
    with pytest.raises(error, match=named):
        accept(prompt, model)


@pytest.mark.parametrize(
    ("sampling", "named"),
    [
        ({"n": 2}, "n times"),
        ({"bad_words": ("x",)}, "bad_words_ids"),
        ({"logit_bias": ((1000, 1.0),)}, "logit_bias names token 1000"),
        ({"stop_token_ids": (1000,)}, "stop_token_ids names token 1000"),
        ({"bad_words_ids": ((3, 1000),)}, "bad_words_ids names token 1000"),
    ],
)
def test_sampling_the_engine_does_not_do_is_refused(sampling: dict[str, Any], named: str) -> None:
    with pytest.raises(OptionError, match=named):
        accept(text_prompt([1]), **sampling)
