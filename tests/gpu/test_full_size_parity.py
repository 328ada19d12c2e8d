"""The script that compares full-size models with transformers, on tiny ones: it writes, loads, answers and judges."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from benchmarks.gpu import parity
from benchmarks.gpu.parity import Answer, Transformers, near_tie
from benchmarks.gpu.parity_models import FAMILIES, REAL, TINY, make_prompt, write_checkpoint
from tests.gpu.conftest import ON_GPU
from visavis.engine import NativeEngine
from visavis.engine.model_config import ModelConfig
from visavis.prompt import Prompt

pytestmark = pytest.mark.engines


@pytest.mark.parametrize("family", FAMILIES)
def test_tiny_models_keep_the_law(family: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parity.main(tmp_path, [family], TINY)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    rows = [f"parity-{family}-screen", f"parity-{family}-two-pictures", None]
    assert [line.get("row") for line in lines if not line.get("row", "").endswith("-torch")] == rows
    for line in lines[:2]:
        assert line["kept"] or ON_GPU, line  # there both round alike, and so few dimensions leave the ratio to chance
        assert line["error_ratio"] < 2
        assert line["patches_equal"]
        assert 0 < line["error"] < 0.05
        assert 0 < line["transformers_error"] < 0.05
        assert 0 < line["vision_error"] < 0.05
        assert 2 < line["logit_spread"] < 4
        assert {len(tokens) for tokens in line["tokens"].values()} == {parity.NEW}
    assert "seconds" in lines[-1]
    assert not list(tmp_path.iterdir())


def test_what_goes_wrong_is_told_and_plain_torch_is_tried(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = parity.answer_of

    def short_of_its_head(engine: NativeEngine, prompt: Prompt, led_along: Sequence[int]) -> Answer:
        if len(prompt) > 100:
            raise RuntimeError("the logits are not finite")
        found = real(engine, prompt, led_along)
        return Answer(found.token_ids, found.logits * 0.9, found.visual)

    monkeypatch.setattr(parity, "answer_of", short_of_its_head)
    parity.main(tmp_path, ["qwen2_vl"], TINY)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    names = ["parity-qwen2_vl-screen", "parity-qwen2_vl-two-pictures"]
    assert [line["row"] for line in lines[:-1]] == [*names, *(f"{name}-torch" for name in names)]
    for broken, failed in (lines[:2], lines[2:4]):
        assert not broken["kept"]
        assert 0.09 < broken["error"] < 0.12
        assert "not finite" in failed["failed"]
    assert lines[2]["kernels"] == "torch"


@pytest.mark.parametrize("family", FAMILIES)
def test_the_widened_model_is_the_one_loaded_in_float32(family: str, tmp_path: Path) -> None:
    from transformers import AutoModelForImageTextToText

    write_checkpoint(tmp_path, family, TINY[family])
    prompt = make_prompt(family, TINY[family], [3, (4, 6), 5], 0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    widened = Transformers(tmp_path, device)
    widened.widen()
    loaded = AutoModelForImageTextToText.from_pretrained(tmp_path, dtype=torch.float32).to(device)
    state = loaded.state_dict()
    assert all(torch.equal(tensor, state[name]) for name, tensor in widened.model.state_dict().items())
    buffers = dict(loaded.named_buffers())
    assert all(torch.equal(tensor, buffers[name]) for name, tensor in widened.model.named_buffers())
    answer = widened.answer(prompt)
    widened.model = loaded.eval()
    assert torch.equal(widened.answer(prompt).logits, answer.logits)


def test_dimensions_are_those_of_the_published_models() -> None:
    """Weights of decoder, head and embedding as the models' pages count them (7.6 and 8.2 billion)."""
    for family, dimensions in REAL.items():
        text, vision = dimensions.text, dimensions.vision
        heads = text["num_attention_heads"] + 2 * text["num_key_value_heads"]
        head_dim = text.get("head_dim", text["hidden_size"] // text["num_attention_heads"])
        layer = text["hidden_size"] * ((heads + text["num_attention_heads"]) * head_dim + 3 * text["intermediate_size"])
        total = text["num_hidden_layers"] * layer + 2 * text["vocab_size"] * text["hidden_size"]
        assert round(total / 1e9, 1) == {"qwen2_vl": 7.6, "qwen2_5_vl": 7.6, "qwen3_vl": 8.2}[family]
        config = {
            "architectures": [FAMILIES[family].architecture], **text, **dimensions.ids, "vision_config": vision,
        }  # fmt: skip
        model = ModelConfig.from_dict(config)
        assert model.vision is not None
        assert model.vision.head_dim == {"qwen2_vl": 80, "qwen2_5_vl": 80, "qwen3_vl": 72}[family]
        assert model.vision.out_hidden_size == model.hidden_size
        visual = dimensions.screen[0] * dimensions.screen[1]
        assert len(make_prompt(family, dimensions, [1, dimensions.screen, 2], 0)) == visual + 5


def test_a_first_difference_is_a_near_tie_or_not() -> None:
    best = torch.tensor([[9.0, 8.6, 0, 0, 0, -5, -5], [9.0, 0, 8.6, 0, 0, 0, 0]])
    theirs = Answer([0, 0], best, None)
    assert near_tie(Answer([0, 0], best, None), theirs) is None
    swapped = best[:, [1, 0, 2, 3, 4, 5, 6]]
    assert near_tie(Answer([1, 0], swapped, None), theirs) is True
    far = best.clone()
    far[0, 1] = 20.0
    assert near_tie(Answer([1, 0], far, None), theirs) is False
