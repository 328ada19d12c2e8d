"""The native engine against every engine one can install on a CPU, on one small language model, in one run.

    python benchmarks/cpu_llm/run.py --model SMOLLM2_FOLDER --gguf FOLDER_OF_VARIANTS
        [--python vllm=/env/bin/python --python llamacpp=… --python openvino=…] [--out result.json]

Each engine sits in a process of its own and stays loaded; only one works at a time, and rounds of all of them
alternate, so that a noisy moment meets each; a first round of all is not timed. Same ids, all prompts different,
greedy, fixed length, no prefix caching. From outside, alike for all: t(1) = seconds for one token, t(n) = seconds for
n.

- read: GB a second that the same threads read from memory, before the "alone" of each round: the ceiling of one request
- first token: t(1) at 1 prompt of 49 tokens, and of 1000
- decode: batch · (n - 1) / (t(n) - t(1))     whole: batch · n / t(n)

Medians over rounds, and the best round beside them.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from visavis.report.machine import describe

HERE = Path(__file__).parent
CONTENDERS = {  # name: engine, dtype, model variant (None: the Hugging Face folder)
    "native bf16": ("native", "bfloat16", None),
    "native int8": ("native", "int8", None),
    "native f32": ("native", "float32", None),
    "transformers bf16": ("transformers", "bfloat16", None),
    "transformers bf16 static": ("transformers-static", "bfloat16", None),
    "transformers f32": ("transformers", "float32", None),
    "vllm bf16": ("vllm", "bfloat16", None),
    "llama.cpp BF16": ("llamacpp", "bf16", "BF16"),
    "llama.cpp F16": ("llamacpp", "f16", "F16"),
    "llama.cpp Q8_0": ("llamacpp", "q8_0", "Q8_0"),
    "OpenVINO F16": ("openvino", "f16", "F16"),
    "OpenVINO Q8_0": ("openvino", "q8_0", "Q8_0"),
}
MEMORY = "memory"  # no contender: what the machine reads a second, in the same rounds
READ_BYTES, READS = 256 << 20, 16  # as in engines.py
SHORT, LONG = 49, 1000


class Engine:
    def __init__(self, name: str, arguments: argparse.Namespace, pythons: dict[str, str]) -> None:
        engine, dtype, variant = CONTENDERS.get(name, (name, "", None))
        model = arguments.model if variant is None else arguments.gguf / f"model-{variant}.gguf"
        command = [pythons.get(engine, sys.executable), str(HERE / "engines.py"), engine, str(model), dtype]
        environment = {**os.environ, "OMP_NUM_THREADS": str(arguments.threads), "HF_HUB_OFFLINE": "1"}
        log = subprocess.DEVNULL
        if arguments.logs:
            log = os.open(arguments.logs / f"{name.replace(' ', '-')}.log", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
        self.process = subprocess.Popen(
            [*command, str(arguments.threads), str(arguments.batch)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=environment,
        )
        self.hello = self._read()

    def __call__(self, prompts: list[list[int]], tokens: int) -> tuple[float, list[list[int]] | None]:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"prompts": prompts, "tokens": tokens}) + "\n")
        self.process.stdin.flush()
        answer = self._read()
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer["seconds"], answer["token_ids"]

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()

    def _read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"ended with {self.process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer


def main() -> None:
    arguments = parse()
    pythons = dict(entry.split("=", 1) for entry in arguments.python)
    chosen = arguments.only or list(CONTENDERS)
    vocabulary = json.loads((arguments.model / "config.json").read_text())["vocab_size"]
    draw = random.Random(arguments.seed)

    def prompts(count: int, length: int) -> list[list[int]]:
        return [[draw.randrange(100, vocabulary) for _ in range(length)] for _ in range(count)]

    work = {  # name: prompts at once, their length, tokens
        "first token, 49": (1, SHORT, 1),
        "first token, 1000": (1, LONG, 1),
        "alone": (1, SHORT, arguments.tokens),
        "together, one token": (arguments.batch, SHORT, 1),
        "together": (arguments.batch, SHORT, arguments.tokens),
    }
    seconds: dict[str, dict[str, list[float]]] = {}
    settings = {"model": arguments.model.name}
    settings |= {name: getattr(arguments, name) for name in ("threads", "tokens", "batch", "rounds", "seed")}
    record: dict[str, Any] = {"machine": describe(), "settings": settings, "engines": {}, "failed": {}}
    engines: dict[str, Engine] = {}
    if arguments.logs:
        arguments.logs.mkdir(parents=True, exist_ok=True)
    for name in chosen:
        try:
            engines[name] = engine = Engine(name, arguments, pythons)
            for count, length, tokens in work.values():  # warm-up of every shape
                engine(prompts(count, length), tokens)
            seconds[name] = {what: [] for what in work}
            print(f"{name}: {engine.hello}", file=sys.stderr)
        except (RuntimeError, OSError) as error:
            engines.pop(name, None)
            record["failed"][name] = str(error)
            print(f"{name}: failed: {error}", file=sys.stderr)
    answers: dict[str, Any] = {}
    memory = Engine(MEMORY, arguments, pythons)
    record["read"] = {"how": memory.hello["version"], "gb_per_s": []}
    for number in range(-1, arguments.rounds):  # the first one untimed: engines have slept while others were loaded
        for what, (count, length, tokens) in work.items():
            same = prompts(count, length)  # new ones each round, the same for all engines
            if what == "alone" and number >= 0:
                record["read"]["gb_per_s"].append(round(READ_BYTES * READS / memory([], READS)[0] / 1e9, 1))
            for name, engine in list(engines.items()):
                taken, ids = engine(same, tokens)
                if number >= 0:
                    seconds[name][what].append(taken)
                if number == 0 and what == "alone":
                    answers[name] = ids
        print(f"round {number + 1} of {arguments.rounds}", file=sys.stderr, flush=True)
    memory.close()
    for name, engine in engines.items():
        record["engines"][name] = {**engine.hello, **figures(seconds[name], arguments)}
        record["engines"][name]["first_token_ids"] = answers[name][0][:16] if answers.get(name) else None
        engine.close()
    report(record)
    if arguments.out:
        arguments.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def figures(seconds: dict[str, list[float]], arguments: argparse.Namespace) -> dict[str, Any]:
    n, batch = arguments.tokens, arguments.batch
    result: dict[str, Any] = {}
    for label, choose in (("", statistics.median), ("_best", min)):
        t = {what: choose(times) for what, times in seconds.items()}
        result |= {
            f"first_token_49_ms{label}": round(t["first token, 49"] * 1e3, 1),
            f"first_token_1000_ms{label}": round(t["first token, 1000"] * 1e3, 1),
            f"decode_1{label}": round((n - 1) / (t["alone"] - t["first token, 49"]), 1),
            f"decode_{batch}{label}": round(batch * (n - 1) / (t["together"] - t["together, one token"]), 1),
            f"whole_1{label}": round(n / t["alone"], 1),
            f"whole_{batch}{label}": round(batch * n / t["together"], 1),
        }
    result["seconds"] = {what: [round(x, 4) for x in times] for what, times in seconds.items()}
    return result


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="Hugging Face folder of the model")
    parser.add_argument("--gguf", type=Path, default=Path(), help="folder that gguf_variants.py filled")
    parser.add_argument("--python", action="append", default=[], metavar="ENGINE=PATH", help="interpreter of an engine")
    parser.add_argument("--only", action="append", choices=list(CONTENDERS))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--logs", type=Path, help="folder for what the engines print")
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


def report(record: dict[str, Any]) -> None:
    batch = record["settings"]["batch"]
    columns = ["first_token_49_ms", "first_token_1000_ms", "decode_1", f"decode_{batch}", "whole_1", f"whole_{batch}"]
    print(f"{'':26}" + "".join(f"{c.replace('_', ' '):>22}" for c in columns))
    for name, row in record["engines"].items():
        print(f"{name:26}" + "".join(f"{row[c]:>12} ({row[c + '_best']:>7})" for c in columns))
    for name, why in record["failed"].items():
        print(f"{name}: {why}")


if __name__ == "__main__":
    main()
