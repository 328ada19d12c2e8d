"""Our options and sampling in SGLang's words. Imports no SGLang."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

from visavis.backends.option_map import check_extra, refuse, refuse_sampling
from visavis.backends.options import EngineOptions
from visavis.errors import OptionError, shorten
from visavis.sampling import ResolvedSampling

__all__ = ["SAMPLING", "engine_arguments", "environment", "sampling_arguments"]

SAMPLING = frozenset(
    {"max_tokens", "min_tokens", "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty"}
    | {"n", "stop", "stop_token_ids", "eos_token_ids", "ignore_eos", "logprobs", "logit_bias", "special_tokens"}
    | {"structured"}
)
"""Without repetition_penalty (SGLang leaves the prompt out of it), seed (per request only in its deterministic mode),
prompt_logprobs and bad_words."""

OURS = {
    "model_path": "give -m/--model",
    "tokenizer_path": "the model folder's tokenizer is used",
    "skip_tokenizer_init": "SGLang's processors need the tokenizer",
    "sampling_defaults": "sampling is decided before the engine",
    "preferred_sampling_params": "sampling is decided before the engine; give sampling options",
    "incremental_streaming_output": "answers are always streamed piece by piece here",
    "dtype": "use dtype",
    "device": "use device",
    "base_gpu_id": "use device=cuda:N",
    "random_seed": "use seed",
    "context_length": "use max_model_len",
    "max_running_requests": "use max_num_seqs",
    "chunked_prefill_size": "use max_num_batched_tokens",
    "mem_fraction_static": "use gpu_memory_utilization",
    "tp_size": "use tensor_parallel_size",
    "quantization": "use quantization",
    "disable_cuda_graph": "use enforce_eager",
    "trust_remote_code": "use trust_remote_code",
}


EMBEDDING_CACHE = "mm_embedding_cache_mb"
"""An option of ours for what SGLang takes from a variable: MB of image embeddings kept for images seen again, 100 where
nothing is said; 0: none."""


def environment(options: EngineOptions, *, cpu: bool) -> dict[str, str]:
    """Variables that must be set before SGLang is imported. Raises OptionError."""
    found = {"SGLANG_RETURN_ORIGINAL_LOGPROB": "1"}  # log-probabilities before temperature
    kept = next((v for k, v in options.extra.items() if k.replace("-", "_") == EMBEDDING_CACHE), None)
    if kept is not None:
        if isinstance(kept, bool) or not isinstance(kept, int) or kept < 0:
            raise OptionError(f"sglang.{EMBEDDING_CACHE} {shorten(kept)} is no number of MB; give 0 or more")
        found["SGLANG_VLM_CACHE_SIZE_MB"] = str(kept)
    if cpu:
        found["SGLANG_USE_CPU_ENGINE"] = "1"
        if options.threads is not None:
            found["OMP_NUM_THREADS"] = str(options.threads)
    return found


def engine_arguments(options: EngineOptions, model: str, known: Collection[str], *, cpu: bool) -> dict[str, Any]:
    """Keyword arguments of SGLang's `Engine`; `known` are the field names of its `ServerArgs`. Raises OptionError."""
    refuse("sglang", "kv_cache_bytes", options.kv_cache_bytes, "it counts tokens; give sglang.max_total_tokens")
    if not cpu:
        refuse("sglang", "threads", options.threads, "it counts CPU threads and this engine runs on a GPU")
    elif options.tensor_parallel_size > 1:
        raise OptionError(f"sglang cannot honour tensor_parallel_size {options.tensor_parallel_size} on a CPU")
    arguments: dict[str, Any] = {
        "model_path": model,
        "dtype": ("float32" if cpu else "auto") if options.dtype == "auto" else options.dtype,
        "device": "cpu" if cpu else "cuda",
        "random_seed": options.seed,
        "tp_size": options.tensor_parallel_size,
        "disable_cuda_graph": options.enforce_eager or cpu,
        "trust_remote_code": options.trust_remote_code,
        "sampling_defaults": "openai",
        "incremental_streaming_output": True,
        "skip_server_warmup": True,
        "log_level": "info",
    }
    for ours, theirs in (
        ("max_model_len", "context_length"),
        ("max_num_seqs", "max_running_requests"),
        ("max_num_batched_tokens", "chunked_prefill_size"),
        ("gpu_memory_utilization", "mem_fraction_static"),
        ("quantization", "quantization"),
        ("limit_per_prompt", "limit_mm_data_per_request"),
    ):
        if (value := getattr(options, ours)) is not None:
            arguments[theirs] = value
    if "constrained_json_disable_any_whitespace" in known:
        arguments["constrained_json_disable_any_whitespace"] = True  # else nothing bounds the blanks in JSON
    if options.device.startswith("cuda:"):
        arguments["base_gpu_id"] = int(options.device.removeprefix("cuda:"))
    if cpu:
        arguments["attention_backend"] = "torch_native"
    own = check_extra("sglang", options.extra, {*known, EMBEDDING_CACHE}, OURS)
    own.pop(EMBEDDING_CACHE, None)
    if options.limit_per_prompt is not None and "limit_mm_data_per_request" in own:
        raise OptionError("sglang.limit_mm_data_per_request and limit_per_prompt say the same; give one of them")
    return arguments | own


def sampling_arguments(sampling: ResolvedSampling, engine_ends: Collection[int]) -> dict[str, Any]:
    """SGLang's `sampling_params` for one answer, every value given.

    `engine_ends` are the ids at which SGLang stops by itself. Where they are not all ends for us too, its EOS is
    switched off and the answer is cut at our ends by us. Stop strings are cut by us as well. Raises OptionError for
    what it would do differently.
    """
    ends = set(sampling.end_token_ids)
    same_ends = set(engine_ends) <= ends
    if sampling.min_tokens and not same_ends:
        raise refuse_sampling(
            "sglang",
            "min_tokens",
            sampling.min_tokens,
            "it also bans ends of its own; leave ignore_eos or min_tokens out",
        )
    shaping = [name for name, off in (("top_k", 0), ("top_p", 1.0), ("min_p", 0.0)) if getattr(sampling, name) != off]
    if not sampling.greedy and len(shaping) > 1:
        raise OptionError(
            f"sglang cannot honour {' and '.join(shaping)} together: it applies them to the whole distribution, "
            "not one after another; give one of them"
        )
    penalised = sampling.presence_penalty or sampling.frequency_penalty or sampling.logit_bias or sampling.min_tokens
    if sampling.logprobs is not None and penalised:
        raise refuse_sampling(
            "sglang",
            "logprobs",
            sampling.logprobs,
            "with penalties, logit_bias or min_tokens they are not the raw ones",
        )
    return _structured(sampling) | {
        "max_new_tokens": sampling.max_tokens,
        "min_new_tokens": sampling.min_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k or -1,
        "min_p": sampling.min_p,
        "repetition_penalty": 1.0,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "stop": None,
        "stop_token_ids": sorted(ends) if same_ends else [],
        "ignore_eos": not same_ends,
        "n": 1,
        "logit_bias": {str(token): bias for token, bias in sampling.logit_bias} or None,
        "skip_special_tokens": False,
        "spaces_between_special_tokens": False,
        "no_stop_trim": True,
    }


def _structured(sampling: ResolvedSampling) -> dict[str, Any]:
    if sampling.structured is None:
        return {}
    kind, value = sampling.structured
    if kind == "grammar":
        raise refuse_sampling("sglang", "structured", "grammar", "its grammars are written otherwise; use native or hf")
    if kind == "choice":
        return {"regex": "(" + "|".join(map(re.escape, value)) + ")"}
    return {kind: value}
