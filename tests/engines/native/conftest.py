from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from tests.engines.native.reference import Reference


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    """Products this small gain nothing from a second thread and wait for it on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Reference]:
    """Models by family and size, each made once."""
    made: dict[Any, Reference] = {}

    def get(family: str, **size: Any) -> Reference:
        key = (family, tuple(sorted(size.items())))
        if key not in made:
            made[key] = Reference(family, tmp_path_factory.mktemp(family), **size)
        return made[key]

    return get
