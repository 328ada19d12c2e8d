"""The facts recorded from transformers by `tests/reference/record_goldens.py`; needs no transformers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.reference import goldens
from tests.reference.cases import QWEN3_CASES, TEXT_CASES, VISION_CASES
from visavis.chat.types import Conversation
from visavis.families import Family, load_family

RECORDED = goldens.load()["families"]
TEXT = [(name, case) for name in ("qwen2", "qwen3", "llama") for case in RECORDED[name]]
VISION = [(name, case) for name in ("qwen2_vl", "qwen2_5_vl", "qwen3_vl") for case in RECORDED[name]]


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Any:
    loaded: dict[str, Family] = {}

    def get(name: str) -> Family:
        if name not in loaded:
            loaded[name] = load_family(str(goldens.bare_folder(name, tmp_path_factory.mktemp(name))))
        return loaded[name]

    return get


def test_every_case_is_recorded() -> None:
    assert {case for _, case in TEXT} == set(TEXT_CASES)
    assert {case for _, case in VISION} == set(VISION_CASES)


@pytest.mark.parametrize(("name", "case"), TEXT)
def test_text_prompts_are_as_recorded(name: str, case: str, bare: Any) -> None:
    check_text(bare(name), TEXT_CASES[case], RECORDED[name][case])


def check_text(family: Family, conversation: Conversation, wanted: dict[str, Any]) -> None:
    prompt = family.prepare(conversation)
    assert prompt.text == wanted["text"]
    assert goldens.runs(prompt.token_ids) == wanted["ids"]


@pytest.mark.parametrize(("name", "case"), VISION)
def test_vision_prompts_are_as_recorded(name: str, case: str, bare: Any) -> None:
    wanted = RECORDED[name][case]
    prompt = bare(name).prepare(VISION_CASES[case])
    assert prompt.text == wanted["text"]
    assert goldens.runs(prompt.token_ids) == wanted["ids"]
    assert goldens.runs(prompt.mm_token_type_ids) == wanted["types"]
    assert goldens.digest(prompt.position_ids) == wanted["positions"]
    assert prompt.rope_delta == wanted["rope_delta"]
    given = prompt.for_hf()
    for key in ("image_grid_thw", "video_grid_thw", "second_per_grid_ts"):
        assert (given[key].tolist() if key in given else None) == wanted.get(key)
    if "pixel_values" in wanted:
        assert goldens.digest(given["pixel_values"].numpy()) == wanted["pixel_values"]


@pytest.mark.skipif(
    "VISAVIS_QWEN3_TOKENIZER" not in os.environ,
    reason="VISAVIS_QWEN3_TOKENIZER names no folder with Qwen3's real tokenizer.json and tokenizer_config.json",
)
@pytest.mark.parametrize("case", [*TEXT_CASES, *QWEN3_CASES])
def test_the_real_qwen3_template_and_tokenizer_are_as_recorded(case: str) -> None:
    from visavis.families.folder import ModelFolder
    from visavis.families.template import ChatTemplate
    from visavis.families.tokenizer import HFTokenizer

    wanted = goldens.load(goldens.QWEN3_FILE)["families"][case]
    folder = ModelFolder(Path(os.environ["VISAVIS_QWEN3_TOKENIZER"]), "Qwen3")
    tokenizer = HFTokenizer(folder)
    rendered = ChatTemplate(folder, tokenizer, multimodal=False).render({**TEXT_CASES, **QWEN3_CASES}[case])
    assert rendered.text == wanted["text"]
    assert goldens.runs(tokenizer.encode_pieces(rendered.pieces)) == wanted["ids"]
