"""What is loaded into how much memory: bytes by arithmetic, and which way is taken where the weights are too large."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from visavis.engine.config import EngineConfig, EngineSettings
from visavis.engine.model_config import ModelConfig
from visavis.engine.parallel.sharding import config_of_one
from visavis.engine.quantization.fit import fitted, weight_bytes
from visavis.engine.quantization.scheme import Scheme
from visavis.errors import OptionError
from visavis.plan import plan, stated
from visavis.plan.engines import CONTEXT_BYTES
from visavis.plan.memory import native_start_bytes
from visavis.plan.shape import read_shape

GIB = 1 << 30
VL_7B = {
    "architectures": ["Qwen2VLForConditionalGeneration"], "hidden_size": 3584, "intermediate_size": 18944,
    "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4, "vocab_size": 152064,
    "max_position_embeddings": 32768, "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
    "torch_dtype": "bfloat16",
    "vision_config": {"depth": 32, "embed_dim": 1280, "num_heads": 16, "mlp_ratio": 4, "hidden_size": 3584,
                      "patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2, "in_channels": 3},
}  # fmt: skip
MODEL = ModelConfig.from_dict(VL_7B)
MATRICES = 28 * 3584 * (4608 + 3584 + 3 * 18944)  # weights of the decoder's matrices
ROWS = 28 * (4608 + 3584 + 2 * 18944 + 3584)


def settings(**asked: Any) -> EngineSettings:
    made = EngineConfig(device="cpu", **{"dtype": "bfloat16", **asked}).resolve(MODEL)
    # As on a GPU, which this machine may not have: its dtype and larger steps come by themselves.
    many = made if made.steps_asked else replace(made, max_num_batched_tokens=16384, max_num_seqs=256)
    return replace(many, dtype_asked="dtype" in asked)


def test_bytes_of_the_weights() -> None:
    """Published: Qwen2-VL-7B has 8.29 · 10⁹ parameters. int8: a byte a weight and 4 a row; int4: half a byte, and for
    each 128 columns 2 of scale and 1 of zero. All other parameters keep their two bytes."""
    dense = weight_bytes(MODEL, None, torch.bfloat16)
    assert dense == pytest.approx(2 * 8.29e9, rel=1e-3)
    assert weight_bytes(MODEL, Scheme.at_load("int8"), torch.bfloat16) == dense - MATRICES + 4 * ROWS
    int4 = weight_bytes(MODEL, Scheme.at_load("int4"), torch.bfloat16)
    assert int4 == dense - 2 * MATRICES + MATRICES // 2 + 3 * MATRICES // 128


@pytest.mark.parametrize(
    ("free", "quantization", "tokens", "said"),
    [
        (40, None, 16384, None),
        (17.8, None, 4096, None),  # smaller steps before smaller weights
        (13.9, "int8", 16384, "bf16 needs 15.4 GiB, 13.9 GiB are free: loaded int8, 9.4 GiB; --dtype overrides"),
        (11.0, "int8", 2048, "loaded int8"),
        (8.0, "int4", 2048, "bf16 needs 15.4 GiB, 8.0 GiB are free: loaded int4, 6.5 GiB; --dtype overrides"),
    ],
)
def test_the_widest_weights_that_fit_are_loaded(
    free: float, quantization: str | None, tokens: int, said: str | None
) -> None:
    made, words = fitted(settings(), MODEL, int(free * GIB))
    assert (made.quantization, made.max_num_batched_tokens) == (quantization, tokens)
    assert words is None if said is None else words is not None and said in words


def test_what_was_asked_for_stays_or_is_refused_with_the_numbers() -> None:
    with pytest.raises(OptionError, match=r"13\.9 GiB are free .* bf16 weights take 15\.4 GiB.*leave --dtype out"):
        fitted(settings(dtype="bfloat16"), MODEL, int(13.9 * GIB))
    with pytest.raises(OptionError, match=r"int8 weights take 9\.4 GiB.*--quantization int4"):
        fitted(settings(quantization="int8"), MODEL, 8 * GIB)
    with pytest.raises(OptionError, match=r"bf16 .* 15\.4 GiB, int8 .* 9\.4 GiB, int4 .* 6\.5 GiB.*--device cpu"):
        fitted(settings(), MODEL, 4 * GIB)
    with pytest.raises(OptionError, match="smallest step"):
        fitted(settings(max_num_batched_tokens=65536, quantization="int4"), MODEL, 10 * GIB)


# ---- what `visavis plan` says of it -----------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_plan_knows_the_sum_by_which_weights_are_chosen(ranks: int) -> None:
    shape = read_shape({**VL_7B, "model_type": "qwen2_vl"})
    made = settings(max_num_batched_tokens=4096, max_num_seqs=16)
    planned = native_start_bytes(
        shape.text, shape.vision, tokens=4096, seqs=16, patches=16384, dtype="bfloat16", ranks=ranks
    )
    assert planned == made.step_bytes(config_of_one(MODEL, ranks))


@pytest.mark.parametrize("size", [6, 8, 8.5, 9, 10, 11, 11.5, 12, 14, 16, 17, 18, 18.5, 20, 24])
def test_a_planned_command_loads_the_weights_that_were_planned(size: float) -> None:
    device = stated(round(size * GIB))
    found = plan({**VL_7B, "model_type": "qwen2_vl"}, device, engines=("native",)).engine("native")
    assert found is not None
    free = device.free_bytes - CONTEXT_BYTES
    if not found.fits:
        with pytest.raises(OptionError):
            fitted(settings(), MODEL, free)
        return
    names = ("max_model_len", "max_num_batched_tokens", "max_num_seqs", "kv_cache_bytes")
    loaded, said = fitted(settings(**{name: found.value(name) for name in names}), MODEL, free)
    assert loaded.quantization == (found.made or None)
    assert bool(said) == bool(found.made)
