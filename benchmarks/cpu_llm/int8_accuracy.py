"""What int8 weights cost in accuracy: the native engine in int8, bfloat16 and float32 against transformers in float32.

    python benchmarks/cpu_llm/int8_accuracy.py --model SMOLLM2_FOLDER [--out benchmarks/results/int8_accuracy.json]

The text is the language reference that comes with Python (`pydoc_data.topics`). From windows spread over it:

- logit error   along the text (teacher forcing), at each position ‖logits − reference‖ / ‖reference‖; mean and largest
- KL            of the two distributions there, KL(reference ‖ engine), in nats; mean and largest
- top 1         share of these positions at which both find the same token likeliest
- perplexity    of longer windows, by the engine's own prompt log-probabilities
- exact tokens  greedy answers to questions through the chat template: how many are transformers' to the last token, and
                the share of tokens before the first difference

transformers' own bfloat16 stands beside it: an engine that computes in bfloat16 errs that much, whoever wrote it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import numpy as np
import torch

from visavis.engine import EngineConfig, NativeEngine
from visavis.engine.sampler import Sampled
from visavis.families import load_family
from visavis.prompt import Prompt
from visavis.report.machine import describe
from visavis.sampling import ResolvedSampling

Ids = list[list[int]]
QUESTIONS = (
    "What is the capital of France?",
    "Write a haiku about the sea.",
    "Explain why the sky is blue in two sentences.",
    "List three uses of a paper clip.",
    "Translate 'good morning' into Spanish, French and German.",
    "Write a Python function that reverses a string.",
    "What is 17 times 23?",
    "Summarise the story of Romeo and Juliet.",
    "Give me a recipe for pancakes.",
    "What does the word 'ephemeral' mean?",
    "Who wrote 'Pride and Prejudice'?",
    "Describe a rainy afternoon in a small town.",
)


class Transformers:
    """transformers on one thread pool, without a cache between calls."""

    def __init__(self, folder: Path, dtype: str) -> None:
        from transformers import AutoModelForCausalLM
        from transformers.utils import logging

        logging.disable_progress_bar()
        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()

    @torch.inference_mode()
    def forced(self, windows: Ids, start: int) -> torch.Tensor:
        """(windows, length − start, vocabulary): what follows token start − 1, start, …, along each window."""
        logits = [self._model(torch.tensor([ids[:-1]])).logits[0, start - 1 :].float() for ids in windows]
        return torch.stack(logits)

    @torch.inference_mode()
    def nats(self, windows: Ids) -> float:
        """Mean −log p of every token but the first of each window."""
        total = 0.0
        for ids in windows:
            logprobs = self._model(torch.tensor([ids])).logits[0, :-1].float().log_softmax(-1)
            total -= float(logprobs.gather(1, torch.tensor(ids[1:])[:, None]).sum())
        return total / sum(len(ids) - 1 for ids in windows)

    @torch.inference_mode()
    def greedy(self, prompts: Ids, tokens: int) -> Ids:
        answers = []
        for ids in prompts:
            given = torch.tensor([ids])
            out = self._model.generate(
                input_ids=given, attention_mask=torch.ones_like(given), max_new_tokens=tokens, do_sample=False,
                eos_token_id=None, pad_token_id=0,
            )  # fmt: skip
            answers.append(out[0, len(ids) :].tolist())
        return answers

    def close(self) -> None:
        del self._model


class Native:
    """The same questions through the engine's own steps: prompts by its prompt kernels, answers by its decode step."""

    def __init__(self, folder: Path, kind: str) -> None:
        quantised = kind not in ("float32", "bfloat16")
        settings = EngineConfig(
            device="cpu",
            dtype="bfloat16" if quantised else kind,
            quantization=kind if quantised else None,
            enable_prefix_caching=False,
        )
        config = json.loads((folder / "config.json").read_text("utf-8"))
        self._engine = NativeEngine(folder, config, settings)
        self.kernels = self._engine.kernels

    def forced(self, windows: Ids, start: int) -> torch.Tensor:
        seen: list[list[torch.Tensor]] = [[] for _ in windows]

        def follow(logits: torch.Tensor, seqs: Sequence[Any]) -> Sampled:
            told = []
            for row, seq in zip(logits, seqs, strict=True):
                index = int(seq.request_id)
                seen[index].append(row.float().clone())
                told.append(windows[index][start + seq.num_output_tokens])
            return Sampled(told, [True] * len(told), [None] * len(told))

        sampler = self._engine.sampler
        follow.forget, follow.takes_largest = sampler.forget, sampler.takes_largest  # type: ignore[attr-defined]
        self._engine.sampler = follow  # type: ignore[assignment]
        try:
            self._run([ids[:start] for ids in windows], len(windows[0]) - start)
        finally:
            self._engine.sampler = sampler
        return torch.stack([torch.stack(rows) for rows in seen])

    def nats(self, windows: Ids) -> float:
        total = 0.0
        for output in self._run(windows, 1, prompt_logprobs=0):
            total -= sum(entry.logprob for entry in output.prompt_logprobs or () if entry is not None)
        return total / sum(len(ids) - 1 for ids in windows)

    def greedy(self, prompts: Ids, tokens: int) -> Ids:
        answers: Ids = [[] for _ in prompts]
        for output in self._run(prompts, tokens):
            answers[int(output.request_id)] += output.token_ids
        return answers

    def close(self) -> None:
        self._engine.close()

    def _run(self, prompts: Ids, tokens: int, **sampling: Any) -> list[Any]:
        for i, ids in enumerate(prompts):
            self._engine.add_request(str(i), as_prompt(ids), ResolvedSampling(max_tokens=tokens, **sampling))
        outputs = []
        while self._engine.has_work:
            outputs += self._engine.step()
        return outputs


def as_prompt(ids: list[int]) -> Prompt:
    return Prompt(
        model="", family="text", text="", canonical_ids=tuple(ids), token_ids=tuple(ids),
        position_ids=np.arange(len(ids))[None], rope_delta=0,
    )  # fmt: skip


def windows_of(ids: list[int], count: int, length: int) -> Ids:
    """`count` windows spread evenly over `ids`."""
    stride = (len(ids) - length) // max(count - 1, 1)
    if stride < length:
        raise SystemExit(f"the text has {len(ids)} tokens, too few for {count} windows of {length}")
    return [ids[i * stride : i * stride + length] for i in range(count)]


def against(reference: torch.Tensor, found: torch.Tensor) -> dict[str, float]:
    """Figures over all positions of two (windows, positions, vocabulary) logits."""
    apart = (found - reference).norm(dim=-1) / reference.norm(dim=-1)
    ours, theirs = found.log_softmax(-1), reference.log_softmax(-1)
    divergence = (theirs.exp() * (theirs - ours)).sum(-1)
    return {
        "logit_error_mean": round(float(apart.mean()), 6),
        "logit_error_max": round(float(apart.max()), 6),
        "kl_mean": round(float(divergence.mean()), 6),
        "kl_max": round(float(divergence.max()), 6),
        "top1_same": round(float((found.argmax(-1) == reference.argmax(-1)).float().mean()), 4),
    }


def answers_against(reference: Ids, found: Ids) -> dict[str, Any]:
    before = [next((i for i, (a, b) in enumerate(zip(r, f, strict=True)) if a != b), len(r))
              for r, f in zip(reference, found, strict=True)]  # fmt: skip
    whole = sum(n == len(r) for n, r in zip(before, reference, strict=True))
    return {
        "answers_exact": whole,
        "answers": len(reference),
        "tokens_before_a_difference": round(sum(before) / sum(map(len, reference)), 4),
    }


def main() -> None:
    arguments = parse()
    torch.set_num_threads(arguments.threads)
    family = load_family(str(arguments.model))
    text = "\n\n".join(topics[name] for name in sorted(topics))
    ids = family.tokenizer.encode(text)
    forced = windows_of(ids, arguments.windows, arguments.start + arguments.positions)
    long = windows_of(ids, arguments.long_windows, arguments.long)
    prompts = [list(family.prepare_messages([{"role": "user", "content": q}]).token_ids) for q in QUESTIONS]

    makers: dict[str, Callable[[], Any]] = {
        "transformers float32": lambda: Transformers(arguments.model, "float32"),
        "transformers bfloat16": lambda: Transformers(arguments.model, "bfloat16"),
    }
    makers |= {f"native {kind}": lambda kind=kind: Native(arguments.model, kind) for kind in arguments.native}  # type: ignore[misc]
    record: dict[str, Any] = {
        "machine": {**describe(), "threads": arguments.threads},
        "model": arguments.model.name,
        "text": {
            "what": "pydoc_data.topics", "python": sys.version.split()[0], "tokens": len(ids),
            "sha256": hashlib.sha256(text.encode()).hexdigest(),
        },
        "settings": {
            "positions": arguments.windows * arguments.positions, "windows": arguments.windows,
            "tokens_before": arguments.start, "perplexity_tokens": arguments.long_windows * (arguments.long - 1),
            "perplexity_window": arguments.long, "answers": len(prompts), "answer_tokens": arguments.tokens,
        },
        "engines": {},
    }  # fmt: skip
    reference: tuple[torch.Tensor, Ids] | None = None
    for name, make in makers.items():
        print(name, file=sys.stderr)
        engine = make()
        logits = engine.forced(forced, arguments.start)
        answers = engine.greedy(prompts, arguments.tokens)
        row: dict[str, Any] = {"perplexity": round(math.exp(engine.nats(long)), 4)}
        if reference is None:
            reference = (logits, answers)
        else:
            row |= against(reference[0], logits) | answers_against(reference[1], answers)
        if isinstance(engine, Native):
            row["kernels"] = str(engine.kernels)
        engine.close()
        record["engines"][name] = row
        print(f"  {row}", file=sys.stderr)
    report(record)
    if arguments.out:
        arguments.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def report(record: dict[str, Any]) -> None:
    columns = ("logit_error_mean", "logit_error_max", "kl_mean", "top1_same", "answers_exact", "perplexity")
    print(f"{'against transformers float32':30}" + "".join(f"{c.replace('_', ' '):>20}" for c in columns))
    for name, row in record["engines"].items():
        print(f"{name:30}" + "".join(f"{row.get(c, '–'):>20}" for c in columns))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="Hugging Face folder of a text model")
    parser.add_argument("--native", nargs="+", default=["float32", "bfloat16", "int8", "int4"], metavar="KIND",
                        help="dtypes or quantizations of the native engine")  # fmt: skip
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--windows", type=int, default=8, help="of the positions at which logits are compared")
    parser.add_argument("--start", type=int, default=64, help="tokens of a window before the first such position")
    parser.add_argument("--positions", type=int, default=64, help="of each window")
    parser.add_argument("--long-windows", type=int, default=16, help="of the perplexity")
    parser.add_argument("--long", type=int, default=512, help="tokens of such a window")
    parser.add_argument("--tokens", type=int, default=64, help="of each answer")
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
