"""The page: one file, no request to anybody, nothing that was said in it is markup, everything has a name."""

from __future__ import annotations

import csv
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from visavis.compare.html import render, write_report
from visavis.compare.result import Comparison, Expected
from visavis.compare.table_csv import COLUMNS, write_csv

if TYPE_CHECKING:
    from tests.unit.compare.conftest import Bench

TOPS = {13: ((13, -0.1), (23, -2.6)), 23: ((23, -0.1), (13, -2.6))}


class Page(HTMLParser):
    """Every tag with its attributes, and the text."""

    VOID = frozenset({"meta", "wbr", "rect", "line", "circle", "use", "image", "br"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture
def result(bench: Bench) -> Comparison:
    bench.add("native", answers=[11, 12, 13, 14], tops=TOPS)
    bench.add("hf", answers=[11, 12, 23, 14], tops=TOPS)
    return bench.run(rounds=3, own={"hf": {"presence_penalty": 0.5}}, command="visavis compare --x '<b>'")


def test_well_formed_and_asks_nobody(result: Comparison) -> None:
    text = render(result, {})
    page = Page(text)
    assert page.open == []
    assert not [tag for tag, _ in page.tags if tag in ("script", "link", "iframe", "img", "object")]
    for tag, attributes in page.tags:
        for name in ("src", "href", "srcset", "action"):
            value = attributes.get(name)
            assert value is None or value.startswith(("#", "data:image/")), (tag, value)
    style = re.search(r"<style>(.*?)</style>", text, re.S)
    assert style is not None
    assert "url(" not in style[1]
    assert "@import" not in style[1]
    policy = next(a["content"] for t, a in page.tags if t == "meta" and a.get("http-equiv"))
    assert policy is not None
    assert policy.startswith("default-src 'none'")


def test_every_section_and_the_verdict_first(result: Comparison) -> None:
    page = Page(render(result, {}))
    assert page.text.index(result.verdict.split(". ")[0]) < page.text.index("Why the answers differ")
    for heading in (
        "Why the times differ",
        "Speed by phase",
        "Where they part, token by token",
        "What was made equal",
        "Every answer",
        "Settings, and where each came from",
        "Environment",
        "The command that repeats this",
    ):
        assert heading in page.text
    assert "visavis compare --x '<b>'" in page.text
    assert "set for hf" in page.text
    assert "presence_penalty" in page.text
    assert "changed nothing" in page.text


def test_probabilities_at_the_split(result: Comparison) -> None:
    text = Page(render(result, {})).text
    assert "Probabilities at token 2, margin 2.5 nat" in text
    assert "90.48 %" in text  # exp(-0.1)
    assert "7.43 %" in text  # exp(-2.6)


def test_every_picture_has_words_and_engines_have_shapes(result: Comparison) -> None:
    page = Page(render(result, {}))
    for tag, attributes in page.tags:
        if tag == "svg":
            assert attributes.get("aria-hidden") == "true" or attributes.get("aria-label"), attributes
    assert "● native" in page.text
    assert "■ hf" in page.text
    regions = [a for _, a in page.tags if a.get("role") == "region"]
    assert regions
    assert all(a.get("aria-label") and a.get("tabindex") == "0" for a in regions)
    assert ("html", {"lang": "en"}) in page.tags


def test_answers_are_text_and_no_markup(bench: Bench) -> None:
    bench.add("native", answers="<script>alert(1)</script>")
    bench.add("hf", answers="<b>&amp;")
    text = render(bench.run(), {})
    assert "<script" not in text
    assert "&lt;script&gt;" in text
    assert "&lt;b&gt;&amp;amp;" in text


def test_screens_with_boxes_in_pixels_of_the_original(bench: Bench) -> None:
    marker = "<|object_ref_start|>x<|object_ref_end|><|box_start|>({},500),(300,700)<|box_end|>"
    picture = np.full((100, 200, 3), 200, np.uint8)
    from visavis.compare.cases import Case

    messages = [{"role": "user", "content": [{"type": "image", "image": picture}, "where?"]}]
    box = (50.0, 50.0, 60.0, 70.0)
    bench.cases[:] = [Case("a", "where?", bench.family.prepare_messages(messages), Expected(box=box))]
    bench.add("native", answers=marker.format(100))
    bench.add("hf", answers=marker.format(200))
    page = Page(render(bench.run(), {"a": (picture,)}))
    images = [a for t, a in page.tags if t == "image"]
    assert len(images) == 1  # the close view uses the same picture again
    outlines = [a for t, a in page.tags if t == "rect" and (a.get("class") or "").startswith("outline")]
    # x: 100/1000 · 200 = 20 and 200/1000 · 200 = 40; y: 500/1000 · 100 = 50; the true box as it is
    assert {(a["x"], a["y"]) for a in outlines} == {("20.0", "50.0"), ("40.0", "50.0"), ("50.0", "50.0")}
    dashed = {(a["class"] or "").split()[-1]: a.get("stroke-dasharray") is not None for a in outlines}
    assert dashed == {"series-0": False, "series-1": True, "true": False}  # not told apart by colour alone


def test_backend_that_failed_is_on_the_page(bench: Bench) -> None:
    bench.add("native", answers=[11])
    bench.add("hf", answers=[11], fail_load="no room on the device")
    assert "no room on the device" in Page(render(bench.run(), {})).text


def test_written_where_it_was_asked_for(result: Comparison, tmp_path: Path) -> None:
    write_report(result, {}, str(tmp_path / "r.html"))
    assert (tmp_path / "r.html").read_text("utf-8").startswith("<!doctype html>")


def test_csv_has_a_row_for_each_answer(result: Comparison, tmp_path: Path) -> None:
    path = tmp_path / "r.csv"
    write_csv(result, str(path))
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == COLUMNS
    assert len(rows) == 2 * 3 * 3
    first = next(r for r in rows if r["backend"] == "hf" and r["round"] == "1")
    assert (first["same_tokens_as"], first["same_tokens"], first["share_before"]) == ("native", "False", "0.5")
    assert first["difference"] == "real"
    assert float(first["first_token_s"]) == pytest.approx(0.1)


def test_csv_text_is_never_a_formula(bench: Bench, tmp_path: Path) -> None:
    bench.add("native", answers="=1+1")
    write_csv(bench.run(), str(tmp_path / "r.csv"))
    assert "'=1+1" in (tmp_path / "r.csv").read_text("utf-8-sig")


def test_all_pages_have_one_style_and_one_frame(result: Comparison) -> None:
    from visavis.report import page as base

    shared = (Path(base.__file__).parent / "page.css").read_text("utf-8")
    text = render(result, {})
    assert shared in text
    # colours are defined there alone, once for light and once for dark
    for name in ("--paper:", "--ink:", "--s0:"):
        assert text.count(name) == 2
    assert text.count("<main>") == 1


def test_the_page_says_how_many_prompts_are_the_same_beside_a_difference(bench: Bench) -> None:
    bench.add("native", answers={"alpha": [111], "beta": [111], "gamma": [111]})
    bench.add("hf", answers={"alpha": [111], "beta": [111, 112], "gamma": [111]})
    assert "The other 2 prompts are the same for native and hf." in Page(render(bench.run(), {})).text


def test_labels_of_small_boxes_do_not_stand_over_each_other() -> None:
    from visavis.compare.html.marks import CORNERS, Mark
    from visavis.compare.html.screens import Label, Outline, Screen

    box, limits = (50.0, 80.0, 90.0, 95.0), (400, 200)
    outlines = [
        Outline(Mark(name, f"series-{i}", "●", "", CORNERS[i]), "x", box, None, limits)
        for i, name in enumerate(("transformers", "vllm", "sglang", "native"))
    ]
    outlines.append(Outline(None, "true", box, None, limits))
    screen = Screen("a", "where?", 1, 400, 200, "", 1.0, outlines)
    labels = screen.labels(10.0, short=False)
    assert [label.text for label in labels] == ["● transformers", "● vllm", "● sglang", "● native", "true"]
    for i, one in enumerate(labels):
        assert not any(one.overlaps(other, 10.0) for other in labels[i + 1 :])
    # the first stands over its box, the second, for whom 40 pixels leave no room, a line farther up
    assert labels[0].y == 80 - 3.5
    assert labels[1].y == pytest.approx(labels[0].y - 11.5)
    assert [label.text for label in screen.labels(10.0, short=True)][:2] == ["●", "●"]
    assert Label("ab", "", 0, 0, "start").overlaps(Label("ab", "", 12, 0, "start"), 10.0)  # 2 · 0.62 · 10 wide
    assert not Label("ab", "", 0, 0, "start").overlaps(Label("ab", "", 12.5, 0, "start"), 10.0)
