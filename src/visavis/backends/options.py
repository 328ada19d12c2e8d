"""One vocabulary of engine options, whatever the engine."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

__all__ = ["DType", "EngineOptions"]

DType = Literal["auto", "float32", "bfloat16", "float16"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """None means "the engine's choice, shown in `LoadInfo.settings`". What a backend cannot do it refuses by name."""

    dtype: DType = "auto"  # auto: the checkpoint's on a GPU, float32 on a CPU
    device: str = "auto"  # auto: cuda when there is one, else cpu; "cuda:1", "cpu", "mps"; hf also takes a device_map
    threads: int | None = None  # CPU threads
    max_model_len: int | None = None  # tokens of prompt and answer together
    max_num_seqs: int | None = None  # requests running at once
    max_num_batched_tokens: int | None = None  # tokens per step
    kv_cache_bytes: int | None = None
    gpu_memory_utilization: float | None = None
    tensor_parallel_size: int = 1
    quantization: str | None = None
    enforce_eager: bool = False
    seed: int = 0
    trust_remote_code: bool = False
    extra: dict[str, Any] = field(default_factory=dict)  # engine-specific, refused when unknown
