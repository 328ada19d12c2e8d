"""What choosing the tokens costs, as ratios to plain torch in the same process: `python benchmarks/sampling.py`.

Each pair runs in turn, round after round, and the best round of each counts, so that a busy machine disturbs both
alike. `argmax` is `logits.argmax(-1).tolist()`, the least a greedy step can be in torch; `warpers` is the usual chain
(divide, top_k, sort and cut at top_p, softmax, multinomial) without penalties.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from visavis.engine.sampler import Sampler
from visavis.engine.sequence import Sequence
from visavis.prompt import Prompt
from visavis.report.machine import describe
from visavis.sampling import ResolvedSampling

KINDS: dict[str, tuple[dict[str, Any], ...]] = {  # rows take turns
    "greedy": ({},),
    "temperature": ({"temperature": 0.8},),
    "temperature, top_k, top_p, repetition": (
        {"temperature": 0.7, "top_k": 20, "top_p": 0.8, "repetition_penalty": 1.05},
    ),
    "temperature, top_p": ({"temperature": 0.7, "top_p": 0.9},),
    "mixed": ({}, {"temperature": 0.7, "top_p": 0.9}, {"temperature": 1.0, "min_p": 0.05}, {"presence_penalty": 0.5}),
}


def sequences(kind: tuple[dict[str, Any], ...], rows: int, prompt_tokens: int = 64) -> list[Sequence]:
    ids = tuple(range(1, prompt_tokens + 1))
    prompt = Prompt(
        model="", family="", text="", canonical_ids=ids, token_ids=ids, position_ids=np.arange(prompt_tokens)[None]
    )
    params = [ResolvedSampling(max_tokens=10**6, seed=i, **kind[i % len(kind)]) for i in range(rows)]
    return [Sequence(i, str(i), prompt, p, list(ids), ()) for i, p in enumerate(params)]


def warpers(logits: torch.Tensor) -> list[int]:
    logits = logits / 0.7
    logits = logits.masked_fill(logits < logits.topk(20, -1).values[:, -1:], -torch.inf)
    ordered, order = logits.sort(-1, descending=False)
    cut = ordered.softmax(-1).cumsum(-1) <= 0.2
    cut[:, -1] = False
    logits = logits.masked_fill(cut.scatter(1, order, cut), -torch.inf)
    return torch.multinomial(logits.softmax(-1), 1).squeeze(1).tolist()


def best_of(runs: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    best = dict.fromkeys(runs, float("inf"))
    for _ in range(rounds):
        for name, run in runs.items():
            run()  # so that each finds the caches as it leaves them
            start = time.perf_counter()
            run()
            best[name] = min(best[name], time.perf_counter() - start)
    return best


def measure(rows: int, vocab: int, rounds: int) -> dict[str, Any]:
    raw = torch.randn(rows, vocab, generator=torch.Generator().manual_seed(0)) * 2
    raw[:, :100] += torch.linspace(12, 4, 100)  # some likely tokens over a flat bulk, as a language model has them
    runs: dict[str, Callable[[], object]] = {
        "argmax": lambda: raw.argmax(-1).tolist(),
        "warpers": lambda: warpers(raw),
    }
    for name, kind in KINDS.items():
        sampler, seqs = Sampler(vocab, torch.device("cpu")), sequences(kind, rows)

        def step(sampler: Sampler = sampler, seqs: list[Sequence] = seqs) -> None:
            for seq, token in zip(seqs, sampler(raw.clone(), seqs).token_ids, strict=True):
                seq.token_ids.append(token)

        runs[name] = step
    runs["copy of the logits"] = raw.clone  # in every step above, not in an engine's
    best = best_of(runs, rounds)
    copied = best.pop("copy of the logits")
    times = {name: (seconds - copied if name in KINDS else seconds) * 1e6 for name, seconds in best.items()}
    return {"rows": rows, "vocab": vocab, "microseconds": {name: round(value, 1) for name, value in times.items()}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, help="write machine, settings and results there as JSON")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    results = []
    with torch.inference_mode():
        for rows, vocab in ((1, 2048), (1, 49152), (1, 151936), (16, 49152), (16, 151936)):
            results.append(measure(rows, vocab, args.rounds))
            print(json.dumps(results[-1]), flush=True)
    if args.out is not None:
        settings = {"rounds": args.rounds, "threads": args.threads}
        record = {"machine": describe(), "settings": settings, "results": results}
        args.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
