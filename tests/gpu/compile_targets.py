"""Compiles every launch of the engine at real dimensions for one compute capability, without a GPU.

`python -m tests.gpu.compile_targets 86` prints one JSON line a kernel variant: its name, shared memory, registers and
spilled bytes. The launches are those of the engine's own code, caught before they reach a device.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

from visavis.engine.kernels.base import AttentionRow, Rotation, StepLayout
from visavis.engine.kernels.cuda.kernels import CudaKernels
from visavis.engine.kernels.cuda.sampling import GREEDY, Mode
from visavis.engine.kernels.cuda.step import DecodeStep
from visavis.engine.kernels.cuda.vision import CudaVision
from visavis.engine.kv_cache import KVCache
from visavis.engine.model_config import ModelConfig
from visavis.engine.models.decoder import Decoder
from visavis.engine.models.rope import RotaryEmbedding
from visavis.engine.quantization.scheme import AT_LOAD, Scheme

META = torch.device("meta")
TYPES = {
    torch.float32: "*fp32", torch.bfloat16: "*bf16", torch.float16: "*fp16", torch.int32: "*i32", torch.int64: "*i64",
    torch.uint8: "*u8", torch.int8: "*i8", torch.int16: "*i16",
}  # fmt: skip


def dims(architecture: str, hidden: int, inner: int, heads: int, kv: int, vocab: int, **more: Any) -> ModelConfig:
    config = {
        "architectures": [architecture], "hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": 1,
        "num_attention_heads": heads, "num_key_value_heads": kv, "vocab_size": vocab, "max_position_embeddings": 4096,
    }  # fmt: skip
    return ModelConfig.from_dict(config | more)


MODELS = {
    "Qwen2.5-1.5B": dims("Qwen2ForCausalLM", 1536, 8960, 12, 2, 151936, tie_word_embeddings=True),
    "Qwen2.5-7B": dims("Qwen2ForCausalLM", 3584, 18944, 28, 4, 152064),
    "Qwen3-8B": dims("Qwen3ForCausalLM", 4096, 12288, 32, 8, 151936, head_dim=128),
    "heads of 96": dims("LlamaForCausalLM", 1152, 3072, 12, 12, 32000),
}


SCHEMES = [
    Scheme.at_load("int8"), Scheme.at_load("int4"), Scheme("gptq", 8, 128), Scheme("awq", 4, 64), Scheme("awq", 4, 32),
]  # fmt: skip
TOWERS = {"Qwen2-VL": (16, 80), "Qwen3-VL": (16, 72), "heads of 128": (8, 128)}
"""Heads and their size."""


JOINING = "Qwen2.5-1.5B"
"""Narrow enough that the product behind attention joins its parts."""


class Catcher:
    """Stands in for every launch: keeps what would have been compiled, once."""

    def __init__(self) -> None:
        self.found: dict[
            str, tuple[JITFunction[Any], dict[str, str], dict[Any, Any], dict[Any, Any], dict[str, Any]]
        ] = {}

    def run(self, kernel: JITFunction[Any], *args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> None:
        names = kernel.arg_names
        values = dict(zip(names, args, strict=False)) | {k: v for k, v in kwargs.items() if k in names}
        options = {k: v for k, v in kwargs.items() if k not in names}
        signature, constants, attributes = {}, {}, {}
        for index, parameter in enumerate(kernel.params):
            value = values[parameter.name]
            if parameter.is_constexpr:
                signature[parameter.name] = "constexpr"
                constants[(index,)] = value
            elif isinstance(value, torch.Tensor):
                signature[parameter.name] = TYPES[value.dtype]
                attributes[(index,)] = [["tt.divisibility", 16]]
            elif isinstance(value, float):
                signature[parameter.name] = "fp32"
            elif value == 1 and not parameter.do_not_specialize:  # what the runtime does with ones
                signature[parameter.name] = "constexpr"
                constants[(index,)] = 1
            else:
                signature[parameter.name] = "i32"
                if value % 16 == 0 and not parameter.do_not_specialize:
                    attributes[(index,)] = [["tt.divisibility", 16]]
        key = f"{kernel.__name__} {signature} {constants} {attributes} {options}"
        self.found[key] = (kernel, signature, constants, attributes, options)


def catch_launches(capability: int, models: list[str], dtypes: tuple[torch.dtype, ...]) -> Catcher:
    catcher = Catcher()
    JITFunction.run = lambda kernel, *args, **kwargs: catcher.run(kernel, *args, **kwargs)  # type: ignore[method-assign]
    for name in dict.fromkeys([*models, JOINING]):
        c = MODELS[name]
        for dtype in dtypes:
            kernels = kernels_for(capability, dtype)
            cache = KVCache(1, 64, 16, c.num_kv_heads, c.head_dim, device=META, dtype=dtype)
            kernels.bind_cache(cache)
            model, rope = Decoder(c, kernels), RotaryEmbedding(c.rope, c.head_dim, META, dtype)
            step = DecodeStep(model, rope, cache, kernels.launcher, 256, 1024)
            step.sampling.counts = torch.empty((257, c.vocab_size), dtype=torch.int32, device=META)
            for rows in (1, 2, 8, 16, 64):
                step(rows, GREEDY)
            if name == models[0]:
                kernels.launcher.skinny_rows = dict.fromkeys(("qkv", "output", "gate_up", "down", "lm_head"), 64)
                step(64, GREEDY)
            step(2, Mode(draws=True, penalties=True, top_k=True, top_p=True))
            rows = [AttentionRow(i, 40, n, [1, 2, 3, 4]) for i, n in ((0, 1), (1, 17))]
            long = AttentionRow(2, 0, 512, list(range(32)))
            for layout in (
                StepLayout(torch.empty(18, dtype=torch.int64, device=META), [rows[0]], [rows[1]]),
                StepLayout(torch.empty(512, dtype=torch.int64, device=META), [], [long]),
            ):
                count = len(layout.slot_mapping)
                x = torch.empty((count, c.hidden_size), dtype=dtype, device=META)
                positions = torch.zeros((c.rope.num_axes, count), dtype=torch.int64, device=META)
                model(x, rope(positions), kernels.plan(layout))
    for name in models:
        for dtype in dtypes:
            for scheme in SCHEMES:
                common = scheme.method in AT_LOAD or len(models) > 1
                most = 16 if dtype == torch.float32 else 256
                rows = [n for n in ((1, 2, 16, 32, 64, 200) if common else (1, 64)) if n <= most]
                launch_quantized(kernels_for(capability, dtype), MODELS[name], scheme, dtype, rows)
    for dtype in dtypes:
        for heads, d in TOWERS.values():
            launch_tower(kernels_for(capability, dtype), heads, d, dtype)
    return catcher


def launch_quantized(
    kernels: CudaKernels, c: ModelConfig, scheme: Scheme, dtype: torch.dtype, counts: list[int]
) -> None:
    """A layer's products with so many rows, and with the inputs of a prompt."""
    kernels.quantize(scheme)
    model = Decoder(c, kernels)
    layer = model.layers[0]
    scratch = kernels.launcher.decode_scratch(64, c.num_kv_heads, 1, c.head_dim, 128 << 10, 64)
    norm = torch.empty(c.hidden_size, dtype=dtype, device=META)
    for rows in counts:
        for kind, linear in (("qkv", layer.qkv), ("output", layer.output), ("gate_up", layer.gate_up),
                             ("down", layer.down)):  # fmt: skip
            silu = kind == "gate_up"
            n, k = linear.weight.shape
            out = torch.empty((rows, n // 2 if silu else n), dtype=dtype, device=META)
            x = torch.empty((rows, k), dtype=dtype, device=META)
            kernels.quantized.product(
                kind, x, linear.weight, out, bias=linear.bias, norm=norm if rows == 1 and k == len(norm) else None,
                residual=kind in ("output", "down"), silu=silu, scratch=scratch,
            )  # fmt: skip
    for rows in (128, 1024):
        layer.down(torch.empty((rows, c.intermediate_size), dtype=dtype, device=META))


def kernels_for(capability: int, dtype: torch.dtype) -> CudaKernels:
    kernels = CudaKernels(META, dtype, "caught")
    kernels.launcher.processors = 132 if capability == 90 else 82
    kernels.launcher.overlap = 1 if capability >= 90 else 0
    kernels.launcher.hopper = kernels.launcher.large = capability == 90
    return kernels


def launch_tower(kernels: CudaKernels, heads: int, d: int, dtype: torch.dtype) -> None:
    run = CudaVision(kernels).vision
    qkv = torch.empty((4888, 3, heads, d), dtype=dtype, device=META)
    x = qkv[:, 0].flatten(1).clone()
    weight = x[0]
    turn = torch.empty((4888, 1, d), device=META)
    kernels.rotate_(qkv[:, :2].flatten(1, 2), Rotation(turn, turn))
    for bias in (weight, None):
        run.join_norm(x, x, weight, bias, 1e-6)
        run.join_norm(x, None, weight, bias, 1e-6)
    run.quick_gelu_(x)
    pixels = torch.empty((2, 728, 1316, 3), dtype=torch.uint8, device=META)
    patches = torch.empty((4888, 1176), dtype=dtype, device=META)
    for picture in (pixels, pixels[0]):
        run.patches(picture, torch.empty((3, 256), device=META), patches, 14, 2, 2)


def resources(cubin: bytes) -> dict[str, int]:
    """Registers and spilled bytes, as cuobjdump counts them."""
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    if not tool.exists():
        return {}
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        said = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=False).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", said)
    return {"registers": int(found[1]), "stack": int(found[2])} if found else {}


def main(capability: int, models: list[str], dtypes: tuple[torch.dtype, ...]) -> None:
    for kernel, signature, constants, attributes, options in catch_launches(capability, models, dtypes).found.values():
        source = ASTSource(kernel, signature, constants, attributes)
        compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
        shown = {kernel.arg_names[i[0]]: v for i, v in constants.items() if isinstance(v, (int, str))}
        print(
            json.dumps(
                {
                    "kernel": kernel.__name__,
                    "capability": capability,
                    "shared": compiled.metadata.shared,
                    **resources(compiled.asm["cubin"]),
                    "dtype": next(t for t in signature.values() if t.startswith("*")),
                    "constants": shown,
                }
            ),
            flush=True,
        )


if __name__ == "__main__":
    os.environ.pop("TRITON_INTERPRET", None)
    if "--quick" in sys.argv:
        main(int(sys.argv[1]), ["Qwen3-8B"], (torch.bfloat16,))
    else:
        main(int(sys.argv[1]), sys.argv[2:] or list(MODELS), (torch.bfloat16, torch.float32))
