"""The compiled library's functions and structures, as `kernels.cpp` and `model.h` have them."""

from __future__ import annotations

import ctypes
import os
from ctypes import POINTER, Structure, c_float, c_int, c_int32, c_int64, c_void_p
from functools import cache
from typing import Any, ClassVar

import torch

from visavis.engine.forks import check_process
from visavis.engine.kernels.cpu.build import BuildError, find_library
from visavis.errors import BackendError

__all__ = ["TYPES", "LayerStruct", "LinearStruct", "ModelStruct", "Workers", "library"]

TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.int8: 2}


class LinearStruct(Structure):
    _fields_: ClassVar[Any] = [
        ("weight", c_void_p),
        ("scale", c_void_p),
        ("bias", c_void_p),
        ("n", c_int32),
        ("k", c_int32),
        ("dtype", c_int32),
        ("pad", c_int32),
    ]


class LayerStruct(Structure):
    _fields_: ClassVar[Any] = [
        *((name, LinearStruct) for name in ("qkv", "output", "gate_up", "down")),
        *((name, c_void_p) for name in ("input_norm", "mlp_norm", "q_norm", "k_norm", "k_cache", "v_cache")),
    ]


class ModelStruct(Structure):
    _fields_: ClassVar[Any] = [
        ("layers", POINTER(LayerStruct)),
        ("lm_head", LinearStruct),
        ("final_norm", c_void_p),
        *(
            (name, c_int32)
            for name in (
                "num_layers",
                "hidden",
                "heads",
                "kv_heads",
                "head_dim",
                "intermediate",
                "kv_dtype",
                "block_size",
            )
        ),
        *((name, c_int64) for name in ("block_stride", "token_stride", "head_stride")),
        ("eps", c_float),
        ("scale", c_float),
        ("max_batch", c_int32),
        ("pad", c_int32),
    ]


def _refuse(lacks_memory: int) -> None:
    if lacks_memory:
        raise MemoryError("no memory for what the compiled kernels need in this step")


_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "workers_new": (c_void_p, [c_int, c_int]),
    "workers_free": (None, [c_void_p]),
    "panel": (c_int, []),
    "pack": (None, [c_void_p, c_void_p, c_int, c_int, c_int]),
    "rows": (None, [POINTER(LinearStruct), c_void_p, c_int, c_void_p]),
    "rounds": (c_int, [c_int, c_int]),
    "product": (None, [c_void_p, POINTER(LinearStruct), c_void_p, c_int64, c_int, c_void_p, c_int64, c_int]),
    "decode_new": (c_void_p, [POINTER(ModelStruct), c_void_p]),
    "decode_free": (None, [c_void_p]),
    "decode_step": (_refuse, [c_void_p, c_int, *[c_void_p] * 4, c_int, *[c_void_p] * 2]),
    "decode_attention": (_refuse, [c_void_p, c_int, c_int, c_void_p, c_int64, c_void_p, c_int, *[c_void_p] * 2]),
    "store": (None, [c_void_p, c_int, c_void_p, c_int64, c_int, c_void_p]),
    "prompt_attention": (_refuse, [c_void_p, c_int, c_void_p, c_int64, c_int, c_int, *[c_void_p] * 2]),
    "prompt_before": (_refuse, [c_void_p, c_int, c_int, *[c_void_p] * 5]),
    "prompt_after": (_refuse, [c_void_p, c_int, c_int, *[c_void_p] * 2]),
    "prompt_bytes": (c_int64, [c_void_p]),
    "prompt_rounds": (c_int, [c_int, c_int]),
    "rms_norm": (None, [c_void_p, c_void_p, c_int64, c_int, c_int, c_int, c_void_p, c_float, c_void_p, c_int64]),
    "rotate": (None, [c_void_p, c_void_p, c_int64, c_int, c_int, c_int, *[c_void_p] * 2]),
    "silu_mul": (None, [c_void_p, c_void_p, c_int, c_int, c_void_p]),
    "best": (None, [c_void_p, c_void_p, c_int, c_int64, *[c_void_p] * 2]),
    "layer_norm": (None, [c_void_p, c_void_p, c_int, c_int, *[c_void_p] * 2, c_float, c_void_p]),
    "activate": (None, [c_void_p, c_int, c_void_p, c_int64]),
    "vision_new": (c_void_p, [c_void_p, c_int, c_int]),
    "vision_free": (None, [c_void_p]),
    "vision_attention": (_refuse, [c_void_p, *[c_void_p] * 2, c_int, c_void_p]),
    "sizes": (c_int, [c_int]),
}


@cache
def library() -> ctypes.CDLL:
    """Builds it the first time on a machine. Raises BuildError when it cannot be had."""
    path = find_library()
    try:
        made = ctypes.CDLL(str(path))
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(made, f"visavis_{name}")
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError) as error:
        raise BuildError(f"{path} cannot be loaded: {error}; remove it to have it built anew") from None
    sizes = [made.visavis_sizes(i) for i in range(3)]
    if sizes != [ctypes.sizeof(s) for s in (ModelStruct, LayerStruct, LinearStruct)]:
        raise BuildError(f"{path} lays its structures out otherwise: {sizes}; remove it to have it built anew")
    return made


class Workers:
    """The threads of one engine. They belong to the process that made them."""

    def __init__(self, threads: int, num_layers: int) -> None:
        self.threads = threads
        self._library = library()
        self._process = os.getpid()
        self._handle = self._library.visavis_workers_new(threads, num_layers)
        if not self._handle:
            raise BackendError(f"no memory or threads for the compiled kernels ({threads} threads); ask for fewer")

    @property
    def here(self) -> bool:
        """Whether this process has the threads; a forked child does not."""
        return self._process == os.getpid()

    @property
    def handle(self) -> int:
        self.check()
        return int(self._handle)

    def check(self) -> None:
        """Raises where a job would find no threads."""
        check_process(self._process)
        if self._handle is None:
            raise BackendError("the engine is closed")

    def close(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None and self.here:  # a forked child has no threads to end, and would wait for them
            self._library.visavis_workers_free(handle)

    def __del__(self) -> None:
        if getattr(self, "_handle", None) is not None:
            self.close()
