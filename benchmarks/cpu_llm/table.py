"""The CPU tables of docs/performance.md, from the records: `python benchmarks/cpu_llm/table.py` writes them between the
markers.

A target that was missed is said to be missed: the words come from the numbers.
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[1] / "results"
PAGE = Path(__file__).parents[2] / "docs/performance.md"
BEGIN, END = "<!-- tables: benchmarks/cpu_llm/table.py -->", "<!-- end of the CPU tables -->"

WEIGHT_BYTES = 268_959_744  # SmolLM2-135M in bfloat16: the 134,479,872 numbers that a step multiplies with
EIGHT_BITS = ("native int8", "llama.cpp Q8_0", "OpenVINO Q8_0")
NOT_RECORDED = "Not recorded yet: `{}`."


RECORDS = ("cpu_llm.json", "int8_accuracy.json", "start_up.json", "image_preparation.json")
"""What `render` reads, in its order."""


def read(name: str) -> dict[str, Any] | None:
    path = RESULTS / name
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def render() -> str:
    sections = (engines, accuracy, start_up, image_preparation)
    return "\n\n".join("\n".join(of(read(name))) for of, name in zip(sections, RECORDS, strict=True))


def engines(record: dict[str, Any] | None) -> list[str]:
    """Every engine's figures, then what was aimed at."""
    if record is None:
        return [NOT_RECORDED.format("cpu_llm.json")]
    settings, found = record["settings"], record["engines"]
    batch = settings["batch"]
    columns = ("first_token_49_ms", "first_token_1000_ms", "decode_1", f"decode_{batch}", "whole_1", f"whole_{batch}")
    lines = [
        f"**{settings['model']}**, {machine(record)}; {settings['threads']} threads, {settings['tokens']} tokens an "
        f"answer, medians of {settings['rounds']} rounds in turn, in brackets of the shortest times. First token in ms "
        f"after a prompt of 49 and of 1000 tokens; tokens a second of one request and of {batch} at once.",
        "",
        f"| engine | first token, 49 | first token, 1000 | decode, 1 | decode, {batch} | whole, 1 | whole, {batch} |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, row in found.items():
        values = " | ".join(f"{number(row[column])} ({number(row[column + '_best'])})" for column in columns)
        lines.append(f"| {name} | {values} |")
    lines += [f"| {name} | failed: {why} |" + " |" * 5 for name, why in record.get("failed", {}).items()]
    versions = dict.fromkeys(row["version"] for row in found.values())
    lines += [
        "",
        f"Versions: {'; '.join(versions)}.",
        "",
        "| native beside its best peer | native | best peer | ratio | aimed at | |",
        "|---|---|---|---|---|---|",
    ]
    missed: list[str] = []
    for what, ours, column, less, aim in (
        ("bf16, first token after 49 tokens", "native bf16", "first_token_49_ms", True, 1.0),
        ("bf16, first token after 1000 tokens", "native bf16", "first_token_1000_ms", True, 1.0),
        ("bf16, one request", "native bf16", "decode_1", False, 1.3),
        (f"bf16, {batch} requests", "native bf16", f"decode_{batch}", False, 1.1),
        ("int8, first token after 49 tokens", "native int8", "first_token_49_ms", True, None),
        ("int8, first token after 1000 tokens", "native int8", "first_token_1000_ms", True, None),
        ("int8, one request", "native int8", "decode_1", False, 1.3),
        (f"int8, {batch} requests", "native int8", f"decode_{batch}", False, None),
    ):
        row, short = against_the_best(found, what, ours, column, less=less, aim=aim)
        lines += row
        missed += short
    if missed:
        lines += ["", f"Missed: {'; '.join(missed)}."]
    return [*lines, *ceiling(record)]


def ceiling(record: dict[str, Any]) -> list[str]:
    """What the machine's memory allows one request, from the reads of the same rounds."""
    rounds = record.get("read", {}).get("gb_per_s", [])
    native = record["engines"].get("native bf16")
    if not rounds or native is None:
        return []
    tokens, seconds = record["settings"]["tokens"], native["seconds"]
    first = statistics.median(seconds["first token, 49"])
    each = "; ".join(
        f"{read:.0f} GB/s: {read * 1e9 / WEIGHT_BYTES:.0f} and {(tokens - 1) / (whole - first):.0f}"
        for read, whole in sorted(zip(rounds, seconds["alone"], strict=True))
    )
    return [
        "",
        f"A step of one request reads {WEIGHT_BYTES / 1e6:.0f} MB of bfloat16 weights, so reading bounds its tokens a "
        f"second. What both cores read in each round ({record['read']['how']}), the tokens a second that this "
        f"allows, and those of native bf16: {each}. Memory drifts within a round, so a figure can lie above its "
        "reading.",
    ]


def against_the_best(
    found: dict[str, Any], what: str, ours: str, column: str, *, less: bool, aim: float | None
) -> tuple[list[str], list[str]]:
    """A line of the table, and where the aim is missed, that in words; none where one of the two sides is not there.
    Eight bits are set beside eight bits."""
    peers = {
        name: row[column]
        for name, row in found.items()
        if not name.startswith("native") and (name in EIGHT_BITS) == (ours in EIGHT_BITS)
    }
    if ours not in found or not peers:
        return [], []
    best = (min if less else max)(peers, key=lambda name: peers[name])
    ratio = found[ours][column] / peers[best]
    met = aim is None or (ratio <= aim if less else ratio >= aim)
    unit = "ms" if less else "tok/s"
    aimed = "–" if aim is None else f"{'≤' if less else '≥'} {aim:g}"
    verdict = "" if aim is None else "met" if met else "**missed**"
    values = f"{number(found[ours][column])} {unit} | {best}: {number(peers[best])} {unit}"
    row = f"| {what} | {values} | {ratio:.2f} | {aimed} | {verdict} |"
    short = f"{what}, {ratio:.2f} × {best} where {aimed} was aimed at"
    return [row], [] if met else [short]


def accuracy(record: dict[str, Any] | None) -> list[str]:
    if record is None:
        return [NOT_RECORDED.format("int8_accuracy.json")]
    settings, found = record["settings"], record["engines"]
    reference, *others = found.items()
    lines = [
        f"**Accuracy of {record['model']}** against {reference[0]} (perplexity {reference[1]['perplexity']:.3f}), "
        f"{machine(record)}: logits at {settings['positions']} positions of Python's language reference (teacher "
        f"forcing), perplexity over {settings['perplexity_tokens']} tokens of it, {settings['answers']} greedy answers "
        f"of {settings['answer_tokens']} tokens.",
        "",
        "| engine | logit error, mean | largest | KL, mean (nat) | same likeliest token | answers exact | tokens "
        "before a difference | perplexity |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, row in others:
        divergence = max(row["kl_mean"], 0) + 0.0  # no -0
        change = row["perplexity"] / reference[1]["perplexity"] - 1
        lines.append(
            f"| {name} | {row['logit_error_mean']:.2%} | {row['logit_error_max']:.2%} | {divergence:.5f} | "
            f"{row['top1_same']:.1%} | {row['answers_exact']} of {row['answers']} | "
            f"{row['tokens_before_a_difference']:.0%} | {row['perplexity']:.3f} ({change:+.2%}) |"
        )
    return lines


def start_up(record: dict[str, Any] | None) -> list[str]:
    if record is None:
        return [NOT_RECORDED.format("start_up.json")]
    rows = record["commands"]
    beyond = record["first_token_beyond_import_torch_s"]
    lines = [
        f"**Start of the process**, {machine(record)}: the bundled model, one picture, medians of {record['rounds']} "
        "rounds in turn, seconds.",
        "",
        "| command | first token | end | CPU time |",
        "|---|---|---|---|",
    ]
    names = {
        "python": "`python -c pass`",
        "import torch": '`python -c "import torch"`',
        "ask": "`visavis ask`, one token",
    }
    for name, row in rows.items():
        first = f"{row['first']['median']:.2f}" if "first" in row else "–"
        lines.append(f"| {names[name]} | {first} | {row['end']['median']:.2f} | {row['cpu']['median']:.2f} |")
    met = "met" if beyond <= 1 else "**missed**"
    lines += [
        "",
        f"First token: `import torch` + {beyond:.2f} s (aimed at ≤ 1 s: {met}); CPU time "
        f"{record['cpu_over_import_torch']:.2f} × that of `import torch`.",
    ]
    return lines


def image_preparation(record: dict[str, Any] | None) -> list[str]:
    if record is None:
        return [NOT_RECORDED.format("image_preparation.json")]
    ways = {
        "visavis": ("ours: decode", "ours: resize", "ours: patches"),
        "visavis without a compiler": ("ours: decode", "ours, no compiler: resize", "ours, no compiler: patches"),
    }
    theirs = ("transformers, Pillow", "transformers, torchvision")
    lines = [
        f"**A screen of 1920 × 1080 to a tower's patches**, {machine(record)}: medians of {record['rounds']} rounds in "
        "turn, ms. transformers' processors are given the decoded picture.",
        "",
        "| | file | decode | resize | patches | resize and patches |",
        "|---|---|---|---|---|---|",
    ]
    slower = []
    for file in record["files"]:
        ms = file["median_ms"]
        for name, parts in ways.items():
            steps = [ms[part] for part in parts]
            values = " | ".join(f"{value:.1f}" for value in (*steps, steps[1] + steps[2]))
            lines.append(f"| {name} | {file['format']} | {values} |")
        for name in theirs:
            if (whole := ms.get(f"{name}: resize and patches")) is not None:
                lines.append(f"| {name} | {file['format']} | {ms['Pillow: decode']:.1f} | | | {whole:.1f} |")
                slower += [f"{name}, {file['format']}"] if ms["ours: resize and patches"] > whole else []
    equal = all(file["equal_to_ours"].get("transformers, Pillow") for file in record["files"])
    lines += [
        "",
        f"Aimed at: no slower than transformers: {'**missed**: ' + '; '.join(slower) if slower else 'met'}. "
        f"{'The patches equal those of its Pillow processor bit for bit.' if equal else ''}",
    ]
    return lines


def machine(record: dict[str, Any]) -> str:
    found = record["machine"]
    load = found.get("load_average")
    versions = ", ".join(f"{name} {found['packages'][name]}" for name in ("torch", "transformers"))
    return f"{found['cpu']}, {found['cores']} cores, {versions}" + ("" if load is None else f" (load before: {load})")


def number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def page_with(tables: str) -> str:
    before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    return f"{before}{BEGIN}\n{tables}\n{END}{rest.split(END)[1]}"


def main() -> None:
    PAGE.write_text(page_with(render()), encoding="utf-8")
    found = [name for name in RECORDS if (RESULTS / name).exists()]
    print(f"docs/{PAGE.name}: the CPU tables written, from {', '.join(found)}")


if __name__ == "__main__":
    main()
