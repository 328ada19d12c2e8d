"""`EngineConfig`: what a user may set, and `EngineSettings`: what is then in force for one model."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from visavis.engine.model_config import ModelConfig
from visavis.engine.quantization.scheme import AT_LOAD, CHECKPOINTS, Scheme
from visavis.errors import OptionError, shorten
from visavis.machine import available_memory

__all__ = ["EngineConfig", "EngineSettings", "free_memory", "gib"]

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

KERNELS = ("auto", "torch", "compiled")
DEFAULT_MAX_NUM_SEQS = 64
DEFAULT_MAX_NUM_BATCHED_TOKENS = 4096
GPU_FACTOR = 4
"""A GPU takes so many times the requests and tokens a step by default."""
DEFAULT_ENCODER_CACHE_BYTES = 256 << 20
"""Sixteen screens of 1920×1080 for a 2B model in float32: 2,691 tokens of 1,536 values each."""
CPU_MEMORY_SHARE = 0.25
"""Of the memory free at start, the most the KV cache takes on a CPU when no budget is given."""
GPU_MEMORY_SHARE = 0.95
"""Of the memory free after the weights, what KV cache and largest step share on a GPU when no budget is given."""
_KNOWS_SHARE = hasattr(torch.cuda, "get_per_process_memory_fraction")  # from torch 2.8 on
MAX_PATCHES_PER_PASS = 16384
"""Bounds the vision tower's activations; a single larger item still goes through in one pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """None means "derived"; see `resolve`. Sizes in tokens unless the name says bytes."""

    device: str = "auto"  # auto: cuda when there is one, else cpu
    dtype: str = "auto"  # auto: the checkpoint's on a GPU, float32 on a CPU
    block_size: int = 16  # tokens per KV block
    num_blocks: int | None = None
    kv_cache_bytes: int | None = None
    max_num_seqs: int | None = None  # requests running at once
    max_num_batched_tokens: int | None = None  # tokens per step
    max_model_len: int | None = None  # tokens of prompt and answer together
    threads: int | None = None  # CPU threads, for the whole process (torch has one pool)
    enable_prefix_caching: bool = True  # beginnings computed before are read from the KV cache
    encoder_cache_bytes: int = DEFAULT_ENCODER_CACHE_BYTES  # outputs of the vision tower kept for later; 0: none
    quantization: str | None = None  # int8 and int4 are made at load; awq and gptq are what a checkpoint has, or not
    kernels: str = "auto"  # auto, torch (the plain reference), or compiled (an error where that cannot be had)
    enforce_eager: bool = False  # no CUDA graphs: each kernel of a decode step is launched by itself
    tensor_parallel_size: int = 1  # GPUs that share the model; on a CPU processes

    def resolve(self, model: ModelConfig) -> EngineSettings:
        """Fills in what was not said. Raises OptionError for values out of range or at odds with each other."""
        for name in ("block_size", "num_blocks", "kv_cache_bytes", "max_num_seqs", "max_num_batched_tokens"):
            _check_positive(name, getattr(self, name))
        _check_positive("max_model_len", self.max_model_len)
        _check_positive("threads", self.threads)
        _check_positive("tensor_parallel_size", self.tensor_parallel_size)
        if self.kernels not in KERNELS:
            raise OptionError(f"kernels {shorten(self.kernels)} is not known; give {', '.join(KERNELS)}")
        _check_positive("encoder_cache_bytes", self.encoder_cache_bytes, least=0)
        _check_bool("enable_prefix_caching", self.enable_prefix_caching)
        _check_bool("enforce_eager", self.enforce_eager)
        if self.num_blocks is not None and self.kv_cache_bytes is not None:
            raise OptionError("num_blocks and kv_cache_bytes both size the KV cache; give one of them")
        device = _device(self.device)
        if self.tensor_parallel_size > 1:
            device = _first_of(device, self.tensor_parallel_size)
        max_model_len = self.max_model_len or model.max_position
        if max_model_len > model.max_position:
            raise OptionError(
                f"max_model_len {max_model_len} is more than the model's context of {model.max_position} tokens"
            )
        many = GPU_FACTOR if device.type == "cuda" else 1
        budget = self.max_num_batched_tokens or max(many * DEFAULT_MAX_NUM_BATCHED_TOKENS, self.max_num_seqs or 0)
        max_num_seqs = self.max_num_seqs or min(many * DEFAULT_MAX_NUM_SEQS, budget)
        if max_num_seqs > budget:
            # Every running request must get its one token in each step, or the oldest would starve the rest.
            raise OptionError(
                f"max_num_seqs {max_num_seqs} is more than max_num_batched_tokens {budget}: "
                "lower the first or raise the second"
            )
        return EngineSettings(
            device=device,
            dtype=_dtype(self.dtype, device, model),
            dtype_asked=self.dtype != "auto",
            block_size=self.block_size,
            num_blocks=self.num_blocks,
            kv_cache_bytes=self.kv_cache_bytes,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=budget,
            steps_asked=self.max_num_seqs is not None or self.max_num_batched_tokens is not None,
            max_model_len=max_model_len,
            max_model_len_asked=self.max_model_len is not None,
            threads=self.threads,
            enable_prefix_caching=self.enable_prefix_caching,
            encoder_cache_bytes=self.encoder_cache_bytes,
            scheme=_scheme(self.quantization, model.quantization),
            kernels=self.kernels,
            enforce_eager=self.enforce_eager,
            tensor_parallel_size=self.tensor_parallel_size,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """Every effective value but the number of KV blocks, which waits until the weights are in memory."""

    device: torch.device
    dtype: torch.dtype
    block_size: int
    num_blocks: int | None
    kv_cache_bytes: int | None
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    max_model_len_asked: bool
    threads: int | None
    enable_prefix_caching: bool
    encoder_cache_bytes: int
    scheme: Scheme | None  # what the decoder's matrices are in; None: `dtype`
    kernels: str
    enforce_eager: bool
    tensor_parallel_size: int = 1
    dtype_asked: bool = False
    steps_asked: bool = False  # max_num_seqs or max_num_batched_tokens

    @property
    def quantization(self) -> str | None:
        return None if self.scheme is None else self.scheme.method

    def step_bytes(self, model: ModelConfig) -> int:
        """About what the largest step takes on a GPU beside weights and cache: its activations, and logits twice."""
        logits = self.max_num_seqs * model.vocab_size * (2 * 4 + self.dtype.itemsize)
        tokens = self.tokens_bytes(model, self.max_num_batched_tokens)
        return tokens + logits + self.patches_bytes(model, MAX_PATCHES_PER_PASS)

    def tokens_bytes(self, model: ModelConfig, tokens: int) -> int:
        """About the activations of so many tokens in the decoder."""
        heads = (model.num_heads + 2 * model.num_kv_heads) * model.head_dim
        return tokens * self.dtype.itemsize * (3 * model.intermediate_size + 2 * heads + 5 * model.hidden_size)

    def patches_bytes(self, model: ModelConfig, patches: int) -> int:
        """About the activations of so many patches in the vision tower."""
        tower = model.vision
        if tower is None:
            return 0
        return patches * self.dtype.itemsize * (2 * tower.intermediate_size + 8 * tower.hidden_size)

    def block_bytes(self, model: ModelConfig) -> int:
        return model.kv_values_per_token * self.dtype.itemsize * self.block_size

    def kv_blocks(self, model: ModelConfig) -> int:
        """How many KV blocks to make: as asked, or what all requests at full length need, within the memory there is.

        Raises OptionError when not even one request of `max_model_len` fits and that length was asked for.
        """
        per_block = self.block_bytes(model)
        per_request = -(-self.max_model_len // self.block_size)
        there = free_memory(self.device)
        if self.device.type == "cpu":  # which all ranks share
            there //= self.tensor_parallel_size
        asked = self.kv_cache_bytes if self.num_blocks is None else self.num_blocks * per_block
        if asked is not None and asked > there:
            name = f"kv_cache_bytes {asked}" if self.num_blocks is None else f"num_blocks {self.num_blocks}"
            raise OptionError(
                f"{name} ({gib(asked)}) is more than the {gib(there)} of memory there are for this process on "
                f"{self.device}, weights loaded: ask for less, or leave it out"
            )
        if self.num_blocks is not None:
            blocks = self.num_blocks
        else:
            if self.kv_cache_bytes is not None:
                budget = self.kv_cache_bytes
            elif self.device.type == "cuda":
                budget = max(int(there * GPU_MEMORY_SHARE) - self.step_bytes(model), 0)
            else:
                budget = int(there * CPU_MEMORY_SHARE)
            blocks = min(budget // per_block, per_request * self.max_num_seqs)
        if blocks < 1:
            raise OptionError(f"the KV cache has no room for one block: {per_block} bytes are needed; raise the budget")
        if blocks < per_request and self.max_model_len_asked:
            fits = blocks * self.block_size
            raise OptionError(
                f"max_model_len {self.max_model_len} needs {per_request * per_block} bytes of KV cache and there is "
                f"room for {blocks * per_block}: set max_model_len to {fits} or less, or raise kv_cache_bytes"
            )
        return int(blocks)


def _check_positive(name: str, value: int | None, least: int = 1) -> None:
    if value is None:
        return
    if not isinstance(value, int) or isinstance(value, bool):  # engine-specific options come as they were written
        raise OptionError(f"{name} {shorten(value)} is not valid: a whole number is needed")
    if value < least:
        raise OptionError(f"{name} {value} is out of range: {least} or more")


def _check_bool(name: str, value: bool) -> None:
    if not isinstance(value, bool):
        raise OptionError(f"{name} {shorten(value)} is not valid: true or false is needed")


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise OptionError(f"device {shorten(name)} is not known; give cpu, cuda or cuda:N") from None
    if device.type not in ("cpu", "cuda"):
        raise OptionError(f"the native engine runs on cpu and cuda, not on {shorten(name)}; try --backend hf")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise OptionError(f"device {name} was asked for and this machine has no usable CUDA device; use cpu")
    count = torch.cuda.device_count() if device.type == "cuda" else 1
    if device.index is not None and device.index >= count:
        raise OptionError(f"device {name} was asked for and the last one of this machine is {device.type}:{count - 1}")
    return device


def _first_of(device: torch.device, size: int) -> torch.device:
    """Rank 0's, where `size` ranks have one each: a GPU, the other ranks those behind it, or the CPU."""
    if device.type == "cpu":
        return device
    if device.index is not None:
        raise OptionError(
            f"device {device} is one GPU and tensor_parallel_size is {size}; give device cuda, and choose the GPUs "
            "with CUDA_VISIBLE_DEVICES"
        )
    visible = torch.cuda.device_count()
    if visible < size:
        raise OptionError(
            f"tensor_parallel_size {size} needs {size} GPUs, {visible} {'is' if visible == 1 else 'are'} visible"
        )
    return torch.device("cuda", 0)


def _dtype(name: str, device: torch.device, model: ModelConfig) -> torch.dtype:
    if name == "auto":
        name = "float32" if device.type == "cpu" else (model.checkpoint_dtype or "bfloat16").removeprefix("torch.")
    if name not in DTYPES:
        raise OptionError(f"dtype {shorten(name)} is not known; give auto, {', '.join(DTYPES)}")
    return DTYPES[name]


def _scheme(asked: str | None, stored: Scheme | None) -> Scheme | None:
    if asked is None:
        return stored
    if asked not in (*AT_LOAD, *CHECKPOINTS):
        raise OptionError(
            f"quantization {shorten(asked)} is not known to the native engine; it makes {' and '.join(AT_LOAD)} at "
            f"load and reads {' and '.join(CHECKPOINTS)} checkpoints"
        )
    if stored is not None:
        if asked != stored.method:
            raise OptionError(f"quantization {asked} was asked for and the checkpoint is {stored.method}: leave it out")
        return stored
    if asked in CHECKPOINTS:
        raise OptionError(
            f"quantization {asked} was asked for and the checkpoint's config.json declares none: name an {asked} "
            f"checkpoint, or let the engine make {' or '.join(AT_LOAD)} weights"
        )
    return Scheme.at_load(asked)


def free_memory(device: torch.device) -> int:
    """Bytes this process may still take: what is free, within the share of a GPU it was told to keep to."""
    if device.type != "cuda":
        return available_memory()
    free, total = torch.cuda.mem_get_info(device)
    index = torch.cuda.current_device() if device.index is None else device.index  # which the next call insists on
    share = torch.cuda.get_per_process_memory_fraction(index) if _KNOWS_SHARE else 1.0
    return max(0, min(free, int(share * total) - torch.cuda.memory_reserved(device)))


def gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:,.1f} GiB" if num_bytes >= 1 << 29 else f"{num_bytes / 2**20:,.1f} MiB"
