from __future__ import annotations

from benchmarks.gpu.table import PAGE, page_with, render


def test_the_published_table_is_the_record() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text == page_with(render()), "run python -m benchmarks.gpu.table"
