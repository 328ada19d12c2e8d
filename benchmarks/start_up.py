"""From the start of the process to the first token: `visavis ask` on the bundled model beside a bare `import torch`.

    python benchmarks/start_up.py [--rounds 9] [--out benchmarks/results/start_up.json]

Three commands in turn, round after round, on a warm file cache: `python -c pass`, `python -c "import torch"`, and one
question with one picture to `visavis ask --max-tokens 1`. Of each: wall time to the end of the process, its CPU time
(user + system, of all its threads), and of `ask` the time until the first character of the answer is on stdout.
Medians over the rounds, and the least. CPU time hardly depends on what else runs on the machine, wall time does.

The target: first token ≤ `import torch` + 1 s.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from importlib import resources
from pathlib import Path
from typing import Any

from visavis.report.machine import describe

TARGET_S = 1.0


def commands() -> dict[str, list[str]]:
    samples = Path(str(resources.files("visavis") / "assets" / "samples"))
    first = json.loads((samples / "samples.json").read_text("utf-8"))["samples"][0]
    (message,) = [m for m in first["messages"] if m["role"] == "user"]
    image = next(str(samples / part["image"]) for part in message["content"] if part["type"] == "image")
    question = next(part["text"] for part in message["content"] if part["type"] == "text")
    ask = ["-m", "visavis", "ask", question, "--image", image, "--max-tokens", "1", "--quiet"]
    return {"python": ["-c", "pass"], "import torch": ["-c", "import torch"], "ask": ask}


def run(arguments: list[str]) -> dict[str, float]:
    """Seconds of one process: `first` byte on stdout (where there is one), `end`, and `cpu`."""
    start = time.perf_counter()
    process = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    found = {}
    if process.stdout.read(1):
        found["first"] = time.perf_counter() - start
        process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    found["end"] = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    process.stdout.close()
    if process.returncode:
        raise SystemExit(f"{' '.join(arguments)[:80]} ended with {process.returncode}")
    return {**found, "cpu": usage.ru_utime + usage.ru_stime}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    chosen = commands()
    machine = describe()
    seen: dict[str, list[dict[str, float]]] = {name: [] for name in chosen}
    for number in range(arguments.rounds + 1):
        for name, command in chosen.items():
            taken = run(command)
            if number:  # the first one fills the file cache and writes bytecode
                seen[name].append(taken)
    record: dict[str, Any] = {
        "machine": machine,
        "rounds": arguments.rounds,
        "commands": {name: figures(rounds) for name, rounds in seen.items()},
        "seconds": {name: [{k: round(v, 4) for k, v in r.items()} for r in rounds] for name, rounds in seen.items()},
    }
    ask, torch = record["commands"]["ask"], record["commands"]["import torch"]
    record["first_token_beyond_import_torch_s"] = round(ask["first"]["median"] - torch["end"]["median"], 3)
    record["cpu_over_import_torch"] = round(ask["cpu"]["median"] / torch["cpu"]["median"], 2)
    for name, row in record["commands"].items():
        print(f"{name:14}" + "".join(f"  {k} {v['median']:.3f} s (least {v['least']:.3f})" for k, v in row.items()))
    print(
        f"first token: import torch + {record['first_token_beyond_import_torch_s']:.2f} s (target ≤ {TARGET_S:.2f}); "
        f"CPU time {record['cpu_over_import_torch']} × import torch"
    )
    if arguments.out:
        arguments.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def figures(rounds: list[dict[str, float]]) -> dict[str, dict[str, float]]:
    return {
        key: {
            "median": round(statistics.median(r[key] for r in rounds), 4),
            "least": round(min(r[key] for r in rounds), 4),
        }
        for key in ("first", "end", "cpu")
        if key in rounds[0]
    }


if __name__ == "__main__":
    main()
