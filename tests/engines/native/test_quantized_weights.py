"""AWQ, GPTQ and load-time weights give transformers' answers on the dense matrices they stand for, in float32."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.engines.native.drive import forced_logits, greedy, make_engine
from tests.engines.native.reference import Reference, Tally
from tests.reference.quantized import Format, quantise_folder, with_weights
from visavis.errors import ModelError, OptionError

FORMATS = {
    "awq": Format("awq"),
    "awq-group-64": Format("awq", group=64, keep=("mlp.down_proj",)),  # whose inputs are no multiple of 64
    "awq-kept": Format("awq", keep=("layers.0", "v_proj")),  # v is dense beside q and k of codes
    "gptq": Format("gptq", bias_of_zeros=True),
    "gptq-v2": Format("gptq", v2=True),
    "gptq-symmetric-row": Format("gptq", group=-1, symmetric=True, with_g_idx=False),
    "gptq-desc_act": Format("gptq", desc_act=True),
    "gptq-8-bits": Format("gptq", bits=8, symmetric=True),
}


def quantised(ref: Reference, folder: Path, f: Format) -> Reference:
    """The same model from a checkpoint of that format, and transformers with the matrices it stands for."""
    made = copy.copy(ref)
    dense = quantise_folder(ref.folder, folder, f)
    assert dense
    made.folder = folder
    made.config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    made.model = with_weights(ref.model, dense)
    return made


def check(ref: Reference, label: str, **settings: object) -> None:
    parts: list[list[object]] = [[40], [3]]
    if ref.vision:
        parts.append([5, ("image", (1, 4, 6)), 9])
    prompts = [ref.prompt(part, seed) for seed, part in enumerate(parts)]  # type: ignore[arg-type]
    answers = [ref.answer(prompt, max_tokens=24) for prompt in prompts]
    engine = make_engine(ref, device="cpu", dtype="float32", **settings)
    tally = Tally()
    for ours, answer in zip(greedy(engine, prompts, max_tokens=24), answers, strict=True):
        tally.check(label, ours, answer)
    for ours, answer in zip(forced_logits(engine, prompts, answers), answers, strict=True):
        torch.testing.assert_close(ours, answer.logits, atol=1e-4, rtol=0)
    engine.close()


@pytest.mark.parametrize("kernels", ["auto", "torch"])
@pytest.mark.parametrize("name", FORMATS)
def test_checkpoint_answers_as_its_dense_matrices(
    name: str, kernels: str, reference: Callable[..., Reference], tmp_path: Path
) -> None:
    check(quantised(reference("qwen2"), tmp_path / name, FORMATS[name]), name, kernels=kernels)


@pytest.mark.parametrize("family", ["qwen3", "llama", "qwen2_vl", "qwen2_5_vl", "qwen3_vl"])
@pytest.mark.parametrize("name", ["awq", "gptq"])
def test_every_family(name: str, family: str, reference: Callable[..., Reference], tmp_path: Path) -> None:
    check(quantised(reference(family), tmp_path / name, FORMATS[name]), f"{family} {name}")


@pytest.mark.parametrize("kernels", ["auto", "torch"])
def test_int4_made_at_load_answers_as_what_it_rounds_to(kernels: str, reference: Callable[..., Reference]) -> None:
    """Rounding spelled out: 16 steps from the least to the largest of each 32 columns (64 and 96 inputs are no
    multiples of 128), 0 among them, the step in float16."""
    ref = copy.copy(reference("qwen2"))
    dense = {}
    for name, parameter in ref.model.named_parameters():
        if name.split(".")[-2].endswith("_proj") and name.endswith("weight"):
            group = 64 if parameter.shape[1] % 64 == 0 else 32
            wide = parameter.data.float().unflatten(1, (-1, group))
            low, high = wide.amin(2, keepdim=True).clamp(max=0), wide.amax(2, keepdim=True).clamp(min=0)
            step = ((high - low) / 15).half().float()
            zero = (-low / step).round()
            dense[name] = (((wide / step).round() + zero).clamp(0, 15) - zero).mul(step).flatten(1)
    ref.model = with_weights(ref.model, dense)
    check(ref, "int4", quantization="int4", kernels=kernels)


def test_a_quantization_the_checkpoint_is_not_in_is_refused(
    reference: Callable[..., Reference], tmp_path: Path
) -> None:
    ref = reference("qwen2")
    with pytest.raises(OptionError, match=r"awq was asked for and the checkpoint's config\.json declares none"):
        make_engine(ref, device="cpu", quantization="awq")
    made = quantised(ref, tmp_path / "awq", FORMATS["awq"])
    with pytest.raises(OptionError, match="int4 was asked for and the checkpoint is awq"):
        make_engine(made, device="cpu", quantization="int4")
    make_engine(made, device="cpu", quantization="awq").close()


def test_damaged_checkpoints_are_named(reference: Callable[..., Reference], tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    made = quantised(reference("qwen2"), tmp_path / "gptq", FORMATS["gptq"])
    file = made.folder / "model.safetensors"
    tensors = load_file(file)
    name = "model.layers.1.mlp.up_proj"
    for change, said in (
        ({f"{name}.scales": None}, "lacks layers.1.mlp.up_proj.scales"),
        ({f"{name}.qzeros": tensors[f"{name}.qzeros"][:, :-1].contiguous()}, "qzeros has shape"),
        ({f"{name}.bias": torch.ones(96)}, "up_proj.bias is not zero"),
        ({f"{name}.g_idx": torch.zeros(64, dtype=torch.int32)}, "groups that are not of 32"),
        ({f"{name}.g_idx": tensors[f"{name}.g_idx"].flip(0)}, "have different g_idx"),
    ):
        changed = {k: v for k, v in (tensors | change).items() if v is not None}
        save_file(changed, file, metadata={"format": "pt"})
        with pytest.raises(ModelError, match=said):
            make_engine(made, device="cpu", kernels="torch").close()
