"""The picture of the memory: letters carry the meaning, proportions are right, colour is only extra."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from tests.unit.plan.configs import card, qwen2_vl_7b, qwen3_vl_235b_fp8
from visavis.plan import Device, MemoryPart, Plan, plan
from visavis.plan.picture import LETTERS, bar, cells
from visavis.plan.render import show
from visavis.plan.units import format_bytes
from visavis.plan.weights import PARTS


def part(name: str, amount: float) -> MemoryPart:
    return MemoryPart(name, amount, "", "weights")


def test_a_bar_is_in_proportion() -> None:
    parts = [part("mlp", 50), part("attention", 25), part("KV cache", 20), part("free", 5)]
    assert bar(parts, 100, 20) == "MMMMMMMMMMAAAAAkkkk·"


def test_what_does_not_fit_runs_over_a_marked_end() -> None:
    assert bar([part("mlp", 150), part("lm_head", 50)], 100, 8) == "MMMM|MMHH"


@given(st.lists(st.floats(0, 1e12), min_size=1, max_size=9), st.integers(1, 120))
def test_a_bar_never_is_longer_than_its_width(amounts: list[float], width: int) -> None:
    parts = [part(name, amount) for name, amount in zip(LETTERS, amounts, strict=False)]
    total = sum(p.bytes for p in parts)
    found = cells(parts, total, width)
    assert sum(count for _, count in found) == (width if total > 0 else 0)
    for p, count in found:
        assert abs(count - p.bytes / total * width) < 1


def test_every_part_has_a_letter_of_its_own() -> None:
    assert len(set(LETTERS.values())) == len(LETTERS)
    assert {name for name, letter in LETTERS.items() if letter.isupper()} == set(PARTS)


def test_the_page_about_plan_names_every_letter_that_is_not_a_weight() -> None:
    page = (Path(__file__).parents[3] / "docs/commands/plan.md").read_text("utf-8")
    sentence = page[page.index("In the bar every part has a letter") :].split("`|`")[0]
    assert set(re.findall(r"`(.)`", sentence)) == {letter for letter in LETTERS.values() if not letter.isupper()}


def shown(result: Plan, *, width: int = 100, colour: bool = False) -> str:
    out = io.StringIO()
    show(result, Console(file=out, width=width, force_terminal=colour, soft_wrap=True, emoji=False))
    return out.getvalue()


RESULT = plan(qwen2_vl_7b(), card(24), model="a/b", images=[(1080, 1920)], concurrency=4)


def test_people_see_the_answer_without_colour() -> None:
    text = shown(RESULT)
    assert "\x1b" not in text
    for piece in ("15.444", "56 KiB a token", "max_model_len", "vllm serve a/b", "mem-fraction-static", "slower"):
        assert piece in text
    bars = {line.split()[0]: line.split()[1] for line in text.splitlines() if "MMMMMM" in line}
    assert set(bars) == {"native", "hf", "vllm", "sglang"}
    assert all("k" in b and "E" in b and len(b) == 90 for b in bars.values())


def test_colour_only_repeats_the_letters(monkeypatch: pytest.MonkeyPatch) -> None:
    import re

    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    coloured = shown(RESULT, colour=True)
    assert "\x1b[" in coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == shown(RESULT)


def test_no_color_is_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    text = shown(RESULT, colour=True)
    assert not any(f"\x1b[{code}" in text for code in ("31m", "32m", "33m", "34m", "90m"))


@pytest.mark.parametrize("width", [60, 80, 140])
def test_nothing_but_commands_is_wider_than_the_terminal(width: int) -> None:
    result = plan(qwen3_vl_235b_fp8(), card(139.8, 2), ranks=2, model="a/b")
    lines = [line for line in shown(result, width=width).splitlines() if not line.startswith("  ")]
    assert max(len(line) for line in lines) <= width


def test_a_plan_that_fits_nowhere_is_shown_too() -> None:
    text = shown(plan(qwen2_vl_7b(), card(15.65), images=[(1080, 1920)]))
    assert "|" in text
    assert "does not fit" in text
    assert "Only a quantised" in text


def test_the_short_answer_has_picture_commands_and_warnings_and_leaves_reasons_to_why() -> None:
    out = io.StringIO()
    show(RESULT, Console(file=out, width=100, soft_wrap=True, emoji=False), why=False)
    text, whole = out.getvalue(), shown(RESULT)
    assert len(text.splitlines()) < 0.7 * len(whole.splitlines())
    for engine in RESULT.engines:
        assert engine.verdict in text
        assert engine.launch in text
    bars = [line for line in text.splitlines() if "MMMMMM" in line]
    assert len(bars) == 4
    assert "--why" in text.splitlines()[-1]
    assert "2 cards will be slower than one" in text or "2 cards can be up to" in text
    for reason in ("rounded up to 256s", "stored as", "of weights a token"):
        assert reason in " ".join(whole.split())
        assert reason not in text


def test_why_says_what_the_memory_beside_the_weights_is_made_of() -> None:
    machine = Device("cpu", "CPU", 32 * 2**30, 20 * 2**30, 1, None, "test", cores=2)
    result = plan(qwen2_vl_7b(), machine, engines=("native",), quantization="int8", dtype="bfloat16")
    text = " ".join(shown(result, width=140).split())
    assert "process (Python, torch, libraries) 614.40 MiB, and 10% of 20.00 GiB free memory left alone" in text
    peaks = {part.name: part.bytes for part in result.engines[0].activations}
    assert len(peaks) == 3
    assert all(f"{name} {format_bytes(amount)}" in text for name, amount in peaks.items())
    assert f"needs {format_bytes(peaks['text step'])} of activations in the decoder" in text


def test_what_does_not_fit_is_said_in_full_in_the_short_answer_too() -> None:
    result = plan(qwen2_vl_7b(), card(15.65), images=[(1080, 1920)])
    out = io.StringIO()
    show(result, Console(file=out, width=100, soft_wrap=True, emoji=False), why=False)
    text = next(a.text for a in result.advice if a.topic == "does not fit")
    assert " ".join(text.split()) in " ".join(out.getvalue().split())
