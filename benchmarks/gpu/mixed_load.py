"""Prompts that arrive by the clock while others decode: how long the decoders wait then, and they for their first.

One thread calls `step`; a prompt is added at the first step after its time. Its first token counts from that time on.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks.gpu.models import CONFIGS, kv_bytes_per_token, random_prompt, weight_bytes
from visavis.engine import NativeEngine
from visavis.engine.model_config import ModelConfig
from visavis.prompt import Prompt
from visavis.sampling import ResolvedSampling

__all__ = ["Arrivals", "floors", "measure"]


@dataclass(frozen=True)
class Arrivals:
    count: int
    every_s: float
    prompt: int  # tokens
    new: int
    quiet_steps: int = 256  # of the decoders alone, before the first arrives


@dataclass
class Round:
    """Seconds, and tokens of all requests in the time with arrivals."""

    before: list[float] = field(default_factory=list)  # from a decoder's token to its next, of all decoders
    during: list[float] = field(default_factory=list)
    firsts: list[float] = field(default_factory=list)  # from an arrival's time to its first token
    quiet_s: float = 0.0
    busy_s: float = 0.0
    busy_tokens: int = 0
    context: float = 0.0  # tokens of a decoder in the middle of the quiet time


def measure(
    engine: NativeEngine,
    model: str,
    prompts: Callable[[], list[Prompt]],
    new: int,
    arrivals: Arrivals,
    rng: np.random.Generator,
    limits: Mapping[str, float],
    rounds: int,
) -> dict[str, Any]:
    """One round to compile and capture, then `rounds` whose times are taken together."""
    vocab = CONFIGS[model]["vocab_size"]
    done: list[Round] = []
    for _ in range(rounds + 1):
        coming = [random_prompt(rng, arrivals.prompt, vocab) for _ in range(arrivals.count)]
        done.append(one_round(engine, prompts(), new, arrivals, coming))
    batch, done = len(prompts()), done[1:]
    before = [s for found in done for s in found.before]
    during = [s for found in done for s in found.during]
    firsts = [s for found in done for s in found.firsts]
    quiet_s, busy_s = sum(found.quiet_s for found in done), sum(found.busy_s for found in done)
    return {
        "arrivals": arrivals.count, "every_ms": 1e3 * arrivals.every_s, "arriving_prompt": arrivals.prompt,
        "arriving_new": arrivals.new, "before_ms": _ms(before, 50), "before_p99_ms": _ms(before, 99),
        "during_ms": _ms(during, 50), "during_p99_ms": _ms(during, 99), "during_longest_ms": _ms(during, 100),
        "first_token_ms": _ms(firsts, 50), "first_token_p99_ms": _ms(firsts, 99),
        "before_tok_s": round(len(before) / quiet_s, 1),
        "during_tok_s": round(sum(found.busy_tokens for found in done) / busy_s, 1),
        "during_prompt_tok_s": round(len(done) * arrivals.count * arrivals.prompt / busy_s, 1),
        "seconds": [round(found.busy_s, 4) for found in done],
        **floors(model, batch, statistics.mean(found.context for found in done), arrivals.prompt, limits),
    }  # fmt: skip


def one_round(
    engine: NativeEngine, prompts: Sequence[Prompt], new: int, arrivals: Arrivals, coming: Sequence[Prompt]
) -> Round:
    """The decoders are aborted once the last arrival has its answer."""
    found = Round()
    for i, prompt in enumerate(prompts):
        engine.add_request(f"decoder-{i}", prompt, ResolvedSampling(max_tokens=new))
    last: dict[str, float] = {}  # time of each decoder's newest token
    counts: dict[str, int] = {}
    got = 0  # tokens since the first arrival

    def step(gaps: list[float]) -> None:
        nonlocal got
        for output in engine.step():
            if output.error:
                raise RuntimeError(output.error)
            now, name = time.perf_counter(), output.request_id
            counts[name] = counts.get(name, 0) + len(output.token_ids)
            got += len(output.token_ids)
            if not name.startswith("decoder"):
                if counts[name] == 1:
                    found.firsts.append(now - due[int(name)])
            elif output.finish_reason is not None:
                raise RuntimeError(f"a decoder ended after {counts[name]} tokens, before the last arrival did")
            else:
                if name in last:
                    gaps.append(now - last[name])
                last[name] = now

    due: list[float] = []
    while len(last) < len(prompts):
        step([])
    begin = time.perf_counter()
    for _ in range(arrivals.quiet_steps):
        step(found.before)
    begin_busy = time.perf_counter()
    found.quiet_s = begin_busy - begin
    found.context = statistics.mean(counts.values()) - arrivals.quiet_steps / 2 + len(prompts[0])
    due += [begin_busy + k * arrivals.every_s for k in range(arrivals.count)]
    got, added = 0, 0
    while added < arrivals.count or any(counts.get(str(k), 0) < arrivals.new for k in range(arrivals.count)):
        while added < arrivals.count and due[added] <= time.perf_counter():
            engine.add_request(str(added), coming[added], ResolvedSampling(max_tokens=arrivals.new))
            added += 1
        step(found.during)
    found.busy_s, found.busy_tokens = time.perf_counter() - begin_busy, got
    for i in range(len(prompts)):
        engine.abort(f"decoder-{i}")
    engine.step()  # takes the step that was launched ahead
    return found


def floors(model: str, batch: int, context: float, chunk: int, limits: Mapping[str, float]) -> dict[str, float | None]:
    """What the device cannot go below: a decode step's bytes over the read ceiling; the operations of a step with an
    arriving prompt (2 a weight and token, causal attention of the prompt, logits of one token each) over that of bf16
    products, or its bytes over the read ceiling where that takes longer."""
    c = ModelConfig.from_dict(CONFIGS[model])
    read = weight_bytes(model) + batch * context * kv_bytes_per_token(model)
    head = c.vocab_size * c.hidden_size
    layers = weight_bytes(model) / 2 - head
    attention = 4 * c.num_layers * c.num_heads * c.head_dim * (chunk**2 / 2 + batch * context)
    operations = 2 * layers * (chunk + batch) + attention + 2 * head * (batch + 1)
    known: dict[str, float | None] = {
        "decode_read_gb": round(read / 1e9, 3), "mixed_tflop": round(operations / 1e12, 3),
        "floor_decode_ms": None, "floor_mixed_ms": None,
    }  # fmt: skip
    if limits:
        decode = read / limits["read_gb_s"] / 1e6
        known["floor_decode_ms"] = round(decode, 3)
        known["floor_mixed_ms"] = round(max(decode, operations / limits["bf16_tflop_s"] / 1e9), 3)
    return known


def _ms(seconds: Sequence[float], percent: float) -> float:
    return round(1e3 * float(np.percentile(seconds, percent)), 3)
