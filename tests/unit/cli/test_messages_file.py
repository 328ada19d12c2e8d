"""Every form of a messages file, and what is wrong with broken ones."""

from __future__ import annotations

import json
import sys
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


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b" \n", "is empty"),
        ('[{"role": "user", "content": "hi"}]'.encode("utf-16"), "not UTF-8"),
        (b'[{"role": "user", "content": "caf\xe9"}]', "not UTF-8 text: .* at byte 33"),
        (b'[{"role": "user", "content": ' + b"9" * 10_000 + b"}]", "not valid JSON: .*4300 digits"),
        (b'[{"role": "user", "content": NaN}]', "NaN is no JSON number"),
        (b'[{"role": "user", "content": "a", "content": "b"}]', "'content' is given twice"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"messages": [], "temperature": 0.5}', "temperature beside messages.* --temperature"),
        (b'{"messages": [], "max_completion_tokens": 5}', "--max-tokens"),
        (b'{"samples": [{"messages": [], "image": "a.png"}]}', r"samples\[0\] has image beside messages"),
    ],
)
@pytest.mark.parametrize("through", ["file", "stdin"])
def test_broken_content_is_one_error_that_names_it(
    content: bytes, said: str, through: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "chat.json").write_bytes(content)
    with open(tmp_path / "chat.json", encoding="utf-8") as file:
        monkeypatch.setattr(sys, "stdin", file)
        with pytest.raises((MessageError, OptionError), match=said) as caught:
            read_messages_file("-" if through == "stdin" else str(tmp_path / "chat.json"))
    assert ("-" if through == "stdin" else "chat.json") in str(caught.value) or "stdin" in str(caught.value)
    assert len(str(caught.value)) < 300
    assert "\n" not in str(caught.value)


def test_stdin_may_begin_with_a_byte_order_mark_and_is_utf8_whatever_the_locale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in").write_bytes(b"\xef\xbb\xbf" + json.dumps("é 图", ensure_ascii=False).join(["[[", "]]"]).encode())
    with open(tmp_path / "in", encoding="latin-1") as file:
        monkeypatch.setattr(sys, "stdin", file)
        assert read_messages_file("-")[0].messages == ["é 图"]


def test_json_lines_may_hold_unicode_line_separators(tmp_path: Path) -> None:
    line = json.dumps([{"role": "user", "content": "a\u2028b\x85c"}], ensure_ascii=False)
    (only,) = read_messages_file(write(tmp_path, line, "chats.jsonl"))
    assert only.messages[0]["content"] == "a\u2028b\x85c"


def test_notes_beside_messages_are_nobodys_business(tmp_path: Path) -> None:
    assert read_messages_file(write(tmp_path, [{"messages": CHAT, "task": "ground", "temperature": None}]))


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
