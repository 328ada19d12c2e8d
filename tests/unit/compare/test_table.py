"""What people see of a comparison."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from visavis.compare.table import print_answers, print_result
from visavis.report.units import bytes_, duration, rate

if TYPE_CHECKING:
    from tests.unit.compare.conftest import Bench


def printed(bench: Bench) -> str:
    result = bench.run()
    file = io.StringIO()
    console = Console(file=file, width=160)
    print_answers(console, result, result.prompts[0])
    print_result(console, result)
    return file.getvalue()


def test_table_shows_each_engine_and_the_agreement(bench: Bench) -> None:
    bench.add("native", answers="Settings", first_token_s=0.1, per_token_s=0.002)
    bench.add("hf", answers="Settings", first_token_s=0.2, per_token_s=0.02)
    shown = printed(bench)
    rows = {line.split("  ")[0].strip(): line.split()[-2:] for line in shown.splitlines() if line.strip()}
    assert shown.count("Settings  right") == 2
    assert " 100 ms" in shown
    assert rows["same tokens as native"] == ["–", "3/3"]
    assert rows["right answers"] == ["3/3", "3/3"]
    assert shown.rstrip().splitlines()[-1].startswith("native and hf gave the same tokens on all 3 prompts")


def test_first_difference_is_shown_with_both_tokens(bench: Bench) -> None:
    bench.add("native", answers=[111, 112], tops={112: ((112, -0.1), (122, -2.5))})
    bench.add("hf", answers=[111, 122], tops={122: ((122, -0.1), (112, -2.5))})
    shown = printed(bench)
    assert "at token 1, after" in shown
    assert "(112)  logprob -0.1000, hf's token -2.5000" in shown
    assert "(122)  logprob -0.1000, native's token -2.5000" in shown


def test_beside_a_difference_it_is_said_how_many_prompts_are_the_same(bench: Bench) -> None:
    bench.add("native", answers={"alpha": [111], "beta": [111], "gamma": [111]})
    bench.add("hf", answers={"alpha": [111], "beta": [111, 112], "gamma": [111]})
    assert "the other 2 prompts are the same for native and hf" in printed(bench)
    bench.engines["hf"].script = bench.engines["native"].script
    bench.engines["hf"].scripted = bench.engines["native"].script
    assert "the other" not in printed(bench)


def test_answers_are_text_not_markup(bench: Bench) -> None:
    bench.add("native", answers="[bold]x[/bold]")
    assert "[bold]x[/bold]" in printed(bench)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "–"),
        (0.00042, "0.42 ms"),
        (0.0123, "12.3 ms"),
        (0.99951, "1.00 s"),
        (0.25, "250 ms"),
        (81.4, "81.4 s"),
        (812.0, "812 s"),
    ],
)
def test_durations_have_three_digits(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


def test_rates_and_bytes() -> None:
    assert (rate(None), rate(9.87), rate(1234.5)) == ("–", "9.9", "1234")
    assert (bytes_(None), bytes_(300 * 2**20), bytes_(3 * 2**29)) == ("–", "300 MiB", "1.50 GiB")
