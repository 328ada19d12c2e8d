"""Where the device's time goes: `python -m benchmarks.gpu.profile_step Qwen2.5-1.5B 64` prints its longest kernels."""

from __future__ import annotations

import sys

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu.models import CONFIGS, make_engine, random_prompt
from benchmarks.gpu.run import generate

STEPS = 8


def main(name: str, batch: int) -> None:
    engine = make_engine(name, max_model_len=2048)
    rng = np.random.default_rng(0)
    for new, what in ((1, "prompts of 512"), (STEPS, f"the same and {STEPS - 1} decode steps")):
        for measured in (False, True):
            prompts = [random_prompt(rng, 512, CONFIGS[name]["vocab_size"]) for _ in range(batch)]
            if not measured:
                generate(engine, prompts, new, {})
                continue
            with profile(activities=[ProfilerActivity.CUDA]) as found:
                seconds, _ = generate(engine, prompts, new, {})
            print(f"{what}: {1e3 * seconds:.1f} ms")
            for event in sorted(found.key_averages(), key=lambda e: -e.device_time_total)[:14]:
                print(f"  {event.device_time_total / 1e3:8.2f} ms {event.count:6d} x  {event.key[:90]}")


if __name__ == "__main__":
    with torch.inference_mode():
        main(sys.argv[1], int(sys.argv[2]))
