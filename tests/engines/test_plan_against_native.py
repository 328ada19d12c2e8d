"""What the planner predicts for the native engine, against the memory it really holds (CPU, float32)."""

from __future__ import annotations

import gc
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from visavis.families import load_family
from visavis.families.hub import resolve_model
from visavis.plan import Device, EnginePlan, Plan, plan
from visavis.sampling import SamplingParams, resolve

torch = pytest.importorskip("torch")

CPU = Device("cpu", "CPU", 32 * 2**30, 20 * 2**30, 1, None, "test")
SCREEN = (672, 1176)


def storages() -> dict[int, int]:
    """Every tensor storage alive, and its bytes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tensors = [o for o in gc.get_objects() if isinstance(o, torch.Tensor)]
    return {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in tensors}


def live_peak(own: dict[int, int], call: Callable[[], Any], recycled: Any) -> int:
    """The most bytes at once during `call`: of new tensor storage alive, and of what is recycled, in use or not."""
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_iter

    class Live(TorchDispatchMode):
        now = peak = 0

        def __init__(self) -> None:
            super().__init__()
            self.known = set(own)

        def _gone(self, key: int, size: int) -> None:
            self.now -= size
            self.known.discard(key)

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = function(*args, **(kwargs or {}))
            kept = 0 if recycled is None else recycled.num_bytes
            for tensor in tree_iter(out):
                if not isinstance(tensor, torch.Tensor) or (recycled is not None and tensor.data_ptr() in recycled):
                    continue
                if (key := tensor.untyped_storage()._cdata) not in self.known:
                    storage = tensor.untyped_storage()
                    self.known.add(key)
                    self.now += storage.nbytes()
                    weakref.finalize(storage, self._gone, key, storage.nbytes())
            self.peak = max(self.peak, self.now + kept)
            return out

    with Live() as live:
        call()
    return live.peak


def predicted(**work: Any) -> tuple[Plan, EnginePlan]:
    result = plan(resolve_model(None).config, CPU, concurrency=1, max_tokens=3, engines=("native",), **work)
    found = result.engine("native")
    assert found is not None
    return result, found


@pytest.mark.parametrize("kind", ["text", "image"])
def test_native_holds_what_was_predicted(kind: str) -> None:
    from PIL import Image

    from visavis.engine import EngineConfig, NativeEngine

    family, folder = load_family(None), resolve_model(None)
    content: list[dict[str, Any]] = [{"type": "text", "text": "word " * 600}]
    if kind == "image":
        content = [{"type": "image", "image": Image.new("RGB", (SCREEN[1], SCREEN[0]))}, *content[1:]]
    prompt = family.prepare_messages([{"role": "user", "content": content}])
    text_tokens = len(prompt) - prompt.num_image_tokens
    result, found = predicted(images=[SCREEN] if kind == "image" else (), prompt_tokens=text_tokens)

    before = storages()
    engine = NativeEngine(
        folder.path,
        folder.config,
        EngineConfig(
            device="cpu",
            max_model_len=found.value("max_model_len"),
            max_num_seqs=found.value("max_num_seqs"),
            max_num_batched_tokens=found.value("max_num_batched_tokens"),
            kv_cache_bytes=found.value("kv_cache_bytes"),
        ),
    )
    try:
        own = storages()
        held = sum(size for key, size in own.items() if key not in before)
        arena = getattr(engine.runner.kernels, "arena", None)  # of the compiled kernels, where they can be had
        held -= arena.untouched_bytes if arena is not None else 0
        cache = engine.num_blocks * result.kv_bytes_per_block
        assert engine.max_model_len == found.value("max_model_len")  # the proposed cache holds the proposed length
        assert engine.num_blocks >= found.kv_blocks
        assert held == pytest.approx(result.weight_bytes + cache, rel=0.03)

        sampling = resolve(SamplingParams(max_tokens=3), prompt_tokens=len(prompt), max_model_len=engine.max_model_len)
        engine.add_request("one", prompt, sampling)
        peak = held + live_peak(own, engine.step, getattr(engine.runner.kernels, "recycled", None))
        activations = next(part.bytes for part in found.parts if part.name == "activations")
        # The plan is for a full step, so it may be above what one request's step takes, but not below; and for plain
        # torch, which holds gate and up of all tokens, where the compiled kernels hold those of a few.
        gates = len(prompt) * 2 * engine.model_config.intermediate_size * 4 if arena is not None else 0
        assert 0.99 * peak <= result.weight_bytes + cache + activations <= 1.25 * (peak + gates)
    finally:
        engine.close()
