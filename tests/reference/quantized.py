"""AWQ and GPTQ checkpoints written from the formats' definitions, loop by loop, and what they stand for.

AWQ (AutoAWQ's WQLinear_GEMM): int32 words along the outputs, nibble i of word c is output 8·c + (0 2 4 6 1 3 5 7)[i].
GPTQ (AutoGPTQ's QuantLinear): int32 words along the inputs, nibble i of word r is input 8·r + i; zeros along the
outputs, each stored less one in the first format and as it is in `gptq_v2`; with `desc_act` input j is of group
g_idx[j].
"""

from __future__ import annotations

import copy
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

MATRICES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


@dataclass(frozen=True)
class Format:
    method: str = "awq"
    bits: int = 4
    group: int = 32  # -1: a whole row
    symmetric: bool = False
    desc_act: bool = False
    v2: bool = False
    keep: tuple[str, ...] = ()  # matrices left dense
    bias_of_zeros: bool = False
    with_g_idx: bool = True

    def config(self) -> dict[str, Any]:
        common = {"quant_method": self.method, "bits": self.bits, "group_size": self.group}
        if self.method == "awq":
            return common | {"zero_point": True, "version": "gemm", "modules_to_not_convert": list(self.keep) or None}
        more = {"checkpoint_format": "gptq_v2"} if self.v2 else {}
        return common | {"sym": self.symmetric, "desc_act": self.desc_act} | more


def quantise(
    weight: np.ndarray[Any, Any], f: Format, groups: np.ndarray[Any, Any]
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """(out, in) → codes (in, out), float16 scales and zeros (groups, out), and the (out, in) they stand for."""
    out, size = weight.shape
    count, largest = int(groups.max()) + 1, 2**f.bits - 1
    codes = np.zeros((size, out), dtype=np.int64)
    scales = np.zeros((count, out), dtype=np.float16)
    zeros = np.zeros((count, out), dtype=np.int64)
    dense = np.zeros((out, size), dtype=np.float32)
    for g in range(count):
        members = np.nonzero(groups == g)[0]
        part = weight[:, members]
        if f.symmetric:
            scales[g] = np.abs(part).max(1) / (largest // 2)
            zeros[g] = (largest + 1) // 2
        else:
            low, high = np.minimum(part.min(1), 0), np.maximum(part.max(1), 0)
            scales[g] = (high - low) / largest
            zeros[g] = np.clip(np.round(-low / scales[g].astype(np.float32)), 0, largest)
        step = scales[g].astype(np.float32)[:, None]
        found = np.clip(np.round(part / step) + zeros[g][:, None], 0, largest)
        codes[members] = found.T
        dense[:, members] = (found - zeros[g][:, None]).astype(np.float32) * step
    return codes, scales, zeros, dense


def _words(values: np.ndarray[Any, Any], bits: int, axis: int, order: tuple[int, ...] | None = None) -> torch.Tensor:
    """Packs along `axis`, value by value."""
    per = 32 // bits
    values = np.moveaxis(values, axis, -1)
    words = np.zeros((*values.shape[:-1], values.shape[-1] // per), dtype=np.uint32)
    for c in range(words.shape[-1]):
        for i in range(per):
            words[..., c] |= values[..., c * per + (order[i] if order else i)].astype(np.uint32) << np.uint32(bits * i)
    return torch.from_numpy(np.ascontiguousarray(np.moveaxis(words, -1, axis)).view(np.int32))


def tensors_of(
    name: str, weight: torch.Tensor, f: Format, rng: np.random.Generator
) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """The checkpoint's tensors of one matrix, and the matrix they stand for."""
    size = weight.shape[1]
    group = size if f.group == -1 else f.group
    groups = np.arange(size) // group
    if f.desc_act:
        groups = np.random.default_rng(size).permutation(groups)  # matrices of one input share their order
    codes, scales, zeros, dense = quantise(weight.float().numpy(), f, groups)
    if f.method == "awq":
        made = {"qweight": _words(codes, 4, 1, AWQ_ORDER), "qzeros": _words(zeros, 4, 1, AWQ_ORDER)}
    else:
        stored = zeros if f.v2 else (zeros - 1) % 2**f.bits
        made = {"qweight": _words(codes, f.bits, 0), "qzeros": _words(stored, f.bits, 1)}
        if f.with_g_idx:
            made["g_idx"] = torch.from_numpy(groups.astype(np.int32))
        if f.bias_of_zeros:
            made["bias"] = torch.zeros(weight.shape[0])
    made["scales"] = torch.from_numpy(scales)
    return {f"{name}.{part}": tensor for part, tensor in made.items()}, torch.from_numpy(dense)


def quantise_folder(source: Path, folder: Path, f: Format) -> dict[str, torch.Tensor]:
    """Writes `source`'s checkpoint quantised to `folder`. Returns the dense matrices by their names."""
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["quantization_config"] = f.config()
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    rng = np.random.default_rng(0)
    written: dict[str, torch.Tensor] = {}
    dense: dict[str, torch.Tensor] = {}
    for name, tensor in load_file(source / "model.safetensors").items():
        matrix = name.removesuffix(".weight")
        if matrix.split(".")[-1] in MATRICES and "visual" not in matrix and not any(k in matrix for k in f.keep):
            if name.endswith(".weight"):
                made, dense[name] = tensors_of(matrix, tensor, f, rng)
                has_bias = f"{matrix}.bias" in written
                written.update({k: v for k, v in made.items() if not (k.endswith(".bias") and has_bias)})
                continue
            written.pop(name, None)
        written[name] = tensor
    save_file(written, folder / "model.safetensors", metadata={"format": "pt"})
    return dense


def with_weights(model: torch.nn.Module, dense: dict[str, torch.Tensor]) -> torch.nn.Module:
    """A copy of transformers' model with these matrices."""
    changed = copy.deepcopy(model)
    places = {_tail(name): parameter for name, parameter in changed.named_parameters()}
    for name, tensor in dense.items():
        place = places[_tail(name)]
        assert place.shape == tensor.shape
        place.data = tensor.to(place.dtype)
    return changed


def _tail(name: str) -> str:
    return name[name.index("layers.") :] if "visual" not in name and "layers." in name else name
