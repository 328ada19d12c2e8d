"""Checkpoints: names of both generations, shards, dtypes, ties, and errors that name the tensor."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from visavis.engine.loader import canonical_name, load_weights
from visavis.errors import ModelError


def destinations() -> dict[str, torch.Tensor]:
    return {"embed_tokens.weight": torch.zeros(4, 3), "norm.weight": torch.zeros(3)}


STORED = {"model.embed_tokens.weight": torch.arange(12.0).view(4, 3), "model.norm.weight": torch.ones(3)}


@pytest.mark.parametrize(
    ("stored", "canonical"),
    [
        ("model.layers.0.mlp.up_proj.weight", "layers.0.mlp.up_proj.weight"),
        ("model.language_model.layers.0.mlp.up_proj.weight", "layers.0.mlp.up_proj.weight"),
        ("language_model.model.layers.0.mlp.up_proj.weight", "layers.0.mlp.up_proj.weight"),
        ("lm_head.weight", "lm_head.weight"),
        ("language_model.lm_head.weight", "lm_head.weight"),
        ("visual.merger.ln_q.weight", "visual.merger.ln_q.weight"),
        ("model.visual.merger.ln_q.weight", "visual.merger.ln_q.weight"),
        ("model.layers.3.self_attn.rotary_emb.inv_freq", None),
    ],
)
def test_both_generations_of_names_are_one(stored: str, canonical: str | None) -> None:
    assert canonical_name(stored) == canonical


def test_values_are_converted_into_the_destination(tmp_path: Path) -> None:
    save_file({k: v.to(torch.bfloat16) for k, v in STORED.items()}, tmp_path / "model.safetensors")
    places = destinations()
    assert load_weights(tmp_path, places, tied=False) is None
    assert places["embed_tokens.weight"].dtype == torch.float32
    assert torch.equal(places["embed_tokens.weight"], STORED["model.embed_tokens.weight"])


def test_shards_are_found_through_the_index(tmp_path: Path) -> None:
    names = list(STORED)
    for i, name in enumerate(names):
        save_file({name: STORED[name]}, tmp_path / f"part-{i}.safetensors")
    index = {"weight_map": {name: f"part-{i}.safetensors" for i, name in enumerate(names)}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    places = destinations()
    load_weights(tmp_path, places, tied=False)
    assert torch.equal(places["norm.weight"], torch.ones(3))
    (tmp_path / "part-1.safetensors").unlink()
    with pytest.raises(ModelError, match=r"lacks 'part-1.safetensors'"):
        load_weights(tmp_path, places, tied=False)


def test_missing_and_unexpected_tensors_are_named(tmp_path: Path) -> None:
    save_file({"model.norm.weight": torch.ones(3)}, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=r"lacks embed_tokens.weight"):
        load_weights(tmp_path, destinations(), tied=False)
    save_file({**STORED, "model.extra.weight": torch.ones(1)}, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=r"unexpected model.extra.weight"):
        load_weights(tmp_path, destinations(), tied=False)


def test_a_wrong_shape_is_named_with_both_shapes(tmp_path: Path) -> None:
    save_file({**STORED, "model.norm.weight": torch.ones(5)}, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=r"model.norm.weight has shape \(5,\).*\(3,\)"):
        load_weights(tmp_path, destinations(), tied=False)


def test_a_tied_head_that_is_stored_counts_only_when_it_differs(tmp_path: Path) -> None:
    """transformers unties such a model, with a warning: the checkpoint is right."""
    embedding = STORED["model.embed_tokens.weight"]
    save_file({**STORED, "lm_head.weight": embedding.clone()}, tmp_path / "model.safetensors")
    assert load_weights(tmp_path, destinations(), tied=True) is None
    save_file({**STORED, "lm_head.weight": embedding + 1}, tmp_path / "model.safetensors")
    head = load_weights(tmp_path, destinations(), tied=True)
    assert head is not None
    assert torch.equal(head, embedding + 1)


def test_broken_pickled_and_absent_files_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="neither"):
        load_weights(tmp_path, destinations(), tied=False)
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(ModelError, match="pickled"):
        load_weights(tmp_path, destinations(), tied=False)
    (tmp_path / "model.safetensors").write_bytes(b"not a checkpoint at all")
    with pytest.raises(ModelError, match=r"model.safetensors .* cannot be read"):
        load_weights(tmp_path, destinations(), tied=False)
