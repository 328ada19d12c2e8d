"""Tiny model folders, each made once per session when first asked for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from visavis.families import Family, load_family

Tiny = Callable[..., Path]


@pytest.fixture(scope="session")
def transformers() -> Any:
    """The reference library; tests that need it are skipped without it."""
    return pytest.importorskip("transformers", reason="the reference is transformers (extra: hf)")


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    """`tiny("qwen2_vl", layout="old")` → folder."""
    made: dict[str, Path] = {}

    def get(family: str, **size: Any) -> Path:
        pytest.importorskip("transformers", reason="tiny models are made with transformers (extra: hf)")
        from tests.reference import tiny_generic, tiny_models

        makers = {**tiny_models.FAMILIES, **tiny_generic.FAMILIES}
        key = f"{family} {sorted(size.items())}"
        if key not in made:
            made[key] = makers[family](tmp_path_factory.mktemp(family), **size)
        return made[key]

    return get


@pytest.fixture(scope="session")
def family(tiny: Tiny) -> Callable[..., Family]:
    """`family("qwen2_vl")` → the loaded family of that tiny folder."""
    loaded: dict[Path, Family] = {}

    def get(name: str, **size: Any) -> Family:
        folder = tiny(name, **size)
        if folder not in loaded:
            loaded[folder] = load_family(str(folder))
        return loaded[folder]

    return get
