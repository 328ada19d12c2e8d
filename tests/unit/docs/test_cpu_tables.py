"""docs/performance.md says of a CPU what the records say, in words that follow from the numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.cpu_llm import table


def test_the_published_tables_are_the_records() -> None:
    text = table.PAGE.read_text(encoding="utf-8")
    assert text == table.page_with(table.render()), "run python benchmarks/cpu_llm/table.py"


def row(decode: float, first: float) -> dict[str, Any]:
    return {"decode_1": decode, "first_token_49_ms": first}


FOUND = {
    "native bf16": row(70, 90),
    "native int8": row(120, 90),
    "vllm bf16": row(30, 100),
    "llama.cpp BF16": row(50, 200),
    "llama.cpp Q8_0": row(100, 80),
}


@pytest.mark.parametrize(
    ("ours", "column", "less", "aim", "said"),
    [
        ("native bf16", "decode_1", False, 1.3, "llama.cpp BF16: 50.0 tok/s | 1.40 | ≥ 1.3 | met |"),  # 70 / 50
        ("native bf16", "first_token_49_ms", True, 1.0, "vllm bf16: 100 ms | 0.90 | ≤ 1 | met |"),  # 90 / 100
        ("native int8", "decode_1", False, 1.3, "llama.cpp Q8_0: 100 tok/s | 1.20 | ≥ 1.3 | **missed** |"),
    ],
)
def test_the_best_peer_of_as_many_bits_decides(ours: str, column: str, less: bool, aim: float, said: str) -> None:
    (line,), missed = table.against_the_best(FOUND, "it", ours, column, less=less, aim=aim)
    assert line.endswith(said)
    assert bool(missed) == ("missed" in said)


def test_what_is_missed_is_said_in_words() -> None:
    _, missed = table.against_the_best(FOUND, "int8, one request", "native int8", "decode_1", less=False, aim=1.3)
    assert missed == ["int8, one request, 1.20 × llama.cpp Q8_0 where ≥ 1.3 was aimed at"]
    assert table.against_the_best(FOUND, "it", "native int8", "decode_1", less=False, aim=None)[1] == []
    assert table.against_the_best({"native bf16": row(1, 1)}, "it", "native bf16", "decode_1", less=False, aim=1) == (
        [],
        [],
    )


def test_a_missed_start_is_said() -> None:
    one = {"median": 2.0, "least": 2.0}
    record = {
        "machine": {"cpu": "x", "cores": 2, "packages": {"torch": "2", "transformers": "5"}},
        "rounds": 3,
        "commands": {"import torch": {"end": one, "cpu": one}, "ask": {"first": one, "end": one, "cpu": one}},
        "first_token_beyond_import_torch_s": 1.2,
        "cpu_over_import_torch": 2.0,
    }
    assert "`import torch` + 1.20 s (aimed at ≤ 1 s: **missed**)" in table.start_up(record)[-1]


def test_what_was_written_is_said_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "performance.md"
    page.write_text(f"before\n{table.BEGIN}\nold\n{table.END}\nafter\n", "utf-8")
    monkeypatch.setattr(table, "PAGE", page)
    table.main()
    assert capsys.readouterr().out == f"docs/performance.md: the CPU tables written, from {', '.join(table.RECORDS)}\n"
    assert page.read_text("utf-8") == f"before\n{table.BEGIN}\n{table.render()}\n{table.END}\nafter\n"
