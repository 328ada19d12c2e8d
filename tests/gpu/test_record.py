from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import table
from benchmarks.gpu.table import PAGE, page_with, render

MIXED: dict[str, Any] = {
    "row": "mixed-load", "before_ms": 2.004, "before_p99_ms": 2.5, "during_ms": 2.1, "during_p99_ms": 14.75,
    "floor_decode_ms": 0.835, "floor_mixed_ms": 7.475, "first_token_ms": 17.4, "first_token_p99_ms": 31.6,
    "before_tok_s": 15968.1, "during_tok_s": 12345.6, "during_prompt_tok_s": 40000.4,
}  # fmt: skip
PARITY: dict[str, Any] = {
    "row": "parity-qwen3_vl-screen", "error": 0.01234, "transformers_error": 0.015, "error_ratio": 0.823,
    "first_ratio": 1.204, "vision_error": None, "transformers_vision_error": 0.004, "kl": 0.00012,
    "transformers_kl": 0.0003, "top1": True, "transformers_top1": False, "equal_to_transformers": 3, "near_tie": True,
    "tokens": {"transformers": [1] * 8}, "kept": False,
}  # fmt: skip


def test_the_published_table_is_the_record() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text == page_with(render()), "run python -m benchmarks.gpu.table"


def test_mixed_load_and_parity_appear_once_they_are_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = {"row": "parity-qwen2_vl-screen", "failed": "RuntimeError('not finite')"}
    images = [entry for row, entry in table.latest().items() if row.startswith(("vl-", "7b-"))]
    record = tmp_path / "record.jsonl"
    for more, absent in (([], 7), ([MIXED, PARITY, failed], 4)):
        record.write_text("\n".join(map(json.dumps, images + more)), encoding="utf-8")
        monkeypatch.setattr(table, "RECORD", record)
        lines = render().splitlines()
        assert sum("not measured yet" in line for line in lines) == absent
    assert [line.split(" | ", 1)[1] for line in lines if line.startswith("| Qwen2.5-1.5B, 32 ×")] == [
        "2.00, 2.50 ms | 2.10, 14.75 ms | 0.83, 7.47 ms | 17, 32 ms | 15968 | 12346, 40000 |"
    ]
    assert (
        "| Qwen3-VL-8B dims, one 1920 × 1080 picture | 1.23 %, 1.50 % | 0.82, 1.20 | –, 0.40 % | 1.2e-04, 3.0e-04 | "
        "yes, no | 3 of 8, then a near tie | **broken** |"
    ) in lines
    assert "| Qwen2-VL-7B dims, one 1920 × 1080 picture | failed | | | | | | **broken** |" in lines


def test_what_was_written_is_said_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "performance.md"
    page.write_text(f"{table.BEGIN}\nold\n{table.END}\n", "utf-8")
    monkeypatch.setattr(table, "PAGE", page)
    table.main()
    count = len(table.latest())
    assert capsys.readouterr().out == f"docs/performance.md: the GPU tables written, from {count} rows of h200.jsonl\n"
    assert render() in page.read_text("utf-8")
