from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.reference.tiny_models import VL_FAMILIES, make
from visavis.backends.hf import HuggingFaceModel
from visavis.backends.options import EngineOptions
from visavis.prompt import Prompt

Folder = Callable[..., Path]
Load = Callable[..., HuggingFaceModel]


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    """Products this small gain nothing from a second thread and wait for it on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    """`folder(family, **size)`: a tiny random model, each made once."""
    made: dict[Any, Path] = {}

    def get(family: str, **size: Any) -> Path:
        key = (family, tuple(sorted(size.items(), key=str)))
        if key not in made:
            made[key] = make(family, tmp_path_factory.mktemp(family), **size)
        return made[key]

    return get


@pytest.fixture(scope="session")
def loaded(folder: Folder) -> Iterator[Load]:
    """`loaded(family)`: a loaded model in float32, each loaded once."""
    models: dict[str, HuggingFaceModel] = {}

    def get(family: str) -> HuggingFaceModel:
        if family not in models:
            models[family] = HuggingFaceModel().load(str(folder(family)), EngineOptions(warmup=False))
        return models[family]

    yield get
    for model in models.values():
        model.close()


def picture(seed: int, height: int, width: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(0, 255, (height, width, 3), dtype=np.uint8)


def mixed_prompts(model: HuggingFaceModel, family: str) -> list[Prompt]:
    """Prompts of very unequal lengths; with none, one and two images where the model takes them."""
    contents: list[Any] = ["hi", "Where is the search field? " * 12, "One more question, please."]
    if family in VL_FAMILIES:
        look = {"type": "text", "text": "look"}
        contents.append([{"type": "image", "image": picture(1, 90, 130)}, look])
        contents.append(
            [{"type": "image", "image": picture(2, 60, 60)}, look, {"type": "image", "image": picture(3, 200, 64)}]
        )
    return [model.prepare([{"role": "user", "content": content}]) for content in contents]
