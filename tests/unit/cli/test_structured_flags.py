"""Flags for structured output: files and inline, what is refused, and what is said of an answer that does not match."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.cli.conftest import Cli

SCHEMA = '{"type": "integer", "minimum": 1}'


def test_a_schema_comes_from_a_file_or_as_it_is(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "schema.json"
    file.write_text(SCHEMA, encoding="utf-8")
    for given in (str(file), SCHEMA, f"  {SCHEMA}"):
        done = cli.ask("hi", "--json", "--json-schema", given, answer="3")
        kind, schema = done.json["sampling"]["settings"]["structured"]["value"]
        assert (kind, schema) == ("json_schema", SCHEMA.replace(" ", ""))
        assert done.json["valid"] is True


def test_a_grammar_comes_from_a_file_or_as_it_is(cli: Cli, tmp_path: Path) -> None:
    grammar = 'start: "<" /[a-z]+/ ">"'
    file = tmp_path / "angle:brackets.lark"
    file.write_text(grammar, encoding="utf-8")
    for given in (str(file), grammar):
        done = cli.ask("hi", "--json", "--grammar", given, answer="<ab>")
        assert done.json["sampling"]["settings"]["structured"]["value"] == ["grammar", grammar]
        assert done.json["valid"] is True


def test_choices_and_expressions_reach_the_engine(cli: Cli) -> None:
    done = cli.ask("hi", "--json", "--choice", "yes", "--choice", "no", answer="no")
    assert done.json["sampling"]["settings"]["structured"]["value"] == ["choice", ["yes", "no"]]
    assert done.json["valid"] is True
    assert cli.ask("hi", "--json", "--regex", "[0-9]+", answer="12").json["valid"] is True
    assert cli.ask("hi", "--json", answer="12").json["valid"] is None


def test_an_answer_that_does_not_match_is_said_to(cli: Cli) -> None:
    done = cli.ask("hi", "--regex", "[0-9]+", answer="twelve")
    assert (done.code, done.out) == (0, "twelve\n")
    assert "note: the answer does not match what was asked for\n" in done.err
    cut = cli.ask("hi", "--regex", "[0-9]+", "--max-tokens", "1", answer="twelve men")
    assert "does not match what was asked for yet: it was cut off; give more --max-tokens" in cut.err


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--regex", "a", "--choice", "b"], "--regex and --choice: an answer can match one of them; give one"),
        (["--json-schema", "/no/such.json"], "--json-schema '/no/such.json': "),
        (["--grammar", "no-such.lark"], "--grammar 'no-such.lark': "),
        (["--json-schema", '{"type": "objekt"}'], "cannot be used: Invalid type: objekt"),
        (["--json-schema", '{"type": '], "json_schema is no JSON"),
        (["--regex", "("], "structured: regex '(' cannot be used: unclosed group"),
        (["--choice", ""], "none of them empty"),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_line(cli: Cli, flags: list[str], said: str) -> None:
    done = cli.ask("hi", *flags)
    assert done.code == 2
    assert said in done.complaint


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--logit-bias", "999999:1"], "logit_bias 999999 (request) is no token of this model: its ids are 0 to 2047"),
        (["--stop-token-id", "2048"], "stop_token_ids 2048 (request) is no token of this model: its ids are 0 to 2047"),
    ],
)
def test_ids_the_model_does_not_have_are_refused_before_anything_is_loaded(
    cli: Cli, flags: list[str], said: str
) -> None:
    done = cli("ask", "hi", *flags)  # on native: nothing says that it was loaded
    assert done.code == 2
    assert said in done.complaint
    assert "load" not in done.err
