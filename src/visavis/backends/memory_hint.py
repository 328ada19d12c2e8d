"""Engines' start-up failures that are about memory, with the way out: what fits is `visavis plan`'s business."""

from __future__ import annotations

import re

from visavis.backends.options import EngineOptions
from visavis.errors import BackendError, OptionError

__all__ = ["with_plan"]

_ABOUT_MEMORY = re.compile(
    r"out of memory(?!\?)|OutOfMemory|not enough (?:\w+ )?memory|No available memory|insufficient memory"
    r"|can(?:not|'t) allocate memory|MemoryError|bad_alloc|less than desired (?:GPU|CPU) memory"
    r"|less than requested memory|larger than the available KV cache|increas\w+ \W{0,3}(?:gpu|mem)[-_](?:mem|frac)",
    re.IGNORECASE,
)
"""vLLM: "No available memory for the cache blocks", "KV cache is needed, which is larger than the available KV cache
memory", "Free memory on device … is less than desired GPU memory utilization"; SGLang: "Not enough memory. Please try
to increase --mem-fraction-static"; torch: "CUDA out of memory", "can't allocate memory"."""
_KILLED = "(out of memory?)"
"""What `child_process` says of a SIGKILL, which the system sends when memory runs out, and others too."""
_ENDED_ITSELF = "kill_process_tree called"
"""In SGLang's log: it sent the signal itself, and the lines before say why."""

PLANNED = ("native", "hf", "vllm", "sglang")
_CHOICES = {
    "vllm": "max_model_len, max_num_seqs, gpu_memory_utilization (on a CPU kv_cache_bytes) and limit_per_prompt",
    "sglang": "max_model_len, max_num_seqs and gpu_memory_utilization",
}


_ALLOCATION = re.compile(r"[Tt]ried to allocate ([0-9.]+) (bytes|KiB|MiB|GiB)")


def _asked_for(text: str) -> str:
    """The allocation that failed: `1953.1 GiB at once`, or the first words of what was said."""
    found = _ALLOCATION.search(text)
    if found is None:
        return " ".join(text.split())[:200] or "MemoryError"
    amount, unit = float(found[1]), found[2]
    return f"{amount / 2**30:.1f} GiB at once" if unit == "bytes" else f"{found[1]} {unit} at once"


def with_plan(error: Exception, backend: str, model: str | None, options: EngineOptions) -> Exception:
    """The error itself; where it is about memory, one of its kind that says which command tells what fits. What torch
    and Python raise when memory runs out becomes a BackendError."""
    text = str(error)
    if isinstance(error, RuntimeError | MemoryError) and (
        isinstance(error, MemoryError) or _ABOUT_MEMORY.search(f"{type(error).__name__}: {text}")
    ):
        error = BackendError(f"{backend}: out of memory while it was started ({_asked_for(text)})")
        text = str(error)
    if backend not in PLANNED or not isinstance(error, BackendError | OptionError) or "visavis plan" in text:
        return error
    certain = _ABOUT_MEMORY.search(text) is not None
    if not certain and (_KILLED not in text or _ENDED_ITSELF in text):
        return error
    words = ["visavis plan", *([] if model is None else ["-m", str(model)]), "--backends", backend]
    if options.tensor_parallel_size > 1:
        words += ["--tensor-parallel-size", str(options.tensor_parallel_size)]
    chosen = _CHOICES.get(backend, "max_model_len, max_num_seqs and kv_cache_bytes")
    why = "this is about memory" if certain else "if memory was short"
    hint = f"{why}: `{' '.join(words)}` says what fits here, and which {chosen} to give"
    return type(error)(f"{hint}. {text}" if "\n" in text else f"{text}; {hint}")
