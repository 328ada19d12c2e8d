"""Native engine against transformers on the bundled model and its 12 sample screens, on a CPU, in one run.

    python benchmarks/cpu_tiny.py [--threads 2] [--rounds 5] [--tokens 64] [--no-compile] [--out result.json]

Same prompts (the same ids and pixels), float32, greedy, exactly `--tokens` tokens each. transformers runs with a
dynamic cache, with a static cache, and with the decoder compiled; its best counts. The native engine runs with its
compiled decode step, where a compiler is there, and in plain torch. Figures per engine and batch, in tokens per second:

- decode: batch / median time of a step in which every request gets one token after its first;
- whole: batch · tokens / time of the whole run, the images' encoding and the prompts included.

Rounds of all contenders alternate, so that a noisy moment meets each of them. `quiet` figures take the fastest
twentieth of the steps and the fastest run: what the machine gives when nothing else runs on it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Callable, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import torch

from visavis.engine import EngineConfig, NativeEngine
from visavis.engine_inputs import for_hf_batch
from visavis.families import load_family
from visavis.prompt import Prompt
from visavis.report.machine import describe
from visavis.sampling import ResolvedSampling

Generate = Callable[[Sequence[Prompt], int], tuple[list[list[int]], list[float]]]
"""(prompts, tokens) → the answers, and when each token of the last prompt to get one came (`time.perf_counter`)."""


def main() -> None:
    arguments = parse()
    torch.set_num_threads(arguments.threads)
    family = load_family(None)
    folder = Path(family.folder.path)
    prompts = sample_prompts(family)
    contenders: dict[str, Generate] = {
        "native": native(folder, family.folder.config, "auto"),
        "native, plain torch": native(folder, family.folder.config, "torch"),
    }
    contenders |= transformers_variants(folder, family.pad_token_id, compiled=not arguments.no_compile)
    record: dict[str, Any] = {
        "machine": {**describe(), "threads": arguments.threads},
        "model": "tiny-screen, float32",
        "tokens": arguments.tokens,
        "prompt_tokens": [len(p) for p in prompts],
        "batches": {},
    }
    for batch in (1, len(prompts)):
        record["batches"][str(batch)] = measure(contenders, prompts[:batch], arguments)
    report(record)
    if arguments.out:
        arguments.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument(
        "--no-compile", action="store_true", help="leave the compiled transformers out (it takes minutes)"
    )
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


def sample_prompts(family: Any) -> list[Prompt]:
    samples = Path(str(resources.files("visavis") / "assets" / "samples"))
    content = json.loads((samples / "samples.json").read_text(encoding="utf-8"))["samples"]
    for sample in content:
        for message in sample["messages"]:
            for part in message["content"]:
                if part["type"] == "image":
                    part["image"] = str(samples / part["image"])
    return [family.prepare_messages(sample["messages"]) for sample in content]


def native(folder: Path, config: dict[str, Any], kernels: str) -> Generate:
    # Rounds repeat the prompts: without the caches of earlier ones, as transformers has none.
    settings = EngineConfig(
        device="cpu", dtype="float32", kernels=kernels, enable_prefix_caching=False, encoder_cache_bytes=0
    )
    engine = NativeEngine(folder, config, settings)

    def generate(prompts: Sequence[Prompt], tokens: int) -> tuple[list[list[int]], list[float]]:
        for i, prompt in enumerate(prompts):
            engine.add_request(str(i), prompt, ResolvedSampling(max_tokens=tokens))
        answers: list[list[int]] = [[] for _ in prompts]
        times: list[float] = []
        while engine.has_work:
            for output in engine.step():
                answers[int(output.request_id)] += output.token_ids
            if len(min(answers, key=len)) > len(times):
                times.append(time.perf_counter())
        return answers, times

    return generate


def transformers_variants(folder: Path, pad: int, *, compiled: bool) -> dict[str, Generate]:
    from transformers import AutoModelForImageTextToText

    def load() -> Any:
        return AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()

    def generator(model: Any, **options: Any) -> Generate:
        @torch.inference_mode()
        def generate(prompts: Sequence[Prompt], tokens: int) -> tuple[list[list[int]], list[float]]:
            times: list[float] = []

            def stamp(input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
                times.append(time.perf_counter())
                return torch.zeros(len(input_ids), dtype=torch.bool)

            model.model.rope_deltas = None  # a left-over of the last batch
            inputs = for_hf_batch(prompts, pad)
            out = model.generate(
                **inputs,
                max_new_tokens=tokens,
                do_sample=False,
                eos_token_id=None,
                pad_token_id=pad,
                stopping_criteria=[stamp],
                **options,
            )
            return [row[inputs["input_ids"].shape[1] :].tolist() for row in out], times

        return generate

    model = load()
    variants = {
        "transformers dynamic cache": generator(model),
        "transformers static cache": generator(model, cache_implementation="static"),
    }
    if compiled:
        faster = load()
        faster.model.language_model.forward = torch.compile(faster.model.language_model.forward)
        variants["transformers static cache, compiled"] = generator(faster, cache_implementation="static")
    return variants


def measure(contenders: dict[str, Generate], prompts: list[Prompt], arguments: argparse.Namespace) -> dict[str, Any]:
    usable: dict[str, Generate] = {}
    failed: dict[str, str] = {}
    answers: dict[str, list[list[int]]] = {}
    for name, generate in contenders.items():  # warm-up: the first run compiles, allocates, and fills caches
        try:
            generate(prompts, 2)
            answers[name], _ = generate(prompts, arguments.tokens)
            usable[name] = generate
        except Exception as error:  # a variant this machine cannot run is recorded, not hidden
            failed[name] = f"{type(error).__name__}: {str(error)[:200]}"
    runs: dict[str, list[list[float]]] = {name: [] for name in usable}
    for _ in range(arguments.rounds):
        for name, generate in usable.items():
            start = time.perf_counter()
            _, times = generate(prompts, arguments.tokens)
            runs[name].append([moment - start for moment in times])
    rows = {
        name: speed(rounds, len(prompts), arguments.tokens)
        | {"same_tokens_as_native": answers[name] == answers["native"]}
        for name, rounds in runs.items()
    }
    ratios: dict[str, dict[str, float]] = {}
    for ours in (name for name in rows if name.startswith("native")):
        ratios[ours] = {}
        for figure in ("decode", "decode_quiet", "whole", "whole_quiet"):
            peer = max(row[figure] for name, row in rows.items() if not name.startswith("native"))
            ratios[ours][figure] = round(rows[ours][figure] / peer, 2)
    return {"engines": rows, "over_the_best_transformers": ratios, "failed": failed}


def speed(rounds: list[list[float]], batch: int, tokens: int) -> dict[str, Any]:
    """Tokens per second, from the moment of each token counted from the start of its round."""
    steps = sorted(b - a for times in rounds for a, b in itertools.pairwise(times))
    firsts, wholes = [times[0] for times in rounds], [times[-1] for times in rounds]
    return {
        "decode": round(batch / statistics.median(steps), 1),
        "decode_quiet": round(batch / steps[len(steps) // 20], 1),
        "whole": round(batch * tokens / statistics.median(wholes), 1),
        "whole_quiet": round(batch * tokens / min(wholes), 1),
        "first_token_ms": round(statistics.median(firsts) * 1e3, 1),
        "first_token_ms_quiet": round(min(firsts) * 1e3, 1),
        "step_ms": round(statistics.median(steps) * 1e3, 3),
    }


def report(record: dict[str, Any]) -> None:
    for batch, result in record["batches"].items():
        print(f"{batch} prompt(s) at once, {record['tokens']} tokens each")
        for name, row in result["engines"].items():
            print(
                f"  {name:36} decode {row['decode']:8.1f} (quiet {row['decode_quiet']:8.1f}) tok/s"
                f"   whole {row['whole']:7.1f} (quiet {row['whole_quiet']:7.1f}) tok/s"
                f"   first token {row['first_token_ms']:7.1f} ms   same tokens {row['same_tokens_as_native']}"
            )
        for name, why in result["failed"].items():
            print(f"  {name}: {why}")
        for name, ratios in result["over_the_best_transformers"].items():
            print(f"  {name} over the best transformers: {ratios}")


if __name__ == "__main__":
    main()
