"""Families that run through transformers' own processor: the same tokens from the peers as from transformers.

vLLM and SGLang run the model's processor themselves, in their environments' transformers; the prompt ids they report
are compared. What they do not run is in docs/backends.md with the reason.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.peers.conftest import worker
from tests.reference import tiny_generic
from visavis.backends.worker import WorkerModel
from visavis.sampling import SamplingParams

pytestmark = pytest.mark.peers

PEERS = {"llava": ["vllm"], "idefics3": ["vllm"], "smolvlm": ["vllm", "sglang"]}


def _named_as_published(folder: Path) -> None:
    """Weight names as on the hub, which all engines read; newer transformers saves others."""
    from safetensors.numpy import load_file, save_file

    def published(name: str) -> str:
        name = name.removeprefix("model.")
        if name.startswith("vision_tower."):
            return name.replace("vision_tower.", "vision_tower.vision_model.", 1)
        return name.replace("language_model.", "language_model.model.", 1).replace(
            "lm_head", "language_model.lm_head", 1
        )

    file = folder / "model.safetensors"
    save_file({published(k): v for k, v in load_file(file).items()}, file, metadata={"format": "pt"})


@pytest.mark.parametrize("family", PEERS)
def test_generic_models_say_the_same_tokens(start: Callable[..., WorkerModel], tmp_path: Path, family: str) -> None:
    for engine in PEERS[family]:
        worker(engine)  # skips first
    folder = tiny_generic.FAMILIES[family](tmp_path / family, hidden=64, heads=2, kv_heads=1)
    if family == "llava":
        _named_as_published(folder)
    image = np.random.default_rng(5).integers(0, 256, (60, 90, 3), dtype=np.uint8)
    conversations = [
        [{"role": "user", "content": "Hello"}],
        [{"role": "user", "content": [{"type": "image", "image": image}, {"type": "text", "text": "what is it"}]}],
    ]
    got = {}
    for engine in ("hf", *PEERS[family]):
        model = start(engine, folder, enforce_eager=engine != "hf", max_num_seqs=None)
        prompts = [model.prepare(c) for c in conversations]
        done = model.complete(prompts, SamplingParams(max_tokens=16, ignore_eos=True))
        assert [c.error for c in done] == [None, None]
        got[engine] = [c.token_ids for c in done]
        model.close()
    assert all(ids == got["hf"] for ids in got.values())
