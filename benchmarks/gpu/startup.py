"""Process start to first token from safetensors on a local disk, kernel cache cold and warm, files in memory or not.

`python -m benchmarks.gpu.startup Qwen2-VL-7B FOLDER` writes a checkpoint of random weights there, if there is none, and
prints one JSON line a start. Each start is a process of its own; its clock begins before the interpreter does. The
vision model's prompt is a picture of 1920 × 1080, resized already.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.machine import need_cuda
from benchmarks.gpu.models import CONFIGS, make_engine
from visavis.engine import NativeEngine

SHARD_BYTES = 4 << 30
WRITERS = 4
ONE_START = """
import json, sys, time
begin = float(sys.argv[2])
from pathlib import Path
import numpy as np
from benchmarks.gpu.models import picture_prompt, random_prompt
from visavis.engine import NativeEngine
from visavis.sampling import ResolvedSampling
times = {"imports": time.time()}
folder = Path(sys.argv[1])
config = json.loads((folder / "config.json").read_text())
engine = NativeEngine(folder, config, progress=lambda phase, seconds: times.update({"begin " + phase: time.time()}))
rng = np.random.default_rng()
if "vision_config" in config:
    prompt = picture_prompt(rng, config)
else:
    prompt = random_prompt(rng, 37, config["vocab_size"])
engine.add_request("0", prompt, ResolvedSampling(max_tokens=8))
while not engine.step():
    pass
times["first token"] = time.time()
engine.step()
times["second token"] = time.time()
while engine.has_work:
    engine.step()
times["eighth token"] = time.time()
print(json.dumps({name: round(at - begin, 2) for name, at in times.items()}))
"""


def main(name: str, folder: Path) -> None:
    if not (folder / "config.json").exists():
        begin = time.perf_counter()
        write(name, folder)
        say(row="start", model=name, wrote_s=round(time.perf_counter() - begin, 1))
    files = sorted(folder.glob("*.safetensors"))
    size = sum(file.stat().st_size for file in files)
    cache = folder / f"triton-{time.time_ns()}"
    for kernels, cached in (("cold", True), ("warm", True), ("warm", False)):
        if not cached and not leave_memory(files):
            continue
        env = os.environ | {"TRITON_CACHE_DIR": str(cache)}
        done = subprocess.run(
            [sys.executable, "-c", ONE_START, str(folder), str(time.time())], env=env, capture_output=True, text=True
        )
        if done.returncode:
            say(row="start", model=name, error=done.stderr[-1500:])
            continue
        phases = json.loads(done.stdout.splitlines()[-1])
        row = f"start-{name}-{kernels}" + ("" if cached else "-from-disk")
        say(row=row, model=name, kernel_cache=kernels, files_in_memory=cached, gb=round(size / 1e9, 2), **phases,
            warnings=[line[:300] for line in done.stderr.splitlines() if "Warning" in line])  # fmt: skip


def write(name: str, folder: Path) -> None:
    """Shards of random bf16 weights with their index, as a hub's folder has them."""
    engine = make_engine(name, dtype="bfloat16", kernels="torch", num_blocks=64, max_model_len=1024)
    write_weights(folder, weights_of(engine))
    (folder / "config.json").write_text(json.dumps(CONFIGS[name]), encoding="utf-8")
    engine.close()


def weights_of(engine: NativeEngine) -> dict[str, torch.Tensor]:
    """Of an engine on the plain kernels, by their canonical names."""
    places = dict(engine.runner.model.weights())
    if engine.encoder is not None:
        places |= engine.encoder.tower.weights()
    return {key: place for key, place in places.items() if isinstance(place, torch.Tensor)}


def write_weights(folder: Path, weights: dict[str, torch.Tensor]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    shards = {f"model-{number}.safetensors": shard for number, shard in enumerate(in_shards(weights))}
    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(lambda file: write_shard(folder / file, shards[file]), shards))
    weight_map = {key: file for file, shard in shards.items() for key in shard}
    index = {"metadata": {"total_size": sum(tensor.nbytes for tensor in weights.values())}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")


def in_shards(weights: dict[str, torch.Tensor]) -> Iterator[dict[str, torch.Tensor]]:
    shard: dict[str, torch.Tensor] = {}
    for key, tensor in weights.items():
        if shard and sum(t.nbytes for t in shard.values()) + tensor.nbytes > SHARD_BYTES:
            yield shard
            shard = {}
        shard[key] = tensor
    yield shard


def write_shard(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    """One tensor at a time through the host: no second copy of the model there."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for key, tensor in tensors.items():
        assert tensor.dtype == torch.bfloat16
        header[key] = {"dtype": "BF16", "shape": list(tensor.shape), "data_offsets": [at, at + tensor.nbytes]}
        at += tensor.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors.values():
            file.write(tensor.contiguous().view(-1).view(torch.uint8).cpu().numpy().data)


def leave_memory(files: list[Path]) -> bool:
    """Drops the files from the page cache; False where that cannot be asked for."""
    if not hasattr(os, "posix_fadvise"):
        return False
    for file in files:
        with file.open("rb") as handle:
            os.fsync(handle.fileno())
            os.posix_fadvise(handle.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return True


def say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    need_cuda()
    with torch.inference_mode():
        main(sys.argv[1], Path(sys.argv[2]))
