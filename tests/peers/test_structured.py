"""Structured output on engines that have their own libraries for it: the bundled model, at a high temperature."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from visavis.backends.worker import WorkerModel
from visavis.errors import OptionError
from visavis.sampling import SamplingParams

pytestmark = pytest.mark.peers

Start = Callable[..., WorkerModel]
HELLO = [{"role": "user", "content": "hello"}]
SCHEMA = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["button", "link"]},
        "box": {"type": "array", "items": {"enum": [1, 2]}, "minItems": 2, "maxItems": 2},
    },
    "required": ["kind", "box"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_answers_match_what_was_asked_for(start: Start, engine: str) -> None:
    model = start(engine, None)
    prompt = model.prepare(HELLO)

    def ask(**values: Any) -> Any:
        params = SamplingParams.from_mapping({"max_tokens": 120, "temperature": 1.5, "n": 2, **values})
        return model.complete([prompt], params)[0]

    def texts(got: Any) -> list[str]:
        assert got.error is None
        answers = [got, *got.alternatives]
        assert [a.finish_reason for a in answers] == ["stop", "stop"]
        assert [a.valid for a in answers] == [True, True]
        return [a.text for a in answers]

    for text in texts(ask(json_schema=SCHEMA)):
        got = json.loads(text)
        assert got["kind"] in ("button", "link")
        assert len(got["box"]) == 2
    assert all(re.fullmatch(r"\d{3}-[a-c]{2}", text) for text in texts(ask(regex=r"\d{3}-[a-c]{2}")))
    assert set(texts(ask(choice=["yes", "no (never)"]))) <= {"yes", "no (never)"}
    with pytest.raises(OptionError, match=rf"{engine} cannot honour structured .grammar."):
        ask(grammar="start: /a/")
    assert ask().valid is None
