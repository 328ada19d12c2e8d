"""The persistent kernel against the step of the engine, on random weights: logits, the same again, time.

`python -m benchmarks.gpu.whole_step.check Qwen2.5-1.5B` prints one JSON line a context.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

import torch

from benchmarks.gpu.machine import time_ms
from benchmarks.gpu.models import make_engine, weight_bytes
from benchmarks.gpu.whole_step.kernel import WholeStep
from visavis.engine.kernels.cuda.sampling import GREEDY
from visavis.engine.kernels.cuda.step import COLUMNS, DecodeStep

CONTEXTS = (0, 1, 16, 40, 63, 64, 290, 600, 1500, 4000)


def place(step: DecodeStep, context: int) -> None:
    """One request with so many tokens in randomly placed blocks."""
    columns = torch.tensor([[-1, 5, 0, context, context, 1, -1, 0]], dtype=torch.int32).t()
    step.packed[: len(COLUMNS)].copy_(columns.reshape(-1))
    size = step.cache.block_size
    blocks = torch.randperm(step.cache.data.shape[1] // size)[: context // size + 1]
    step.tables[0, : len(blocks)].copy_(blocks.to(torch.int32))


def with_whole(step: DecodeStep, whole: WholeStep) -> Callable[[], None]:
    """The engine's step with the persistent kernel in the place of its layers and head."""

    def run() -> None:
        layers, product = step.model.layers, step._product
        step.model.layers = []
        columns = dict(zip(COLUMNS, step.packed[: len(COLUMNS)].split(1), strict=True))
        step._product = lambda *a, **k: whole(columns)  # type: ignore
        try:
            step(1, GREEDY)
        finally:
            step.model.layers = layers
            step._product = product  # type: ignore[method-assign]

    return run


def captured(run: Callable[[], None]) -> torch.cuda.CUDAGraph:
    run()
    torch.cuda.synchronize()
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        graph.capture_begin()
        run()
        graph.capture_end()
    torch.cuda.current_stream().wait_stream(stream)
    return graph


@torch.inference_mode()
def main(name: str) -> None:
    engine = make_engine(name, max_num_seqs=8, max_model_len=4200)
    assert engine.ahead is not None
    engine.ahead.ready()
    step = engine.ahead.step
    step.cache.data.normal_()
    for layer in step.model.layers:
        if layer.qkv.bias is not None:
            layer.qkv.bias.normal_(std=0.5)
        layer.input_norm.weight.uniform_(0.5, 1.5)
        layer.mlp_norm.weight.uniform_(0.5, 1.5)
    ours, theirs = with_whole(step, WholeStep(step)), lambda: step(1, GREEDY)
    for context in CONTEXTS:
        place(step, context)
        theirs()
        expected = step.logits[0].clone()
        ours()
        found = step.logits[0].clone()
        same = True
        for _ in range(10):
            ours()
            same = same and torch.equal(step.logits[0], found)
        times = [time_ms(captured(run).replay, 30) for run in (theirs, ours)]
        line = {
            "model": name,
            "context": context,
            "relative_difference": round(float((found - expected).norm() / expected.norm()), 4),
            "same_again": same,
            "step_ms": round(times[0], 4),
            "whole_ms": round(times[1], 4),
            "whole_gb_s": round(weight_bytes(name) / times[1] / 1e6),
        }
        print(json.dumps(line), flush=True)
    engine.close()


if __name__ == "__main__":
    main(sys.argv[1])
