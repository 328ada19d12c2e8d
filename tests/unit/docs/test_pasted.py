"""Outputs pasted into the documentation are what the commands say now."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from docs import refresh
from docs.refresh import Pasted, documents, pasted_in
from tests.unit.compare.conftest import Bench, bench, cases, family  # noqa: F401 (fixtures)

if TYPE_CHECKING:
    from collections.abc import Callable

ALL = [pasted for file in documents() for pasted in pasted_in(file)]


def shown(pasted: Pasted) -> str:
    return f"{pasted.file.name}: {' '.join(pasted.line.split()[1:4])}"


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with refresh.workplace() as made:
        yield made


def test_every_output_of_a_command_can_be_made_anew() -> None:
    """A block that begins with `$ visavis` stands under a comment that `docs/refresh.py` reads."""
    loose = [file.name for file in documents() if refresh.UNMARKED.search(file.read_text("utf-8"))]
    assert loose == []
    assert len(ALL) >= 8


@pytest.mark.parametrize("pasted", [p for p in ALL if p.exact], ids=shown)
def test_exact_outputs_are_what_the_command_says_now(pasted: Pasted, folder: Path) -> None:
    """Where it fails: python docs/refresh.py --exact"""
    assert pasted.shown == pasted.line
    assert pasted.output == refresh.run(pasted, folder)


@pytest.mark.parametrize("file", documents(), ids=lambda file: file.name)
def test_bundled_samples_that_pages_name_exist(file: Path) -> None:
    """Where it fails: python docs/refresh.py --exact"""
    text = file.read_text("utf-8")
    assert refresh.with_todays_samples(text) == text


def labels(text: str) -> set[str]:
    """First cells of the table's rows."""
    lines = text.splitlines()
    start = next(i for i, line in enumerate(lines) if line.strip().startswith("──"))
    rows = lines[start + 1 : next((i for i in range(start, len(lines)) if not lines[i].strip()), len(lines))]
    return {row.strip().split("  ")[0] for row in rows if row.strip()}


def test_the_pasted_comparison_has_the_rows_of_today(bench: Bench) -> None:  # noqa: F811
    """Its times are those of a day, its rows are not: python docs/refresh.py docs/commands/compare.md mends it."""
    from rich.console import Console

    from visavis.compare.table import print_result

    pasted = next(p for p in ALL if p.file.name == "compare.md" and p.command == ["visavis", "compare"])
    for name in ("native", "hf"):
        bench.add(name, answers="Settings")
    result = bench.run()
    for b in result.backends:
        b.peak_memory_bytes = 2**30
    out = io.StringIO()
    print_result(Console(file=out, width=112), result)
    today = {label.replace("3 at once", "12 at once") for label in labels(out.getvalue())}
    assert labels(pasted.output) == today


# ---- the script itself -------------------------------------------------------------------------------------------

PAGE = """Text before.

<!-- pasted {{"drop": ["^secret"]{options}}} -->
```
$ {command}
old
```

After, with 99-none.png.
"""


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Refreshes a page with that command; gives the page back."""
    monkeypatch.setattr(refresh, "ROOT", tmp_path)

    def make(command: str, options: str = "", *, exact: bool = False) -> str:
        file = tmp_path / "page.md"
        file.write_text(PAGE.format(command=command, options=options))
        refresh.refresh(file, tmp_path, exact=exact)
        return file.read_text()

    return make


def test_the_output_is_replaced_and_all_else_stays(page: Callable[..., str]) -> None:
    command = "printf 'new\\nsecret 1\\nsecret 2\\nend  \\n'"
    assert page(command) == PAGE.format(command=command, options="").replace("old", "new\n…\nend")


def test_only_some_lines_are_shown_where_that_is_asked_for(page: Callable[..., str]) -> None:
    found = page("printf 'a\\nb\\nc\\nd\\n'", ', "only": [["^b", 2]]')
    assert "…\nb\nc\n…\n```" in found


def test_a_command_over_several_lines_is_one_command(page: Callable[..., str]) -> None:
    assert "\\\n    two\none two\n```" in page("echo one \\\n    two")


def test_what_stands_beside_the_output_is_shown_on_request(page: Callable[..., str]) -> None:
    command = "sh -c 'echo out; echo beside >&2'"
    assert "out\n```" in page(command)
    assert "out\nbeside\n```" in page(command, ', "stderr": true')


def test_with_exact_the_others_are_left_alone(page: Callable[..., str]) -> None:
    assert "\nold\n" in page("echo new", exact=True)
    assert "\nnew\n" in page("echo new", ', "exact": true', exact=True)


def test_what_is_made_by_hand_is_left_alone(page: Callable[..., str], capsys: pytest.CaptureFixture[str]) -> None:
    assert "\nold\n" in page("false", ', "by_hand": "needs two cards"')
    assert "NOT MADE: needs two cards" in capsys.readouterr().out


def test_a_command_that_fails_leaves_the_page_as_it_was(page: Callable[..., str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"page.md: false ended with 1"):
        page("false")
    assert "\nold\n" in (tmp_path / "page.md").read_text()


def test_samples_that_were_renamed_follow(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import json

    parts = [{"type": "image", "image": "01-new.png"}, {"type": "text", "text": 'Where is "x"?'}]
    sample = {"messages": [{"role": "user", "content": parts}]}
    (tmp_path / "samples.json").write_text(json.dumps({"samples": [sample]}))
    (tmp_path / "01-new.png").touch()
    monkeypatch.setattr(refresh, "SAMPLES", tmp_path)
    old = """ask 'In this UI screenshot, what is the position of "y" (with bbox)?' --image a/01-old-name.png"""
    assert refresh.with_todays_samples(old) == """ask 'Where is "x"?' --image a/01-new.png"""


def test_a_screenshot_may_show_some_sections_alone_and_leaves_the_page_as_it_is(tmp_path: Path) -> None:
    page, target, browser = tmp_path / "r.html", tmp_path / "out.png", tmp_path / "browser"
    page.write_text("<html><head></head><body><main></main></body></html>")
    # A browser that keeps what it was given: the last argument's file, and all arguments.
    browser.write_text(f"#!/bin/sh\nfor last; do :; done\ncat ${{last#file://}} > {target}\necho $* >> {target}\n")
    browser.chmod(0o755)
    refresh.screenshot(str(browser), page, target, (390, 1500), ("screens", "tokens"), dark=True)
    seen = target.read_text()
    assert "main > :not([aria-labelledby=screens], [aria-labelledby=tokens]) { display: none }" in seen
    assert "--window-size=390,1500" in seen
    assert "--force-dark-mode" in seen
    assert "display" not in page.read_text()
    refresh.screenshot(str(browser), page, target, (390, 1500))
    assert "display" not in target.read_text()
    assert "--force-dark-mode" not in target.read_text()
