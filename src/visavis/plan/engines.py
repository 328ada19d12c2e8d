"""What is known of each engine: what it keeps for itself, how its KV cache is sized, what its settings are called."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from visavis.plan.quantization import LOAD_TIME, Quantization
from visavis.plan.shape import ModelShape
from visavis.plan.types import Proposal
from visavis.plan.units import GIB

__all__ = ["CONTEXT_BYTES", "ENGINES", "NCCL_BYTES", "EngineFacts", "launch_command", "refusal", "slack_bytes"]

CONTEXT_BYTES = round(0.7 * GIB)
"""CUDA context, kernels and library workspaces of one process, outside any allocator: 0.68 GiB on an H200 with torch
2.11 after a matrix product and an attention call, less on smaller cards."""
NCCL_BYTES = round(0.4 * GIB)
"""Communication buffers of a tensor-parallel rank."""
SLACK = 0.02
SLACK_BYTES = round(0.3 * GIB)
"""Left unplanned: 2 % of the device, 0.3 GiB at least. The allocator's blocks exceed the peak of what lives in them, by
12 % for a text step and up to 77 % for a vision tower on an H200."""


def slack_bytes(total: float) -> float:
    return max(SLACK_BYTES, SLACK * total)


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """`sized_by`: a share of the device that holds weights, activations and KV cache (vLLM), a share that holds
    weights and KV cache alone (SGLang), bytes of KV cache (native), or nothing: it grows with the batch (hf)."""

    name: str
    title: str
    sized_by: Literal["share", "static share", "bytes", "batch"]
    graph_bytes: int
    graph_why: str
    inner_bytes: int  # its own, inside what it counts
    fused_experts: bool
    default_seqs: int  # its own limit of running requests
    flags: Mapping[str, str]
    patches_per_pass: int | None = None  # bounds what the vision tower encodes at once; one item always goes through
    vision_in_place: bool = False  # its tower writes over what it no longer needs
    compiled_on_cpu: bool = False  # kernels that compute in float32 whatever the weights are
    whole_embedding: bool = False  # each rank has all of it
    makes_smaller: bool = False  # weights that do not fit a card, by itself, in the order of `quantization`
    model_types: frozenset[str] | None = None  # None: all that are planned here
    quantization: Mapping[str, str] = field(default_factory=dict)  # load-time format → its flags
    formats: Mapping[str, Quantization] = field(default_factory=dict)  # of these, where they are not LOAD_TIME's
    checkpoints: frozenset[str] = frozenset()  # methods of quantised checkpoints it runs


_EVERY = frozenset({"awq", "gptq", "fp8", "bitsandbytes", "compressed-tensors"})

ENGINES: dict[str, EngineFacts] = {
    "native": EngineFacts(
        name="native",
        title="native",
        vision_in_place=True,
        compiled_on_cpu=True,
        sized_by="bytes",
        graph_bytes=0,
        graph_why="",
        inner_bytes=0,
        fused_experts=True,
        default_seqs=64,
        whole_embedding=True,
        makes_smaller=True,
        flags={
            "tensor_parallel_size": "--tensor-parallel-size",
            "dtype": "--dtype",
            "max_model_len": "--max-model-len",
            "max_num_batched_tokens": "--max-num-batched-tokens",
            "max_num_seqs": "--max-num-seqs",
            "kv_cache_bytes": "--kv-cache",
            "max_pixels": "--max-pixels",
        },
        patches_per_pass=16384,
        model_types=frozenset({"llama", "qwen2", "qwen3", "qwen2_vl", "qwen2_5_vl", "qwen3_vl"}),
        quantization={"int8": "--quantization int8", "int4": "--quantization int4"},
        formats={
            "int8": replace(LOAD_TIME["int8"], scale_bytes=4),
            "int4": replace(LOAD_TIME["int4"], zero_bits=8),
        },
        checkpoints=frozenset({"awq", "gptq"}),
    ),
    "hf": EngineFacts(
        name="hf",
        title="transformers",
        sized_by="batch",
        graph_bytes=0,
        graph_why="",
        inner_bytes=0,
        fused_experts=False,
        default_seqs=64,
        flags={
            "dtype": "--dtype",
            "max_model_len": "--max-model-len",
            "max_num_seqs": "--max-num-seqs",
            "max_pixels": "--max-pixels",
            "device_map": "--engine-option",
        },
        checkpoints=_EVERY,
    ),
    "vllm": EngineFacts(
        name="vllm",
        title="vLLM",
        sized_by="share",
        graph_bytes=round(0.5 * GIB),
        graph_why="CUDA graphs, captured after the cache is made (0.22 GiB in document 002's log, more in V1)",
        inner_bytes=round(0.1 * GIB),
        fused_experts=True,
        default_seqs=256,
        flags={
            "tensor_parallel_size": "--tensor-parallel-size",
            "enable_expert_parallel": "--enable-expert-parallel",
            "dtype": "--dtype",
            "kv_cache_dtype": "--kv-cache-dtype",
            "max_model_len": "--max-model-len",
            "max_num_batched_tokens": "--max-num-batched-tokens",
            "max_num_seqs": "--max-num-seqs",
            "gpu_memory_utilization": "--gpu-memory-utilization",
            "kv_cache_bytes": "--kv-cache-memory-bytes",
            "limit_per_prompt": "--limit-mm-per-prompt",
            "max_pixels": "--mm-processor-kwargs",
        },
        quantization={"fp8": "--quantization fp8", "bitsandbytes-nf4": "--quantization bitsandbytes"},
        checkpoints=_EVERY,
    ),
    "sglang": EngineFacts(
        name="sglang",
        title="SGLang",
        sized_by="static share",
        graph_bytes=round(0.75 * GIB),
        graph_why="CUDA graphs, captured after the cache is made",
        inner_bytes=0,
        fused_experts=True,
        default_seqs=256,
        flags={
            "tensor_parallel_size": "--tp-size",
            "enable_expert_parallel": "--ep-size",
            "dtype": "--dtype",
            "kv_cache_dtype": "--kv-cache-dtype",
            "max_model_len": "--context-length",
            "max_num_batched_tokens": "--chunked-prefill-size",
            "max_num_seqs": "--max-running-requests",
            "gpu_memory_utilization": "--mem-fraction-static",
            "limit_per_prompt": "--limit-mm-data-per-request",
            "max_pixels": "--mm-process-config",
        },
        quantization={
            "fp8": "--quantization fp8",
            "int8": "--torchao-config int8wo",
            "int4": "--torchao-config int4wo-128",
        },
        checkpoints=_EVERY,
    ),
}


def refusal(
    facts: EngineFacts,
    shape: ModelShape,
    quantization: Quantization | None,
    *,
    load_time: bool,
    device: str,
    ranks: int,
    kv_dtype: str | None,
) -> str:
    """Why this engine cannot run this at all, with the way out; "" when it can."""
    if facts.model_types is not None and shape.model_type not in facts.model_types:
        return f"{facts.name} does not run model_type {shape.model_type}; use hf, vllm or sglang"
    if facts.name == "sglang" and device != "cuda":
        return "SGLang is planned for CUDA cards only; give --gpu-memory to plan for one"
    if facts.name in ("native", "vllm") and device == "mps":
        return f"{facts.title} is planned for CUDA cards and CPUs only; give --gpu-memory to plan for a card"
    if ranks > 1 and device != "cuda":
        return f"--tensor-parallel-size {ranks} needs CUDA cards; give --gpu-memory to plan for them"
    if kv_dtype is not None and "kv_cache_dtype" not in facts.flags:
        return f"{facts.name} keeps the cache in the model's dtype; --kv-cache-dtype {kv_dtype} is for vllm and sglang"
    if quantization is None:
        return ""
    method = quantization.method
    if load_time and quantization.name not in facts.quantization:
        known = ", ".join(facts.quantization)
        offer = f"it makes {known} itself" if known else "it does not quantise while loading"
        return f"{facts.name} cannot make {quantization.name} weights of 16-bit ones; {offer}"
    if not load_time and method not in facts.checkpoints:
        return f"{facts.name} does not run {quantization.name} checkpoints; use hf, vllm or sglang"
    return ""


def launch_command(
    facts: EngineFacts,
    model: str,
    path: str,
    proposals: Sequence[Proposal],
    *,
    quantization: str | None = None,
    max_tokens: int = 1,
    image: str = "",
) -> str:
    """The command that starts the engine with `proposals`. `path` stands in for a model without a name, `quantization`
    is a load-time format, `max_tokens` and `image` (a
    file name) are of one request."""
    name = model or path or "MODEL"
    if facts.name == "vllm":
        words = ["vllm", "serve", name, "--generation-config", "vllm"]
    elif facts.name == "sglang":
        words = ["python", "-m", "sglang.launch_server", "--model-path", name]
    else:
        words = ["visavis", "ask", "…", *(["-m", model] if model else []), "--backend", facts.name]
        words += ["--image", image] if image else []
        words += ["--max-tokens", str(max_tokens)]
    environment = [f"{p.flag}{p.argument}" for p in proposals if p.flag.endswith("=")]
    for p in proposals:
        if p.flag and not p.flag.endswith("="):
            words += [p.flag, p.argument] if p.argument else [p.flag]
    if quantization:
        words += facts.quantization[quantization].split()
    return " ".join([*environment, *(shlex.quote(word) for word in words)])
