"""Results are files that can be read again, or say why not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.bench.conftest import Rig, file_of
from visavis.bench.result import SCHEMA, from_json, to_json
from visavis.bench.store import load, save
from visavis.errors import InputError, OptionError


def test_a_file_read_again_gives_the_same_rows(rig: Rig, tmp_path: Path) -> None:
    rig.add("a", chunk=2)
    rig.add("b", fail_every=7)
    bench = rig.run(cells=(*rig.cells(), *rig.cells("load")))
    path = tmp_path / "r.json"
    save(bench, path)
    assert [p.name for p in tmp_path.iterdir()] == ["r.json"]
    assert json.loads(path.read_text())["schema"] == SCHEMA
    again = load(path)
    assert to_json(again) == to_json(bench)
    for mine, theirs in zip(file_of(bench).rows, file_of(again).rows, strict=True):
        assert theirs.void == mine.void
        assert theirs.cell == mine.cell
        for name, figure in mine.figures.items():
            assert theirs.figures[name].median == pytest.approx(figure.median, abs=1e-5, rel=1e-4)


def test_only_the_raw_observations_are_kept(rig: Rig) -> None:
    rig.add("a")
    plain = to_json(rig.run())
    request = plain["runs"][0]["rounds"][-1]["requests"][0]
    assert len(request["token_times_s"]) == 16
    assert {"client_first_s", "client_total_s", "queue_s", "prepare_s"} <= set(request)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("{", "not valid JSON"),
        ("[]", "is not a bench result"),
        ('{"schema": "visavis.compare/1"}', "is not a bench result"),
        ('{"schema": "visavis.bench/99"}', "this visavis reads visavis.bench/1"),
        ('{"schema": "visavis.bench/1"}', "damaged"),
    ],
)
def test_other_files_are_refused_in_words(tmp_path: Path, content: str, complaint: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(content)
    with pytest.raises(InputError, match=complaint):
        load(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="no such file"):
        load(tmp_path / "none.json")


@pytest.mark.parametrize("broken", ["rounds", "cells", "command"])
def test_damage_is_one_error_not_a_traceback(rig: Rig, broken: str) -> None:
    rig.add("a")
    plain: dict[str, Any] = json.loads(json.dumps(to_json(rig.run())))
    if broken == "rounds":
        plain["runs"][0]["rounds"][0]["requests"] = [{"nonsense": 1}]
    else:
        plain[broken] = 3
    with pytest.raises(InputError, match=r"x\.json is a damaged bench result"):
        from_json(plain, "x.json")


def test_fields_of_a_newer_writer_are_left_out(rig: Rig) -> None:
    rig.add("a")
    plain = to_json(rig.run())
    plain["weather"] = "fine"
    plain["engines"][0]["mood"] = 1
    assert to_json(from_json(plain, "x")) == to_json(from_json(to_json(from_json(plain, "x")), "y"))
