"""Every form of a messages file, and what is wrong with broken ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from visavis.cli.inputs import read_messages_file, samples_file
from visavis.errors import MessageError, OptionError

CHAT = [{"role": "user", "content": "hi"}]


def write(tmp_path: Path, content: Any, name: str = "chat.json") -> str:
    (tmp_path / name).write_text(content if isinstance(content, str) else json.dumps(content), "utf-8")
    return str(tmp_path / name)


@pytest.mark.parametrize(
    ("content", "ids"),
    [
        (CHAT, ["1"]),
        ({"messages": CHAT}, ["1"]),
        ([CHAT, CHAT], ["1", "2"]),
        ([{"messages": CHAT}, {"id": "second", "messages": CHAT}], ["1", "second"]),
        ({"samples": [{"id": "a", "messages": CHAT}, {"id": "b", "messages": CHAT}]}, ["a", "b"]),
    ],
)
def test_every_form(tmp_path: Path, content: Any, ids: list[str]) -> None:
    cases = read_messages_file(write(tmp_path, content))
    assert [case.id for case in cases] == ids
    assert all(case.messages == CHAT and case.base_dir == str(tmp_path.resolve()) for case in cases)


def test_json_lines(tmp_path: Path) -> None:
    lines = "\n".join(json.dumps({"messages": CHAT}) for _ in range(3)) + "\n\n"
    assert len(read_messages_file(write(tmp_path, lines, "chats.jsonl"))) == 3


def test_samples_carry_the_true_answer(tmp_path: Path) -> None:
    sample = {"id": "a", "messages": CHAT, "expected": {"text": "x", "box": [1, 2, 3, 4]}, "task": "ground"}
    (case,) = read_messages_file(write(tmp_path, {"samples": [sample]}))
    assert case.expected == {"text": "x", "box": (1.0, 2.0, 3.0, 4.0)}


def test_bundled_samples_are_twelve_with_true_answers() -> None:
    cases = read_messages_file(samples_file())
    assert len(cases) == 12
    assert all(case.expected and case.expected["text"] for case in cases)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "chat.json is not valid JSON"),
        ("[]", "holds no conversation"),
        ("5", "a list of messages"),
        ({"chat": CHAT}, "neither messages nor samples"),
        ({"samples": {}}, "a list is needed"),
        ([CHAT, "hi"], "entry 1"),
        ([{"messages": CHAT}, {"msgs": CHAT}], "entry 1"),
        ({"samples": [{"id": "a"}]}, r"samples\[0\]"),
        ({"samples": [{"id": "a", "messages": CHAT}, {"id": "a", "messages": CHAT}]}, "two samples have the id 'a'"),
        ({"samples": [{"messages": CHAT, "expected": {"box": [1, 2, 3]}}]}, r"samples\[0\]: expected.box"),
        ({"samples": [{"messages": CHAT, "expected": {"text": 5}}]}, r"samples\[0\]: expected.text"),
    ],
)
def test_broken_files_are_named_with_the_place(tmp_path: Path, content: Any, said: str) -> None:
    with pytest.raises(MessageError, match=said):
        read_messages_file(write(tmp_path, content))


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="no such file"):
        read_messages_file(str(tmp_path / "none.json"))


def test_stdin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import io
    import sys

    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(CHAT)))
    (case,) = read_messages_file("-")
    assert (case.messages, case.base_dir) == (CHAT, None)
