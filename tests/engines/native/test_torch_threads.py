"""torch keeps to one thread where the kernels have their own, and has all of them for pictures and to draw from many
logits."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from tests.engines.native.compiled import need_compiled_kernels
from tests.engines.native.drive import drain, greedy, make_engine
from tests.engines.native.reference import Reference
from visavis.engine import engine as engine_module
from visavis.engine.kernels.torch_threads import TorchThreads
from visavis.errors import BackendError
from visavis.sampling import ResolvedSampling

pytestmark = pytest.mark.engines

need_compiled_kernels()


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("kernels", "decoder", "few"), [("auto", 1, 1), ("torch", 2, 2)])
@pytest.mark.parametrize("compiled_tower", [True, False])
@pytest.mark.parametrize("most_logits", [0, 1 << 20])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_threads_of_torch(
    reference: Callable[..., Reference],
    two_threads: None,
    monkeypatch: pytest.MonkeyPatch,
    kernels: str,
    decoder: int,
    few: int,
    compiled_tower: bool,
    most_logits: int,
    temperature: float,
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

    assert engine.encoder is not None
    tower = engine.encoder.tower
    if kernels == "auto":
        monkeypatch.setattr(tower.ops, "compiled", compiled_tower)
    watch(tower.merger, "project")
    watch(engine.runner.device_step, "mixed")
    watch(engine.sampler, "sample")
    engine.add_request("0", prompt, ResolvedSampling(max_tokens=8, temperature=temperature))
    drain(engine, 1)
    engine.close()
    assert seen == {
        "project": {1 if kernels == "auto" and compiled_tower else 2},
        "mixed": {decoder},
        "sample": {2 if most_logits == 0 and temperature else few},  # the largest is found by the kernels
    }
    assert torch.get_num_threads() == 2


def test_other_threads_and_what_comes_after_an_error_have_all_of_them(two_threads: None) -> None:
    threads, seen = TorchThreads(kernels_have_own=True), []

    def look() -> None:
        torch.ones(10).sum()
        seen.append(torch.get_num_threads())

    def fail() -> None:
        with threads.one():
            look()
            other = threading.Thread(target=look)
            other.start()
            other.join()
            with threads.all():
                look()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    look()
    other = threading.Thread(target=look)  # one that begins later
    other.start()
    other.join()
    assert seen == [1, 2, 2, 2, 2]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.parametrize("which", ["its own engines", "its parent's engine"])
def test_a_forked_child_is_told_to_be_spawned_where_it_would_hang(
    reference: Callable[..., Reference], which: str
) -> None:
    ref = reference("qwen2", tied=False)
    engine = make_engine(ref, device="cpu", threads=2)
    prompt = ref.prompt([80], seed=1)
    greedy(engine, [prompt], 2)
    child = os.fork()
    if child == 0:
        code = 9
        try:
            if which == "its own engines":
                make_engine(ref, device="cpu", threads=1).close()
                make_engine(ref, device="cpu", threads=2)
            else:
                greedy(engine, [prompt], 2)
        except BackendError as error:
            code = 7 if "spawn" in str(error) else 8
        finally:
            os._exit(code)
    until = time.monotonic() + 60
    while time.monotonic() < until:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            assert os.waitstatus_to_exitcode(status) == 7
            return
        time.sleep(0.05)
    os.kill(child, 9)
    os.waitpid(child, 0)
    pytest.fail("the child hung")
