"""What of a model fits a device's free memory: its weights as they are, or the decoder's matrices in int8 or int4."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from visavis.engine.config import EngineSettings, gib
from visavis.engine.kernels.torch_kernels import TorchKernels
from visavis.engine.model_config import ModelConfig
from visavis.engine.models.decoder import Decoder
from visavis.engine.models.vision import VisionTower
from visavis.engine.quantization.scheme import AT_LOAD, Scheme
from visavis.errors import OptionError

__all__ = ["fitted", "weight_bytes"]

LEAST_STEP_TOKENS = 2048
"""Steps are made as small as this before weights are made smaller."""
LEAST_KV_TOKENS = 4096
"""Of a request, if the model's context is as long: a screenshot, a question and an answer."""
SHARE = 0.97
"""Of the free memory; the rest is what allocators lose between tensors."""


def weight_bytes(model: ModelConfig, scheme: Scheme | None, dtype: torch.dtype) -> int:
    """Norms, biases, scales and zeros counted: of a model made without memory."""
    kernels = TorchKernels(torch.device("meta"), dtype)
    if scheme is not None:
        kernels.quantize(scheme)
    decoder = Decoder(model, kernels)
    held: list[torch.Tensor] = [decoder.embedding, decoder.norm.weight]
    if not decoder.tied:
        held.append(decoder.lm_head)
    total = 0
    for layer in decoder.layers:
        held += [layer.input_norm.weight, layer.mlp_norm.weight]
        held += [norm.weight for norm in layer.qk_norm or ()]
        for linear in (layer.qkv, layer.output, layer.gate_up, layer.down):
            total += linear.weight.nbytes + (0 if linear.bias is None else linear.bias.nbytes)
    if model.vision is not None:
        held += [tensor for _, tensor in VisionTower(model.vision, kernels).weights()]
    return total + sum(tensor.nbytes for tensor in held)


def fitted(settings: EngineSettings, model: ModelConfig, free: int) -> tuple[EngineSettings, str | None]:
    """The settings with which weights, the largest step and a request's cache fit `free` bytes, and what to say of it.

    Weights keep their dtype where they can, else become int8, else int4; a dtype or a quantization that was asked for,
    and a checkpoint's own, stay. Raises OptionError with the numbers where nothing fits.
    """
    room = int(free * SHARE)
    fixed = settings.scheme is not None or settings.dtype_asked
    schemes = [settings.scheme] if fixed else [None, *map(Scheme.at_load, AT_LOAD)]
    needed: list[tuple[str, int]] = []
    for scheme in schemes:
        weights = weight_bytes(model, scheme, settings.dtype)
        name = _short(settings.dtype) if scheme is None else scheme.method
        needed.append((name, weights))
        for smaller in _smaller_steps(settings):
            if weights + smaller.step_bytes(model) + _cache_bytes(smaller, model) > room:
                continue
            if scheme is settings.scheme:
                return smaller, None
            dense, least = needed[0]
            said = f"{dense} needs {gib(least)}, {gib(free)} are free: loaded {name}, {gib(weights)}; --dtype overrides"
            return replace(smaller, scheme=scheme), said
    raise OptionError(_nothing_fits(settings, model, needed, free, fixed))


def _smaller_steps(settings: EngineSettings) -> Sequence[EngineSettings]:
    """As they are, then with fewer tokens and requests a step, where nobody asked for those."""
    steps = [settings]
    while not settings.steps_asked and steps[-1].max_num_batched_tokens // 2 >= LEAST_STEP_TOKENS:
        last = steps[-1]
        tokens, seqs = last.max_num_batched_tokens // 2, max(1, last.max_num_seqs // 2)
        steps.append(replace(last, max_num_batched_tokens=tokens, max_num_seqs=seqs))
    return steps


def _cache_bytes(settings: EngineSettings, model: ModelConfig) -> int:
    if settings.kv_cache_bytes is not None:
        return settings.kv_cache_bytes
    tokens = settings.max_model_len if settings.max_model_len_asked else min(settings.max_model_len, LEAST_KV_TOKENS)
    blocks = settings.num_blocks or -(-tokens // settings.block_size)
    return blocks * settings.block_bytes(model)


def _nothing_fits(
    settings: EngineSettings, model: ModelConfig, needed: Sequence[tuple[str, int]], free: int, fixed: bool
) -> str:
    weights = ", ".join(f"{name} weights take {gib(size)}" for name, size in needed)
    least = _smaller_steps(settings)[-1]
    rest = least.step_bytes(model) + _cache_bytes(least, model)
    ways = []
    if fixed and settings.dtype_asked and settings.scheme is None:
        ways.append("leave --dtype out to have them made smaller")
    elif settings.quantization == "int8":
        ways.append("ask for --quantization int4")
    ways += ["free memory on the device", "lower max_num_batched_tokens, max_num_seqs or max_model_len"]
    if settings.tensor_parallel_size == 1:
        ways.append("spread it with --tensor-parallel-size")
    return (
        f"{gib(free)} are free on {settings.device}: {weights}, and the smallest step and cache {gib(rest)}; "
        f"{', '.join(ways)}, or use --device cpu"
    )


def _short(dtype: torch.dtype) -> str:
    return {torch.bfloat16: "bf16", torch.float16: "fp16"}.get(dtype, str(dtype).removeprefix("torch."))
