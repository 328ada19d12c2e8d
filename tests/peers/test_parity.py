"""The law of parity between real engines: float32, greedy, token for token; alone and in a batch.

The references are `native` and transformers (`hf`), asked once per model; then each peer is asked the same prompts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.peers import make_environment
from tests.peers.conftest import worker
from visavis.backends.worker import WorkerModel
from visavis.completion import Completion
from visavis.errors import OptionError
from visavis.prompt import Prompt
from visavis.sampling import SamplingParams

pytestmark = pytest.mark.peers

TEXT_FAMILIES = ("qwen2", "qwen3", "llama")
VL_FAMILIES = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")
NUM_TOKENS = 24
Start = Callable[..., WorkerModel]


def _image(height: int, width: int, seed: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def _conversations(*, images: bool, video: bool = False) -> list[list[dict[str, Any]]]:
    """Texts short and longer than a page of any cache; with 0, 1 and 2 images of unequal sizes; last an image and a
    video."""
    texts = ["Hello", "the thing and so on and on, in and out " * 12]
    contents: list[Any] = list(texts)
    if images:
        one = {"type": "image", "image": _image(80, 120, 1)}
        contents.append([one, {"type": "text", "text": "what is it"}])
        contents.append(
            [
                {"type": "image", "image": _image(200, 60, 2)},
                {"type": "text", "text": "and"},
                {"type": "image", "image": _image(64, 64, 3)},
                {"type": "text", "text": "the other"},
            ]
        )
    if video:
        frames = [_image(64, 64, seed) for seed in range(4)]
        parts = [{"type": "image", "image": _image(80, 60, 9)}, {"type": "video", "video": frames, "fps": 4.0}]
        contents.append([*parts, {"type": "text", "text": "both"}])
    return [[{"role": "user", "content": content}] for content in contents]


def _answers(model: WorkerModel, prompts: Sequence[Prompt]) -> tuple[list[Completion], list[Completion]]:
    """Each prompt alone, then all together."""
    params = SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=True)
    return [model.complete([prompt], params)[0] for prompt in prompts], model.complete(prompts, params)


_REFERENCES: dict[str, tuple[list[Prompt], list[tuple[int, ...]]]] = {}


def _reference(start: Start, folder: Path, conversations: list[Any]) -> tuple[list[Prompt], list[tuple[int, ...]]]:
    """Prompts, and the ids on which native and transformers agree."""
    key = str(folder)
    if key not in _REFERENCES:
        found = {}
        for engine in ("hf", "native"):
            model = start(engine, folder, enforce_eager=False, max_num_seqs=None)
            prompts = [model.prepare(c) for c in conversations]
            alone, together = _answers(model, prompts)
            found[engine] = [c.token_ids for c in alone]
            assert [c.token_ids for c in together] == found[engine]
            model.close()
        assert found["native"] == found["hf"]
        _REFERENCES[key] = prompts, found["hf"]
    return _REFERENCES[key]


def _check(
    start: Start,
    engine: str,
    folder: Path,
    conversations: list[Any],
    *,
    asked: slice = slice(None),
    **options: Any,
) -> WorkerModel:
    worker(engine)  # skips before the references are made
    prompts, expected = (values[asked] for values in _reference(start, folder, conversations))
    model = start(engine, folder, **options)
    alone, together = _answers(model, prompts)
    assert [c.error for c in (*alone, *together)] == [None] * 2 * len(prompts)
    assert [c.token_ids for c in alone] == expected
    assert [c.token_ids for c in together] == expected
    assert {len(ids) for ids in expected} == {NUM_TOKENS}
    return model


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@pytest.mark.parametrize("family", TEXT_FAMILIES)
def test_text_models_say_the_same_tokens(start: Start, tiny: Callable[[str], Path], family: str, engine: str) -> None:
    _check(start, engine, tiny(family), _conversations(images=False))


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@pytest.mark.parametrize("family", VL_FAMILIES)
def test_vision_models_say_the_same_tokens_for_no_one_and_two_images_and_a_video(
    start: Start, tiny: Callable[[str], Path], family: str, engine: str
) -> None:
    """The video is two pairs of frames, short enough that all engines place the text after it alike. SGLang's
    Qwen2.5-VL tower looks across frames where transformers' does not (docs/backends.md)."""
    video = (engine, family) != ("sglang", "qwen2_5_vl")
    limits = {"image": 2, "video": 1}
    asked = slice(None if video else -1)
    model = _check(
        start, engine, tiny(family), _conversations(images=True, video=True), asked=asked, limit_per_prompt=limits
    )
    three = [{"type": "image", "image": _image(64, 64, seed)} for seed in range(3)]
    with pytest.raises(OptionError, match="3 images and limit_per_prompt allows 2"):
        model.complete([model.prepare([{"role": "user", "content": three}])])


def test_a_real_small_model_says_the_same_tokens(start: Start) -> None:
    folder = make_environment.smollm2()
    if folder is None:
        pytest.skip("SmolLM2 is not there: python tests/peers/make_environment.py smollm2")
    questions = ["What is the capital of France?", "Count from one to ten.", "Write a haiku about the sea."]
    _check(start, "vllm", folder, [[{"role": "user", "content": q}] for q in questions])
