"""torch keeps to one thread where the kernels have their own, and has all of them for pictures and for many logits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from tests.engines.native.drive import greedy, make_engine
from tests.engines.native.reference import Reference
from visavis.engine import engine as engine_module
from visavis.engine.kernels.cpu.build import BuildError, find_library

pytestmark = pytest.mark.engines

try:
    find_library()
except BuildError as error:
    pytest.skip(f"no compiled CPU kernels here: {error}", allow_module_level=True)


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("kernels", "decoder", "few"), [("auto", 1, 1), ("torch", 2, 2)])
@pytest.mark.parametrize("most_logits", [0, 1 << 20])
def test_threads_of_torch(
    reference: Callable[..., Reference],
    two_threads: None,
    monkeypatch: pytest.MonkeyPatch,
    kernels: str,
    decoder: int,
    few: int,
    most_logits: int,
) -> None:
    ref = reference("qwen2_vl", tied=False)
    prompt = ref.prompt([5, ("image", (1, 4, 6)), 9], 0)
    engine = make_engine(ref, device="cpu", dtype="float32", kernels=kernels, threads=2)
    monkeypatch.setattr(engine_module, "MANY_LOGITS", most_logits)
    seen: dict[str, set[int]] = {}

    def watch(owner: Any, name: str) -> None:
        real = getattr(owner, name)

        def watched(*arguments: Any) -> Any:
            seen.setdefault(name, set()).add(torch.get_num_threads())
            return real(*arguments)

        monkeypatch.setattr(owner, name, watched)

    watch(engine.encoder, "_encode")
    watch(engine.runner.device_step, "mixed")
    watch(engine.sampler, "sample")
    greedy(engine, [prompt])
    engine.close()
    assert seen == {"_encode": {2}, "mixed": {decoder}, "sample": {2 if most_logits == 0 else few}}
    assert torch.get_num_threads() == 2
