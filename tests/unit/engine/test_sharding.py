"""How a model is divided over ranks, and what is refused before anything is started."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from tests.unit.engine.test_config import QWEN2, QWEN2_VL, TEXT
from visavis.engine import EngineConfig, ModelConfig, loader
from visavis.engine.communicator import columns_of
from visavis.engine.parallel.sharding import config_of_one, shares_of, vision_places
from visavis.engine.quantization.places import Place, Share, taking
from visavis.engine.quantization.scheme import Scheme
from visavis.engine.weight_stream import stream_tensors
from visavis.errors import ModelError, OptionError


def test_columns_of_all_ranks_cover_a_vocabulary_that_does_not_divide() -> None:
    # 10 over 4: 3 each, the last two begin at 6 and at 10 - 3
    assert [columns_of(rank, 4, 10) for rank in range(4)] == [(0, 3), (3, 3), (6, 3), (7, 3)]
    assert [columns_of(rank, 2, 8) for rank in range(2)] == [(0, 4), (4, 4)]


def test_with_more_ranks_than_key_heads_neighbours_have_the_same_one() -> None:
    whole = ModelConfig.from_dict(QWEN2)  # 4 heads of 16, 2 key heads
    one = config_of_one(whole, 4)
    assert (one.num_heads, one.num_kv_heads, one.intermediate_size, one.head_dim) == (1, 1, 24, 16)
    keys = [shares_of(one, rank).keys for rank in range(4)]
    assert [(share.start, share.full) for share in keys if share is not None] == [(0, 32), (0, 32), (16, 32), (16, 32)]
    queries = [shares_of(one, rank).queries for rank in range(4)]
    assert [(share.start, share.full) for share in queries if share is not None] == [
        (0, 64), (16, 64), (32, 64), (48, 64),
    ]  # fmt: skip


def test_one_rank_has_all() -> None:
    whole = ModelConfig.from_dict(QWEN2)
    assert config_of_one(whole, 1) is whole
    assert set(shares_of(whole, 0)) == {None}


def test_a_fused_projection_gives_each_rank_its_queries_keys_and_values() -> None:
    config = config_of_one(ModelConfig.from_dict(QWEN2_VL), 2).vision
    assert config is not None
    stored = torch.arange(12.0)[:, None] * torch.ones(2)  # queries 0…3, keys 4…7, values 8…11
    mine = torch.empty(6, 2)
    place = vision_places([("visual.blocks.0.attn.qkv.weight", mine)], config, 1)["visual.blocks.0.attn.qkv.weight"]
    assert tuple(place.shape) == (12, 2)
    place.copy_(stored)
    assert mine[:, 0].tolist() == [2, 3, 6, 7, 10, 11]


def test_a_tower_whose_heads_do_not_divide_stays_whole() -> None:
    config = config_of_one(ModelConfig.from_dict(QWEN2_VL), 4)  # its tower has 2 heads
    assert config.vision is not None
    assert (config.vision.shards, config.vision.num_heads, config.vision.head_dim) == (1, 2, 16)
    halves = config_of_one(ModelConfig.from_dict(QWEN2_VL), 2).vision
    assert halves is not None
    assert (halves.shards, halves.num_heads, halves.head_dim) == (2, 1, 16)


@pytest.mark.parametrize(
    ("change", "size", "says"),
    [
        ({}, 3, "it has 4 attention heads; possible: 1, 2, 4"),
        ({"num_attention_heads": 12, "num_key_value_heads": 4, "head_dim": 16}, 6,
         "it has 4 key-value heads; possible: 1, 2, 4, 12"),
        ({"intermediate_size": 98}, 4, "its MLPs have 98 columns; possible: 1, 2"),
    ],
)  # fmt: skip
def test_a_model_that_does_not_divide_is_refused_with_what_does(change: dict[str, Any], size: int, says: str) -> None:
    config = ModelConfig.from_dict({**QWEN2, **change})
    with pytest.raises(OptionError, match=f"tensor_parallel_size {size} does not divide this model: {says}"):
        config_of_one(config, size)


def test_groups_of_a_quantised_checkpoint_are_not_cut() -> None:
    config = ModelConfig.from_dict({**QWEN2, "intermediate_size": 384, "hidden_size": 256})  # 4 heads of 64
    awq = Scheme("awq", 4, 128)
    assert config_of_one(config, 1, awq) is config
    with pytest.raises(OptionError, match="128 and 192 columns are no whole groups of 128 of its awq"):
        config_of_one(config, 2, awq)
    assert config_of_one(config, 2, replace(awq, group_size=-1)).shards == 2
    assert config_of_one(config, 2, Scheme.at_load("int4")).shards == 2  # made of each rank's own columns


def test_too_few_gpus_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    model = ModelConfig.from_dict(QWEN2)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(OptionError, match="tensor_parallel_size 2 needs 2 GPUs, 1 is visible"):
        EngineConfig(device="cuda", tensor_parallel_size=2).resolve(model)
    with pytest.raises(OptionError, match="device cuda:0 is one GPU and tensor_parallel_size is 2"):
        EngineConfig(device="cuda:0", tensor_parallel_size=2).resolve(model)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert EngineConfig(device="cuda", tensor_parallel_size=2).resolve(model).device == torch.device("cuda", 0)
    with pytest.raises(OptionError, match="tensor_parallel_size 0 is out of range: 1 or more"):
        EngineConfig(tensor_parallel_size=0).resolve(model)


def test_ranks_on_a_cpu_share_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("visavis.engine.config.available_memory", lambda: 1 << 20)
    model = config_of_one(ModelConfig.from_dict({**TEXT, "architectures": ["Qwen2ForCausalLM"]}), 2)
    settings = EngineConfig(device="cpu", tensor_parallel_size=2, max_num_seqs=1).resolve(model)
    # 2 · 2 layers · 1 key head · 16 · 4 bytes = 256 a token, 16 tokens a block; of 512 KiB a quarter
    assert settings.kv_blocks(model) == (1 << 19) // 4 // (256 * 16)


def test_a_rank_loads_its_shares_and_streams_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, on CPU memory: rows go straight to their place, columns are cut from the whole, and what belongs to
    other ranks alone is not read."""
    stored = {
        "model.embed_tokens.weight": torch.randn(6, 4),
        "model.rows.weight": torch.randn(8, 4),
        "model.columns.weight": torch.randn(4, 8),
        "model.visual.tower.weight": torch.randn(5, 4),
    }
    save_file(stored, tmp_path / "model.safetensors", {"format": "pt"})
    seen = {}

    def streamed(folder: Path, device: torch.device, *given: Any) -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in stream_tensors(folder / "model.safetensors", device, *given):
            seen[name] = tensor
            yield name, tensor

    for stream in (True, False):
        rows, columns, embedding = torch.zeros(4, 4), torch.zeros(4, 4), torch.zeros(6, 4)
        places: dict[str, Place] = {
            "embed_tokens.weight": embedding,
            "rows.weight": taking(rows, Share(0, 4, 8)),
            "columns.weight": taking(columns, Share(1, 4, 8)),
        }
        with monkeypatch.context() as patch:
            if stream:
                patch.setattr(loader, "_tensors", streamed)
            loader.load_weights(tmp_path, places, tied=True, left_out="visual.")
        assert torch.equal(embedding, stored["model.embed_tokens.weight"])
        assert torch.equal(rows, stored["model.rows.weight"][4:])
        assert torch.equal(columns, stored["model.columns.weight"][:, 4:])
        if stream:
            assert seen["model.rows.weight"] is rows
            assert seen["model.visual.tower.weight"].numel() == 0
    places["rows.weight"] = taking(rows, Share(0, 4, 16))  # config.json asks for more rows than are stored
    monkeypatch.setattr(loader, "_tensors", streamed)
    with pytest.raises(ModelError, match=r"has shape \(8, 4\) and config.json asks for \(16, 4\)"):
        loader.load_weights(tmp_path, places, tied=True, left_out="visual.")
