"""Image rows: a decoded 1920 × 1080 picture to its first token, preparation inside the clock, and 64 at once.

The kernels of the row called cold are compiled in it, unless Triton's cache on disk (TRITON_CACHE_DIR) has them."""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.gpu.machine import ceilings, describe, need_cuda
from benchmarks.gpu.models import CONFIGS, make_engine
from tests.reference.tiny_models import make_qwen2_vl
from visavis import pixel_kernels
from visavis.chat.messages import normalize
from visavis.compiling import BuildError
from visavis.engine import NativeEngine
from visavis.families import Family, load_family
from visavis.prompt import Prompt
from visavis.sampling import ResolvedSampling

MODEL = "Qwen2-VL-7B"
MAX_PIXELS = 1280 * 28 * 28
WORDS = "Where on this screen is the button?"
ROUNDS = 5


def picture(rng: np.random.Generator) -> Image.Image:
    """Smooth colours with some noise, as decoded from a file."""
    small = Image.fromarray(rng.integers(0, 256, (54, 96, 3), dtype=np.uint8))
    return small.resize((1920, 1080), Image.Resampling.BILINEAR)


def prepare(family: Family, image: Image.Image) -> Prompt:
    content = [{"type": "image", "image": image}, {"type": "text", "text": WORDS}]
    return family.prepare(normalize([{"role": "user", "content": content}], max_pixels=MAX_PIXELS))


def first_token(engine: NativeEngine, family: Family, image: Image.Image, new: int) -> tuple[float, float, float, int]:
    """Seconds of preparation, to the first token, to the last one; tokens of the prompt."""
    begin = time.perf_counter()
    prompt = prepare(family, image)
    prepared = time.perf_counter() - begin
    engine.add_request("0", prompt, ResolvedSampling(max_tokens=new))
    first = 0.0
    while engine.has_work:
        if engine.step() and not first:
            first = time.perf_counter() - begin
    return prepared, first, time.perf_counter() - begin, len(prompt)


def load(*, engine: bool = True) -> tuple[NativeEngine | None, Family]:
    """An engine of real dimensions, and a family whose tokenizer is a small one."""
    with suppress(BuildError):
        pixel_kernels.build()
    folder = make_qwen2_vl(Path(tempfile.mkdtemp()) / "tiny")
    tiny = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config = CONFIGS[MODEL] | {k: v for k, v in tiny.items() if k.endswith("_token_id")}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    CONFIGS[MODEL] = config
    return make_engine(MODEL, max_model_len=4096) if engine else None, load_family(str(folder))


def main() -> None:
    need_cuda()
    rng = np.random.default_rng(0)
    print(json.dumps({"machine": describe(), "ceilings": ceilings()}), flush=True)
    engine, family = load()
    assert engine is not None
    begin = time.perf_counter()
    first_token(engine, family, picture(rng), 3)
    cold = time.perf_counter() - begin
    first_token(engine, family, picture(rng), 128)
    rounds = [first_token(engine, family, picture(rng), 128) for _ in range(ROUNDS)]
    middle: list[Any] = [statistics.median(column) for column in zip(*rounds, strict=True)]
    say(row="vl-first-token", model=MODEL, prompt=middle[3], cold_s=round(cold, 2),
        prepare_ms=round(1e3 * middle[0], 1), first_token_ms=round(1e3 * middle[1], 1),
        tokens_128_ms=round(1e3 * middle[2], 1))  # fmt: skip
    for run in ("cold", *["warm"] * 3):
        many_images(engine, family, rng, run)


def many_images(engine: NativeEngine, family: Family, rng: np.random.Generator, run: str) -> None:
    """64 different images, prepared by eight threads, each submitted when it is ready."""
    images = [picture(rng) for _ in range(64)]
    begin = time.perf_counter()
    with ThreadPoolExecutor(8) as pool:
        waiting = [pool.submit(prepare, family, image) for image in images]
        number = 0
        while waiting or engine.has_work:
            while waiting and (waiting[0].done() or not engine.has_work):
                engine.add_request(str(number), waiting.pop(0).result(), ResolvedSampling(max_tokens=32))
                number += 1
            engine.step()
    took = time.perf_counter() - begin
    row = "vl-64-images-cold" if run == "cold" else "vl-64-images"
    say(row=row, model=MODEL, images_s=round(64 / took, 2), seconds=round(took, 3))


def say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    main()
