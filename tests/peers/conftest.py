"""Real engines in environments of their own. What is missing is skipped with the command that makes it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.peers import make_environment
from tests.reference import tiny_models
from visavis.backends.options import EngineOptions
from visavis.backends.worker import WorkerModel

# Within the worker itself: a third of the start-up time, and this machine has two cores.
FAST_START = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


def engine_options(engine: str, **changes: Any) -> EngineOptions:
    """Small and eager, in float32."""
    extra = {"max_total_tokens": 4096} if engine == "sglang" else {}
    values: dict[str, Any] = {
        "dtype": "float32",
        "device": "cpu",
        "enforce_eager": True,
        "max_model_len": 1024,
        "max_num_seqs": 8,
        "kv_cache_bytes": 1 << 28 if engine == "vllm" else None,
        "warmup": False,
        "extra": extra,
    }
    return EngineOptions(**values | changes)


def interpreter(engine: str) -> str:
    """Of the engine's test environment; skips the test where there is none."""
    environment = make_environment.find(engine)
    if environment is None:
        pytest.skip(f"no {engine} test environment: python tests/peers/make_environment.py {engine}")
    return str(environment.python)


def worker(engine: str, **options: Any) -> WorkerModel:
    """Not loaded yet."""
    python = None if engine in ("native", "hf") else interpreter(engine)
    return WorkerModel(engine, python=python, env=FAST_START, **options)


@pytest.fixture
def start() -> Iterator[Callable[..., WorkerModel]]:
    """`start(engine, model, **changes)` gives a loaded worker, closed at the end of the test."""
    started: list[WorkerModel] = []

    def run(engine: str, model: str | Path | None, **changes: Any) -> WorkerModel:
        made = worker(engine)
        started.append(made)
        return made.load(None if model is None else str(model), engine_options(engine, **changes))

    yield run
    for made in started:
        made.close()


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Tiny random folders, made once. Heads of 32, which vLLM's CPU attention has; the first generation of weight names
    and `in_chans`, as published Qwen2-VL and Qwen2.5-VL checkpoints have them and SGLang reads them."""
    made: dict[str, Path] = {}

    def make(family: str) -> Path:
        if family not in made:
            folder = tmp_path_factory.mktemp("tiny") / family
            layout = "old" if family in ("qwen2_vl", "qwen2_5_vl") else "new"
            tiny_models.make(family, folder, head_dim=32, heads=2, kv_heads=1, layout=layout)
            config = json.loads((folder / "config.json").read_text())
            if "vision_config" in config:
                config["vision_config"]["in_chans"] = 3
                (folder / "config.json").write_text(json.dumps(config))
            made[family] = folder
        return made[family]

    return make


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
