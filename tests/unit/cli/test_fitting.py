"""A start that fails for lack of memory ends with the flags that would fit, by the planner."""

from __future__ import annotations

import pytest

from tests.unit.cli.conftest import Cli
from visavis.backends.options import EngineOptions
from visavis.cli.fitting import saying_what_fits
from visavis.errors import BackendError, ModelError, OptionError, VisavisError


def told(error: VisavisError, backend: str = "native", model: str | None = None) -> str:
    with (
        pytest.raises(type(error)) as raised,
        saying_what_fits(
            model, backend, EngineOptions(device="cpu"), images=[], text_tokens=100, max_tokens=50, concurrency=3
        ),
    ):
        raise error
    return str(raised.value)


def test_the_values_that_fit_stand_behind_the_command_that_tells_more() -> None:
    said = told(BackendError("no memory; `visavis plan --backends native` says what fits here, and which … to give"))
    # 100 + 50 tokens, rounded up to 256s; 3 requests of 10 blocks of 16 tokens of 5 KiB = 2.3 MiB, in whole MiB
    assert "says what fits here (--max-model-len 256 --max-num-batched-tokens 2048 --max-num-seqs 3" in said
    assert "--kv-cache 3MiB would fit), and which" in said


def test_natives_own_words_about_its_cache_are_answered_too() -> None:
    said = told(OptionError("the KV cache has no room for one block"))
    assert said.startswith("the KV cache has no room for one block; --max-model-len 256 ")
    assert said.endswith("--kv-cache 3MiB would fit")


@pytest.mark.parametrize(
    ("error", "backend", "model"),
    [
        (BackendError("it fell over"), "native", None),
        (ModelError("config.json has no visavis plan"), "native", None),
        (BackendError("`visavis plan` says what fits here"), "openai", None),  # planned by nobody here
        (BackendError("`visavis plan` says what fits here"), "native", "no/such/folder"),
    ],
)
def test_where_nothing_can_be_planned_the_error_stays(error: VisavisError, backend: str, model: str | None) -> None:
    assert told(error, backend, model) == str(error)


@pytest.mark.engines
def test_native_that_cannot_have_its_cache_says_what_would_fit(cli: Cli) -> None:
    done = cli("ask", "hi", "--kv-cache", "1KiB", "--device", "cpu", "--max-tokens", "20")
    assert done.code == 2
    assert "no room for one block" in done.complaint
    assert "--max-model-len 256" in done.complaint
    assert done.complaint.endswith("would fit")
    fitting = done.complaint.split("raise the budget; ")[1].removesuffix(" would fit").split()
    assert cli("ask", "hi", "--device", "cpu", "--max-tokens", "2", *fitting).code == 0
