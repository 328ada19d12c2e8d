"""Shapes and layouts real checkpoints come in: old configs, shards, ties, bf16 files, odd head counts; bf16 runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.engines.native.drive import forced_logits, greedy, make_engine
from tests.engines.native.reference import Answer, Part, Reference, Tally
from tests.reference.tiny_models import FAMILIES, VL_FAMILIES

pytestmark = pytest.mark.engines

VARIANTS: list[dict[str, Any]] = [
    {"layout": "old", "shards": 3},
    {"tied": True, "dtype": torch.bfloat16},
    {"heads": 6, "kv_heads": 1, "hidden": 96, "head_dim": 16, "layers": 3, "seed": 4},
    {"heads": 2, "kv_heads": 2, "hidden": 128, "head_dim": 64, "attention_bias": True, "seed": 5},
]


def parts_for(family: str) -> list[list[Part]]:
    text: list[list[Part]] = [[7], [50]]
    return [*text, [4, ("image", (1, 10, 6)), 3, ("video", (2, 4, 8)), 5]] if family in VL_FAMILIES else text


@pytest.mark.parametrize("variant", VARIANTS, ids=["old-sharded", "tied-bf16-file", "one-kv-head", "big-heads-biased"])
@pytest.mark.parametrize("family", FAMILIES)
def test_checkpoint_variants_answer_as_transformers(
    family: str, variant: dict[str, Any], reference: Callable[..., Reference], count: Callable[..., None]
) -> None:
    ref = reference(family, **variant)
    prompts = [ref.prompt(p, seed=i) for i, p in enumerate(parts_for(family))]
    answers = [ref.answer(p, 64) for p in prompts]
    engine = make_engine(ref)
    tally = Tally()
    for i, (mine, answer) in enumerate(zip(greedy(engine, prompts), answers, strict=True)):
        tally.check(f"prompt {i}", mine, answer)
    count(tally)
    for mine, answer in zip(forced_logits(engine, prompts, answers), answers, strict=True):
        assert (mine - answer.logits).abs().max() <= 1e-4


@pytest.mark.parametrize("family", FAMILIES)
def test_bfloat16_errs_no_more_than_transformers_in_bfloat16(family: str, reference: Callable[..., Reference]) -> None:
    """Root mean square of the logits' distance to float32, along the float32 answers."""
    ref = reference(family, seed=0)
    prompts = [ref.prompt(p, seed=i) for i, p in enumerate(parts_for(family))]
    answers = [ref.answer(p, 24) for p in prompts]
    ours = forced_logits(make_engine(ref, dtype="bfloat16"), prompts, answers)
    theirs = bfloat16_logits(ref, prompts, answers)

    def error(logits: list[torch.Tensor]) -> float:
        gaps = torch.cat([(a - b.logits).flatten() for a, b in zip(logits, answers, strict=True)])
        return gaps.square().mean().sqrt().item()

    assert 0 < error(ours) <= 1.1 * error(theirs)


def bfloat16_logits(ref: Reference, prompts: list[Any], answers: list[Answer]) -> list[torch.Tensor]:
    """transformers in bfloat16 over prompt and answer in one pass."""
    model = type(ref.model).from_pretrained(ref.folder, dtype=torch.bfloat16).eval()
    found = []
    for prompt, answer in zip(prompts, answers, strict=True):
        inputs = ref.inputs(prompt)
        tail = torch.tensor([answer.token_ids[:-1]])
        inputs["input_ids"] = torch.cat([inputs["input_ids"], tail], 1)
        inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
        if "mm_token_type_ids" in inputs:
            inputs["mm_token_type_ids"] = torch.cat([inputs["mm_token_type_ids"], torch.zeros_like(tail)], 1)
        if hasattr(model.model, "rope_deltas"):
            model.model.rope_deltas = None
        with torch.inference_mode():
            logits = model(**inputs).logits[0].float()
        found.append(logits[len(prompt) - 1 :])
    return found
