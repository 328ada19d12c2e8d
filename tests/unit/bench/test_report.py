"""The forms of a report: HTML, CSV, JSON, terminal."""

from __future__ import annotations

import csv
import io
import json
import re

import pytest
from rich.console import Console

from tests.unit.bench.conftest import Rig
from visavis.bench.csv_file import to_csv
from visavis.bench.document import as_dict
from visavis.bench.figures import DEFINITIONS
from visavis.bench.html.page import to_html
from visavis.bench.report import Report, make_report
from visavis.bench.table import print_report


@pytest.fixture
def report(rig: Rig) -> Report:
    rig.add("a")
    rig.add("<i>x</i>", per_token_s=0.01)
    rig.add("failing", fail_every=10)
    cells = (*rig.cells(), *rig.cells("throughput", concurrency=(1, 2, 4)), *rig.cells("load"))
    bench = rig.run(rig.plan(ttft_limit=0.5), cells)
    return make_report([("a.json", bench)], ("old.json", bench))


def test_html_is_one_file_that_fetches_nothing_and_runs_nothing(report: Report) -> None:
    html = to_html(report)
    assert "<script" not in html
    assert "<i>" not in html
    assert "&lt;i&gt;x&lt;/i&gt;" in html
    assert not re.search(r'(src|href)="', html)
    assert "url(" not in html
    assert html.count("<svg") > 5
    assert "prefers-color-scheme: dark" in html
    assert 'name="viewport"' in html


def test_a_start_takes_as_long_on_the_page_as_in_the_terminal(rig: Rig) -> None:
    rig.add("a")
    bench = rig.run()
    bench.engines[0].sessions[:] = [{"load": 2.0, "import": 0.57, "in all": 2.62}]
    report = make_report([("a.json", bench)])
    html = to_html(report)
    assert re.search(r"in all +2\.62 s", printed(report))
    assert "<tr><th>in all</th><td>2.62 s</td></tr>" in html
    assert "<tr><th>the rest</th><td>50.0 ms</td></tr>" in html
    chart = html[html.index("phases of the start") :].split("</svg>")[0]
    assert ">2.62 s</text>" in chart
    assert "2.57 s" not in html


def test_html_says_what_is_void_and_why(report: Report) -> None:
    html = to_html(report)
    assert "out of luck" in html
    assert "void" in html
    for name in DEFINITIONS:
        assert f"<th>{name}</th>" in html


def printed(report: Report) -> str:
    out = io.StringIO()
    print_report(Console(file=out, width=120, soft_wrap=True), report)
    return out.getvalue()


def test_what_the_figures_mean_is_said_once_at_the_end_for_all_files(report: Report, rig: Rig) -> None:
    (bench,) = (file.bench for file in report.files)
    bench.notes.append("caches are off")
    text = printed(make_report([("a.json", bench), ("b.json", bench)]))
    for name in ("TTFT", "TPOT", "ITL", "E2E", "tokens/s", "goodput", "client", "spread"):
        assert text.count(f"\n{name}: ") == 1
    last = text.index("\nTTFT: ")
    assert all(text.rindex(word) < last for word in ("throughput: all requests at once", "note  "))


def test_what_no_table_shows_is_not_explained(rig: Rig) -> None:
    rig.add("a")
    text = printed(make_report([("a.json", rig.run(cells=rig.cells("throughput", concurrency=(1, 2, 4))))]))
    assert "\nTTFT: " in text
    for name in ("ITL", "goodput", "client", "p50, p90, p99"):
        assert f"\n{name}: " not in text


def test_charts_can_be_heard(report: Report) -> None:
    descriptions = re.findall(r"<desc>(.*?)</desc>", to_html(report))
    assert any("a 200 ms" in text for text in descriptions)
    assert any(text.startswith("requests at once: a: 32.0 at 1, 64.0 at 2, 128 at 4") for text in descriptions)


def test_csv_has_a_line_per_figure_and_one_for_a_void_row(report: Report) -> None:
    lines = list(csv.DictReader(io.StringIO(to_csv(report))))
    (ttft,) = [r for r in lines if (r["engine"], r["workload"], r["figure"]) == ("a", "latency", "ttft")]
    assert float(ttft["p50"]) == pytest.approx(0.2)
    assert (ttft["unit"], ttft["output_tokens"], ttft["steady"]) == ("s", "16", "True")
    void = [r for r in lines if r["engine"] == "failing" and r["void"]]
    assert void
    assert all(r["figure"] == "" for r in void)


def test_json_document_has_everything_once(report: Report) -> None:
    document = json.loads(json.dumps(as_dict(report), allow_nan=False))
    assert document["schema"] == "visavis.bench-report/1"
    rows = document["files"][0]["rows"]
    assert len(rows) == 5 * 3
    assert {r["verdict"] for change in document["against"][0]["rows"] for r in change["figures"]} == {
        "inside the noise"
    }


def test_the_terminal_fits_80_columns(report: Report) -> None:
    out = io.StringIO()
    print_report(Console(file=out, width=80, soft_wrap=True, emoji=False), report)
    text = out.getvalue()
    tables = [line for line in text.splitlines() if "─" in line]
    assert tables
    assert max(len(line) for line in tables) <= 80
    assert "…" not in "".join(line for line in text.splitlines() if "ms" in line)
    assert "void" in text
    assert "TTFT: time to first token" in text
