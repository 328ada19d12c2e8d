"""What an answer must match: how it may be asked for, what makes no sense, and what a whole text is worth."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from visavis.errors import MissingExtraError, OptionError
from visavis.sampling import ResolvedSampling, SamplingParams, StructuredOutput, grammar, resolve

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
PERSON_TEXT = json.dumps(PERSON, separators=(",", ":"))


def asked(**values: Any) -> StructuredOutput | None:
    return SamplingParams.from_mapping(values).structured


# ---- spellings -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"structured": {"json_schema": PERSON}}, ("json_schema", PERSON_TEXT)),
        ({"structured": {"json_schema": json.dumps(PERSON, indent=3)}}, ("json_schema", PERSON_TEXT)),
        ({"structured": {"json": PERSON, "regex": None}}, ("json_schema", PERSON_TEXT)),
        ({"structured_outputs": {"regex": "a+"}}, ("regex", "a+")),
        ({"structured": {"choice": ["a", "b", "a"]}}, ("choice", ("a", "b"))),
        ({"structured": {"grammar": "start: /a/"}}, ("grammar", "start: /a/")),
        ({"json_schema": PERSON}, ("json_schema", PERSON_TEXT)),
        ({"guided_json": PERSON}, ("json_schema", PERSON_TEXT)),
        ({"guided_choice": ("x",)}, ("choice", ("x",))),
        ({"regex": "é"}, ("regex", "é")),
        ({"response_format": {"type": "json_object"}}, ("json_schema", '{"type":"object"}')),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "p", "schema": PERSON, "strict": True},
                }
            },
            ("json_schema", PERSON_TEXT),
        ),
        ({"response_format": {"type": "text"}}, None),
        ({"regex": None}, None),
        ({"regex": "a+", "structured": {"regex": "a+"}}, ("regex", "a+")),
    ],
)
def test_every_spelling_becomes_one_kind_and_its_value(given: dict[str, Any], expected: Any) -> None:
    assert asked(**given) == expected


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"structured": {}}, "exactly one of"),
        ({"structured": {"regex": "a", "choice": ["b"]}}, "exactly one of"),
        ({"structured": {"xml": "a"}}, "exactly one of"),
        ({"structured": "a+"}, "a mapping with one of"),
        ({"regex": ""}, "regex needs a text"),
        ({"regex": 5}, "regex needs a text"),
        ({"choice": []}, "one text or more"),
        ({"choice": ["a", ""]}, "none of them empty"),
        ({"choice": "abc"}, "a list of texts"),
        ({"choice": ["\ud800"]}, "half of a character"),
        ({"json_schema": "{"}, "no JSON"),
        ({"json_schema": [1]}, "must be a JSON object"),
        ({"response_format": {"type": "xml"}}, "is not text, json_object or json_schema"),
        ({"response_format": {"type": "json_schema"}}, "has no schema"),
    ],
)
def test_what_has_no_sense_is_refused_in_words(given: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError, match=f"structured .* is not valid: .*{said}"):
        asked(**given)


def test_two_that_disagree_are_refused_and_slips_are_named() -> None:
    with pytest.raises(OptionError, match="are one option and disagree"):
        asked(regex="a", choice=["a"])
    with pytest.raises(OptionError, match="did you mean json_schema"):
        asked(json_shema=PERSON)


def test_it_is_resolved_with_its_origin_and_can_be_written_as_json() -> None:
    params = SamplingParams.from_mapping({"choice": ["a", "b"]})
    got = resolve(params, prompt_tokens=1, max_model_len=10)
    assert json.loads(json.dumps(got.as_dict()))["settings"]["structured"] == {
        "value": ["choice", ["a", "b"]],
        "origin": "request",
    }
    assert ResolvedSampling(max_tokens=1).structured is None


# ---- compiled --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"json_schema": {"type": "objekt"}}, "json_schema .* cannot be used: Invalid type: objekt"),
        ({"json_schema": {"$ref": "#/nope"}}, "json_schema .* cannot be used: .*nope"),
        ({"json_schema": {"not": {"type": "string"}}}, "json_schema .* cannot be used: .*not"),
        ({"regex": "(a"}, "regex '\\(a' cannot be used: unclosed group"),
        ({"regex": "a(?=b)"}, "regex .* cannot be used: look-around"),
        ({"grammar": "start: foo"}, "grammar .* cannot be used: .*foo"),
        ({"grammar": "hello"}, "grammar 'hello' cannot be used"),
    ],
)
def test_what_cannot_be_compiled_is_refused_with_the_part_at_fault(given: dict[str, Any], said: str) -> None:
    structured = asked(**given)
    assert structured is not None
    with pytest.raises(OptionError, match=said) as caught:
        grammar.check(structured)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "good", "bad"),
    [
        (
            {"json_schema": PERSON},
            ['{"name":"a","age":3}', '{ "name": "a b",\n\t"age": 0 }', '{"name":"\\u00e9","age":12}'],
            ['{"name":"a"}', '{"name":"a","age":-1}', '{"name":"a","age":3', '{"name":"a","age":3,"x":1}', "", "null"],
        ),
        ({"regex": r"\d{2}-[a-z]+"}, ["12-a", "00-xyz"], ["1-a", "12-", "12-a1", " 12-a"]),
        ({"choice": ['say "yes"', "né\n"]}, ['say "yes"', "né\n"], ["yes", "né", ""]),
        ({"grammar": 'start: "<" inner ">"\ninner: /[a-c]+/ | "<" inner ">"'}, ["<ab>", "<<c>>"], ["<>", "<<c>", "ab"]),
    ],
)
def test_a_whole_text_matches_or_not(given: dict[str, Any], good: list[str], bad: list[str]) -> None:
    structured = asked(**given)
    assert structured is not None
    assert [grammar.accepts(structured, text) for text in good] == [True] * len(good)
    assert [grammar.accepts(structured, text) for text in bad] == [False] * len(bad)


@pytest.mark.parametrize("blanks", ["  ", "\n\n", " \n", "\n" + " " * 25, "\t"])
def test_blanks_between_parts_are_bounded(blanks: str) -> None:
    structured = asked(json_schema=PERSON)
    assert structured is not None

    def allowed(between: str) -> bool:
        matcher = grammar.compile_grammar(structured, grammar._byte_tokenizer())
        return grammar._consumes(matcher, '{"name":' + between + '"a","age":3}')

    assert not allowed(blanks)
    assert allowed("")
    assert allowed(" ")
    assert allowed("\n" + " " * 24)


# ---- the library -----------------------------------------------------------------------------------------------------


def test_without_the_library_the_way_to_install_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    grammar.library.cache_clear()
    grammar._byte_tokenizer.cache_clear()
    monkeypatch.setitem(sys.modules, "llguidance", None)
    try:
        with pytest.raises(MissingExtraError, match=r"pip install 'visavis\[structured\]'"):
            grammar.check(StructuredOutput("regex", "a"))
        assert grammar.accepts(StructuredOutput("regex", "a"), "a") is None
        assert grammar.accepts(StructuredOutput("choice", ("a",)), "b") is False
        assert grammar.accepts(StructuredOutput("json_schema", "{}"), "{") is False
    finally:
        grammar.library.cache_clear()
        grammar._byte_tokenizer.cache_clear()


def test_the_library_is_not_imported_before_it_is_needed() -> None:
    code = "import sys, visavis.engine, visavis.sampling.grammar; print('llguidance' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
