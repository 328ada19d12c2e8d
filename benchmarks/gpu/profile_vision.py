"""Where the time of images goes: attention variants, a first token kernel by kernel, 64 images step by step.

`python -m benchmarks.gpu.profile_vision attention|first|many|prepare` prints JSON lines.
"""

from __future__ import annotations

import cProfile
import io
import pstats
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu.machine import time_ms
from benchmarks.gpu.vision import first_token, load, picture, prepare, say
from visavis.engine import NativeEngine
from visavis.families import Family
from visavis.sampling import ResolvedSampling

HEADS, HEAD_DIM = 16, 80
PATCHES = 52 * 94  # of a 1920 × 1080 picture after its resize to 1316 × 728


def attention() -> None:
    from visavis.engine.kernels.triton.launch import Launcher
    from visavis.engine.kernels.triton.launch_vision import VisionLauncher

    device = torch.device("cuda")
    run = VisionLauncher(Launcher(device))
    for images in (1, 3):
        qkv = torch.randn(images * PATCHES, 3, HEADS, HEAD_DIM, device=device, dtype=torch.bfloat16)
        qkv_parts = qkv.view(images, PATCHES, 3, HEADS, HEAD_DIM).permute(2, 0, 3, 1, 4)
        for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.EFFICIENT_ATTENTION):
            with sdpa_kernel(backend):
                time_attention(backend.name, images, partial(F.scaled_dot_product_attention, *qkv_parts))
    # Between products: what each pass costs, and what its bytes would at 4.2 TB/s.
    x = torch.randn(PATCHES, 1280, device=device, dtype=torch.bfloat16)
    wide = torch.randn(PATCHES, 5120, device=device, dtype=torch.bfloat16)
    w = torch.randn(1280, device=device, dtype=torch.bfloat16)
    timed: dict[str, Callable[[], Any]] = {
        "layer_norm": lambda: F.layer_norm(x, (1280,), w, w),
        "join_norm": lambda: run.join_norm(x, x, w, w, 1e-6),
        "add_bias": lambda: x.add_(w),
        "quick_gelu ours": lambda: run.quick_gelu_(wide),
        "gelu tanh": lambda: F.gelu(wide, approximate="tanh"),
        "silu in place": lambda: F.silu(wide, inplace=True),
    }
    for name, shape in {"qkv": (3840, 1280), "proj": (1280, 1280), "fc1": (5120, 1280), "fc2": (1280, 5120)}.items():
        weight = torch.randn(shape, device=device, dtype=torch.bfloat16)
        inner = torch.randn(PATCHES, shape[1], device=device, dtype=torch.bfloat16)
        bias = torch.randn(shape[0], device=device, dtype=torch.bfloat16)
        into = torch.zeros(PATCHES, shape[0], device=device, dtype=torch.bfloat16)
        timed[f"{name} with bias"] = partial(F.linear, inner, weight, bias)
        timed[f"{name} added"] = partial(into.addmm_, inner, weight.t())
    for name, call in timed.items():
        say(operation=name, us=round(1e3 * time_ms(call, 50), 1))


def time_attention(name: str, images: int, call: Callable[[], Any]) -> None:
    begin = time.perf_counter()
    call()
    torch.cuda.synchronize()
    cold = time.perf_counter() - begin
    ms = time_ms(call)
    flops = 4 * images * PATCHES**2 * HEADS * HEAD_DIM
    say(attention=name, images=images, ms=round(ms, 4), tflop_s=round(flops / ms / 1e9), cold_s=round(cold, 2))


def first(engine: NativeEngine, family: Family) -> None:
    rng = np.random.default_rng(1)
    for _ in range(2):
        first_token(engine, family, picture(rng), 3)
    spans: dict[str, float] = {}

    def timed(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            begin = time.perf_counter()
            result = call(*args, **kwargs)
            spans[f"{name} returns"] = 1e3 * (time.perf_counter() - begin)
            torch.cuda.synchronize()
            spans[f"{name} done"] = 1e3 * (time.perf_counter() - begin)
            return result

        return wrapped

    rows = [first_token(engine, family, picture(rng), 1) for _ in range(5)]
    prepared, token = (1e3 * statistics.median(column) for column in list(zip(*rows, strict=True))[:2])
    say(first_token_ms=round(token, 1), prepare_ms=round(prepared, 1))
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        first_token(engine, family, picture(rng), 1)
    events = sorted(found.key_averages(), key=lambda e: -e.device_time_total)
    say(kernels_ms=round(sum(e.device_time_total for e in events) / 1e3, 2))
    for event in events[:32]:
        say(ms=round(event.device_time_total / 1e3, 3), count=event.count, kernel=event.key[:110])
    encoder = engine.runner.encoder
    assert encoder is not None
    tower, model, patches = encoder.tower, engine.runner.model, encoder._patches
    encoder.tower = timed("tower", tower)  # type: ignore[assignment]
    for name in ("ops", "config", "device"):
        setattr(encoder.tower, name, getattr(tower, name))
    encoder._patches = timed("patches", patches)  # type: ignore[method-assign]
    engine.runner.model = timed("decoder", model)  # type: ignore[assignment]
    for name in ("embed", "logits", "config", "embedding"):
        setattr(engine.runner.model, name, getattr(model, name))
    real = engine.sampler
    engine.sampler = timed("sampler", real)  # type: ignore[assignment]
    engine.sampler.forget = real.forget  # type: ignore[method-assign]
    step = engine.step
    engine.step = timed("step", step)  # type: ignore[method-assign]
    first_token(engine, family, picture(rng), 1)
    say(**{name: round(value, 2) for name, value in spans.items()})
    encoder.tower, engine.runner.model, engine.sampler, engine.step = tower, model, real, step  # type: ignore[method-assign]
    encoder._patches = patches  # type: ignore[method-assign]


def many(engine: NativeEngine, family: Family) -> None:
    rng = np.random.default_rng(2)
    for name, threads in (("cold", 8), ("prepared beforehand", 0), ("eight threads", 8), ("two threads", 2)):
        images = [picture(rng) for _ in range(64)]
        ready = [prepare(family, image) for image in images] if not threads else []
        log: list[tuple[float, ...]] = []
        begin = time.perf_counter()
        with ThreadPoolExecutor(threads or 1) as pool:
            waiting: list[Any] = [pool.submit(prepare, family, image) for image in images] if threads else ready
            number = 0
            while waiting or engine.has_work:
                while waiting and (not threads or waiting[0].done() or not engine.has_work):
                    item = waiting.pop(0)
                    engine.add_request(f"{name}{number}", item.result() if threads else item,
                                       ResolvedSampling(max_tokens=32))  # fmt: skip
                    number += 1
                before = time.perf_counter()
                engine.step()
                log.append((before - begin, time.perf_counter() - before, number, len(engine.scheduler.running)))
        took = time.perf_counter() - begin
        say(many=name, images_s=round(64 / took, 2), seconds=round(took, 3), steps=len(log))
        longest = sorted(log, key=lambda row: -row[1])[:24]
        say(steps_at_s_ms_submitted_running=[(round(a, 2), round(1e3 * b), c, d) for a, b, c, d in sorted(longest)])
    images = [picture(rng) for _ in range(24)]
    prompts = [prepare(family, image) for image in images]
    for number, prompt in enumerate(prompts):
        engine.add_request(f"profiled{number}", prompt, ResolvedSampling(max_tokens=8))
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        begin = time.perf_counter()
        while engine.has_work:
            engine.step()
        torch.cuda.synchronize()
        took = time.perf_counter() - begin
    events = sorted(found.key_averages(), key=lambda e: -e.device_time_total)
    say(profiled_images=24, seconds=round(took, 3), kernels_s=round(sum(e.device_time_total for e in events) / 1e6, 3))
    for event in events[:16]:
        say(ms=round(event.device_time_total / 1e3, 2), count=event.count, kernel=event.key[:90])


def preparation(family: Family) -> None:
    rng = np.random.default_rng(3)
    images = [picture(rng) for _ in range(12)]
    for image in images[:2]:
        prepare(family, image)
    times = []
    for image in images[2:]:
        begin = time.perf_counter()
        prepare(family, image)
        times.append(1e3 * (time.perf_counter() - begin))
    say(prepare_ms=round(statistics.median(times), 2), least=round(min(times), 2))
    watch = cProfile.Profile()
    watch.enable()
    for image in images[2:]:
        prepare(family, image)
    watch.disable()
    text = io.StringIO()
    pstats.Stats(watch, stream=text).sort_stats("tottime").print_stats(22)
    print(text.getvalue(), flush=True)


def main(parts: list[str]) -> None:
    if parts == ["attention"]:
        attention()
        return
    engine, family = load() if {"first", "many"} & set(parts) else (None, load(engine=False)[1])
    if "prepare" in parts:
        preparation(family)
    if engine is not None and "first" in parts:
        first(engine, family)
    if engine is not None and "many" in parts:
        many(engine, family)
    if "attention" in parts:
        attention()


if __name__ == "__main__":
    with torch.inference_mode():
        main(sys.argv[1:])
