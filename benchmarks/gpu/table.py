"""The table of docs/performance.md, from the record: `python -m benchmarks.gpu.table` writes it between the markers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RECORD = Path(__file__).parent / "results/h200.jsonl"
PAGE = Path(__file__).parents[2] / "docs/performance.md"
BEGIN, END = "<!-- table: benchmarks/gpu/table.py -->", "<!-- end of table -->"

# Row → what it is, and vLLM 0.26.0 on the same kind of machine with the same dims: decode, whole.
TEXT_ROWS = {
    "1.5b-1": ("Qwen2.5-1.5B, 1 × (37 + 512), greedy", "497", ""),
    "1.5b-1-sampled": ("the same, temperature 0.7, top_p 0.8, repetition 1.05", "439", ""),
    "1.5b-8": ("Qwen2.5-1.5B, 8 × (512 + 256)", "3186", "2999"),
    "1.5b-64": ("Qwen2.5-1.5B, 64 × (512 + 256)", "18199–23663", "14970"),
    "1.5b-256": ("Qwen2.5-1.5B, 256 × (512 + 256)", "43451", "29882"),
    "1.5b-1-16k": ("Qwen2.5-1.5B, 1 × (16384 + 256)", "", ""),
    "1.5b-16-8k": ("Qwen2.5-1.5B, 16 × (8192 + 256)", "", ""),
    "7b-1": ("Qwen2.5-7B, 1 × (37 + 512), greedy", "211", ""),
    "7b-64": ("Qwen2.5-7B, 64 × (512 + 256)", "11639", "7807"),
    "untuned-1": ("Qwen3-4B dims, not tuned on, 1 × (37 + 512)", "", ""),
    "untuned-8": ("Qwen3-4B dims, not tuned on, 8 × (512 + 256)", "", ""),
}
# Row → what it is, the weights it has, and the row of the same work with bf16 weights.
QUANTIZED_ROWS = {
    "7b-1-int8": ("Qwen2.5-7B, 1 × (37 + 512)", "int8", "7b-1"),
    "7b-1-int4": ("the same", "int4", "7b-1"),
    "7b-64-int8": ("Qwen2.5-7B, 64 × (512 + 256)", "int8", "7b-64"),
    "7b-64-int4": ("the same", "int4", "7b-64"),
    "vl-7b-picture-16gib": (
        "Qwen2-VL-7B, one 1920 × 1080 picture, 1 × (1262 + 128), the card limited to 16 GiB, no flags",
        "int8, by itself",
        "vl-7b-picture",
    ),
}
# Row and figure → what was to be reached first, and what is aimed at.
TARGETS = {
    ("1.5b-1", "decode_tok_s"): (950, 1150),
    ("1.5b-8", "decode_tok_s"): (5500, 7000),
    ("1.5b-64", "decode_tok_s"): (26000, 32000),
    ("1.5b-64", "whole_tok_s"): (20000, 24000),
    ("1.5b-256", "decode_tok_s"): (50000, 60000),
    ("1.5b-256", "whole_tok_s"): (36000, 42000),
    ("7b-1", "decode_tok_s"): (260, 285),
    ("7b-64", "decode_tok_s"): (13000, 15000),
    ("vl-first-token", "first_token_ms"): (75, 55),
    ("vl-first-token", "tokens_128_ms"): (575, 510),
    ("vl-64-images", "images_s"): (20, 23),
    ("start-Qwen2.5-1.5B-cold", "first token"): (20, 8),
    ("start-Qwen2-VL-7B-cold", "first token"): (28, 14),
}
RATIOS = {"7b-1-int4": 1.8, "7b-64-int4": 1.0, "7b-64-int8": 1.0, "vl-7b-picture-16gib": 1.6}
"""Of decode tokens a second to those with bf16 weights."""
SAMPLED_SHARE = (0.95, 0.98)
"""Of greedy's decode tokens a second."""
STARTS = {
    "cold": "kernels compiled in it, files in memory",
    "warm": "kernels from the cache on disk, files in memory",
    "warm-from-disk": "kernels from the cache on disk, files from the disk",
}
START_MODELS = {"Qwen2.5-1.5B": "76 s", "Qwen2-VL-7B": "95 s"}
MIXED_ROWS = {
    "mixed-load": "Qwen2.5-1.5B, 32 × 512 decoding; 40 prompts of 2048, one every 50 ms, 64 tokens each",
}
PARITY_MODELS = {"qwen2_vl": "Qwen2-VL-7B", "qwen2_5_vl": "Qwen2.5-VL-7B", "qwen3_vl": "Qwen3-VL-8B"}
PARITY_PROMPTS = {"screen": "one 1920 × 1080 picture", "two-pictures": "two small pictures"}
IMAGE_TFLOP = 27  # one 1920×1080 image of 1222 tokens through tower and decoder of Qwen2-VL-7B


def latest() -> dict[str, dict[str, Any]]:
    """The last entry of each row."""
    lines = RECORD.read_text(encoding="utf-8").splitlines()
    return {entry["row"]: entry for entry in map(json.loads, lines)}


def render() -> str:
    found = latest()
    lines = [
        "| work | decode tok/s | vLLM | whole tok/s | vLLM | first token | read GB/s, of ceiling | "
        "aimed at: first, then |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row, (what, decode, whole) in TEXT_ROWS.items():
        if row not in found:
            lines.append(f"| {what} | not measured | {decode} | | {whole} | | | |")
            continue
        e = found[row]
        lines.append(
            f"| {what} | {e['decode_tok_s']:.0f} | {decode} | {e['whole_tok_s']:.0f} | {whole} | "
            f"{e['first_token_ms']:.0f} ms | {e['read_gb_s']}, {100 * e['of_read_ceiling']:.0f} % | "
            f"{_aims(found, row)} |"
        )
    lines += [
        "",
        "| images, Qwen2-VL-7B dims, 1920 × 1080 | ours | vLLM | TFLOP/s, of ceiling | aimed at: first, then |",
        "|---|---|---|---|---|",
    ]
    first = found["vl-first-token"]
    ceiling = first["ceilings"]["bf16_tflop_s"]
    rate = IMAGE_TFLOP / first["first_token_ms"] * 1e3
    lines.append(
        f"| image to first token, {first['prompt']} tokens, preparation ({first['prepare_ms']:.0f} ms) inside | "
        f"{first['first_token_ms']:.0f} ms | 114 ms | {rate:.0f}, {100 * rate / ceiling:.0f} % | "
        f"{_aim(found, 'vl-first-token', 'first_token_ms')} |"
    )
    lines.append(
        f"| the same, 128 tokens in all | {first['tokens_128_ms']:.0f} ms | 721 ms | | "
        f"{_aim(found, 'vl-first-token', 'tokens_128_ms')} |"
    )
    for row, what in (("vl-64-images", ""), ("vl-64-images-cold", ", kernels compiled meanwhile")):
        if row not in found:
            continue
        rate = IMAGE_TFLOP * found[row]["images_s"]
        lines.append(
            f"| 64 images × 32 tokens{what} | {found[row]['images_s']:.1f} images/s | 16–20 images/s | "
            f"{rate:.0f}, {100 * rate / ceiling:.0f} % | {_aims(found, row)} |"
        )
    return "\n".join([*lines, *_starts(found), *_quantized(found), *_mixed(found), *_parity(found)])


def _aims(found: dict[str, dict[str, Any]], row: str) -> str:
    if row == "1.5b-1-sampled":
        share = found[row]["decode_tok_s"] / found["1.5b-1"]["decode_tok_s"]
        return f"{_verdict(share, *SAMPLED_SHARE)} of greedy: {share:.3f}"
    figures = [figure for at, figure in TARGETS if at == row]
    return "; ".join(_aim(found, row, figure) for figure in figures)


def _aim(found: dict[str, dict[str, Any]], row: str, figure: str) -> str:
    unit = figure.rsplit("_", 2)[0].replace("_", " ") + " " if figure.endswith("tok_s") else ""
    return unit + _verdict(found[row][figure], *TARGETS[row, figure])


def _verdict(value: float, bar: float, aim: float) -> str:
    """Times are to be low, all else high: where the aim is below the bar, it is a time."""
    sign = -1 if aim < bar else 1
    return ", ".join(f"{wanted:g} {'met' if sign * value >= sign * wanted else '**missed**'}" for wanted in (bar, aim))


def _starts(found: dict[str, dict[str, Any]]) -> list[str]:
    lines = [
        "",
        "| process start, from safetensors | | to the first token | to the second | vLLM | aimed at: first, then |",
        "|---|---|---|---|---|---|",
    ]
    for model, peer in START_MODELS.items():
        for state, what in STARTS.items():
            row = f"start-{model}-{state}"
            if row not in found:
                lines.append(f"| {model} | {what} | not measured | | | |")
                continue
            e = found[row]
            first, second = e["first token"], e["second token"]
            aims = _aims(found, row)
            lines.append(f"| {model} | {what} | {first:.1f} s | {second:.1f} s | {peer if aims else ''} | {aims} |")
    return lines


def _quantized(found: dict[str, dict[str, Any]]) -> list[str]:
    """Beside each the same work with bf16 weights."""
    lines = [
        "",
        "| weights of 8 and 4 bits | weights | decode tok/s | bf16 | ratio | first token | read GB/s, of ceiling | "
        "ratio aimed at |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row, (what, weights, dense) in QUANTIZED_ROWS.items():
        if row not in found:
            lines.append(f"| {what} | {weights} | not measured | | | | | |")
            continue
        e = found[row]
        ratio, aim = e["decode_tok_s"] / found[dense]["decode_tok_s"], RATIOS.get(row)
        aimed = "" if aim is None else f"{aim:g} {'met' if ratio >= aim else '**missed**'}"
        lines.append(
            f"| {what} | {weights} | {e['decode_tok_s']:.0f} | {found[dense]['decode_tok_s']:.0f} | "
            f"{ratio:.2f} | {e['first_token_ms']:.0f} ms | "
            f"{e['read_gb_s']}, {100 * e['of_read_ceiling']:.0f} % | {aimed} |"
        )
    return lines


def _mixed(found: dict[str, dict[str, Any]]) -> list[str]:
    lines = [
        "",
        "| prompts that arrive while others decode | token to token before: median, p99 | meanwhile | floor of a step: "
        "decode, with a prompt | their first token: median, p99 | tok/s before | meanwhile, and of prompts |",
        "|---|---|---|---|---|---|---|",
    ]
    for row, what in MIXED_ROWS.items():
        if row not in found:
            lines.append(f"| {what} | not measured yet | | | | | |")
            continue
        e = found[row]
        lines.append(
            f"| {what} | {e['before_ms']:.2f}, {e['before_p99_ms']:.2f} ms | "
            f"{e['during_ms']:.2f}, {e['during_p99_ms']:.2f} ms | "
            f"{e['floor_decode_ms']:.2f}, {e['floor_mixed_ms']:.2f} ms | "
            f"{e['first_token_ms']:.0f}, {e['first_token_p99_ms']:.0f} ms | {e['before_tok_s']:.0f} | "
            f"{e['during_tok_s']:.0f}, {e['during_prompt_tok_s']:.0f} |"
        )
    return lines


def _parity(found: dict[str, dict[str, Any]]) -> list[str]:
    """Errors are relative, along eight tokens that transformers answers in bf16."""
    lines = [
        "",
        "| bf16 beside transformers' bf16, both against its float32 | logit error: ours, theirs | ratio, at the first "
        "token | tower's error: ours, theirs | KL of the first token (nat): ours, theirs | same likeliest first "
        "token: ours, theirs | greedy tokens equal to theirs | law |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for family, model in PARITY_MODELS.items():
        for prompt, pictures in PARITY_PROMPTS.items():
            what = f"{model} dims, {pictures}"
            e = found.get(f"parity-{family}-{prompt}")
            if e is None:
                lines.append(f"| {what} | not measured yet | | | | | | |")
                continue
            if "failed" in e:
                lines.append(f"| {what} | failed | | | | | | **broken** |")
                continue
            tie = {True: ", then a near tie", False: ", then **no tie**", None: ""}[e["near_tie"]]
            lines.append(
                f"| {what} | {_percent(e['error'])}, {_percent(e['transformers_error'])} | "
                f"{e['error_ratio']:.2f}, {e['first_ratio']:.2f} | "
                f"{_percent(e['vision_error'])}, {_percent(e['transformers_vision_error'])} | "
                f"{e['kl']:.1e}, {e['transformers_kl']:.1e} | {'yes' if e['top1'] else 'no'}, "
                f"{'yes' if e['transformers_top1'] else 'no'} | "
                f"{e['equal_to_transformers']} of {len(e['tokens']['transformers'])}{tie} | "
                f"{'kept' if e['kept'] else '**broken**'} |"
            )
    return lines


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.2f} %"


def page_with(table: str) -> str:
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n{table}\n{END}{rest.split(END)[1]}"


def main() -> None:
    PAGE.write_text(page_with(render()), encoding="utf-8")
    print(f"docs/{PAGE.name}: the GPU tables written, from {len(latest())} rows of {RECORD.name}")


if __name__ == "__main__":
    main()
