"""The plan as a page: the memory in proportion, nothing by colour alone, nothing asked of anybody."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.unit.compare.test_report import Page
from tests.unit.plan.configs import card, qwen2_vl_7b
from visavis.cli import main
from visavis.plan import EnginePlan, MemoryPart, plan
from visavis.plan.html import to_html
from visavis.plan.html.bars import memory_bars

RESULT = plan(qwen2_vl_7b(), card(24), model="a/b", images=[(1080, 1920)], concurrency=4)
TOO_SMALL = plan(qwen2_vl_7b(), card(15.65), model="a/b", images=[(1080, 1920)])


def engine(*parts: MemoryPart, fits: bool = True) -> EnginePlan:
    return EnginePlan("native", fits, "", parts)


def test_parts_are_as_wide_as_their_bytes_and_carry_their_letters() -> None:
    svg = memory_bars(
        [
            engine(
                MemoryPart("mlp", 50, "", "weights"),
                MemoryPart("activations", 25, "", "activations"),
                MemoryPart("free", 25, "", "free"),
            )
        ],
        100,
    )
    widths = {kind: float(width) for kind, width in re.findall(r'class="(fill part|free)" [^>]*width="([^"]+)"', svg)}
    assert re.findall(r'class="fill part" [^>]*width="([^"]+)"', svg) == ["190.0", "95.0"]  # of 380
    assert widths["free"] == 95.0
    assert re.findall(r'class="on-fill">(.)<', svg) == ["M", "a"]
    assert "75 B of 100 B" in svg
    assert 'class="end"' not in svg


def test_what_does_not_fit_runs_over_the_devices_end() -> None:
    svg = memory_bars([engine(MemoryPart("mlp", 200, "", "weights"), fits=False)], 100)
    assert "200 B of 100 B, does not fit" in svg
    assert re.search(r'class="end" d="M190.0 ', svg)  # half of 380


@pytest.mark.parametrize("result", [RESULT, TOO_SMALL])
def test_the_page_is_whole_and_asks_nobody(result: object) -> None:
    text = to_html(result, "visavis plan --x '<b>'")  # type: ignore[arg-type]
    page = Page(text)
    assert page.open == []
    assert not [tag for tag, _ in page.tags if tag in ("script", "link", "iframe", "img", "object")]
    assert "visavis plan --x '<b>'" in page.text
    assert "<b>" not in text


def test_everything_the_terminal_says_with_why_is_on_the_page() -> None:
    said = " ".join(Page(to_html(RESULT, "")).text.split())
    for e in RESULT.engines:
        for proposal in e.proposals:
            assert " ".join(proposal.why.split()) in said
        assert e.launch in said
    for part in RESULT.weights:
        assert part.why in said
    for advice in RESULT.advice:
        assert advice.text[1:] in said


def test_what_does_not_fit_stands_at_the_top() -> None:
    text = Page(to_html(TOO_SMALL, "")).text
    assert text.index("Only a quantised") < text.index("The memory of one device")


def test_the_command_writes_it(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "r.html"
    assert main(["plan", "--gpu-memory", "8GiB", "--report", str(out), "--json"]) == 0
    stdout, stderr = capfd.readouterr()
    assert json.loads(stdout)["fits"] is True
    assert f"report: {out}" in stderr
    assert "visavis plan --gpu-memory 8GiB" in out.read_text("utf-8")


def test_a_report_that_cannot_be_written_is_refused_first(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "-m", "no/model", "--report", str(tmp_path / "no" / "r.html")]) == 2
    assert "cannot be written" in capfd.readouterr().err
