"""Charts say what they show without colour and without eyes."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from visavis.report.charts import Bar, Line, Segment, Stack, bars, lines, marker, stacks


def seconds(value: float) -> str:
    return f"{value:g} s"


def test_bars_are_as_long_as_their_values() -> None:
    svg = bars("speed", [Bar("a", 1.0, 0.5, 2.0, 0), Bar("b", 0.5, 0.5, 0.5, 1)], seconds)
    widths = [float(w) for w in re.findall(r'<rect class="fill" x="0" y="[^"]+" width="([^"]+)"', svg)]
    assert widths == [185.0, 92.5]  # 370 units are the longest whisker's 2 s
    assert "a 1 s (0.5 s to 2 s); b 0.5 s (0.5 s to 0.5 s)" in svg
    assert svg.count('class="whisker"') == 1  # none where there is no spread


def test_lines_need_two_points_and_use_a_logarithmic_axis_for_wide_sweeps() -> None:
    assert lines("t", [Line("a", [(1, 1, 1, 1)], 0)], seconds, x_label="n", x_fmt=str) == ""
    svg = lines("t", [Line("a", [(x, 1, 1, 1) for x in (1, 4, 16)], 0)], seconds, x_label="n", x_fmt=str)
    found = re.search(r'class="line" d="M([^"]+)"', svg)
    assert found is not None
    xs = [float(point.split()[0]) for point in found[1].split("L")]
    assert xs[1] - xs[0] == pytest.approx(xs[2] - xs[1], abs=0.2)


def test_series_differ_in_shape_and_dash_not_only_in_colour() -> None:
    assert len({marker(i, 0, 0) for i in range(8)}) == 8
    svg = lines("t", [Line(str(i), [(1, i, i, i), (2, i, i, i)], i) for i in range(3)], seconds, x_label="n", x_fmt=str)
    assert len(set(re.findall(r'stroke-dasharray="([^"]+)"', svg))) == 2  # the first is solid


def test_parts_carry_the_number_of_their_name() -> None:
    svg = stacks("start", [Stack("a", [Segment("import", 3.0), Segment("load", 1.0)])], ["load", "import"], seconds)
    assert re.findall(r'class="on-fill">(\d)<', svg) == ["2", "1"]


def test_names_cannot_break_out() -> None:
    svg = bars("<t>", [Bar("<a & b>", 1, 1, 1, 0)], seconds)
    ElementTree.fromstring(svg)
    assert "&lt;a &amp; b&gt;" in svg
