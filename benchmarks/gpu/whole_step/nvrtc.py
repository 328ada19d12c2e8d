"""CUDA C++ compiled at run time: NVIDIA's compiler library, which torch's CUDA wheels bring, and the driver's API."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

__all__ = ["Kernel", "NoCompilerError", "compile_cubin"]

SHARED_BYTES_ATTRIBUTE = 8
VERSIONS = (13, 12)


class NoCompilerError(RuntimeError):
    """No library, or one that refuses the source."""


def _library() -> ctypes.CDLL:
    names = [f"libnvrtc.so.{version}" for version in VERSIONS]
    for folder in map(Path, sys.path):
        names += [str(path) for path in sorted(folder.glob("nvidia/*/lib/libnvrtc.so.*"), reverse=True)]
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise NoCompilerError("libnvrtc was not found beside torch")


def compile_cubin(source: str, constants: Mapping[str, int], architecture: str) -> bytes:
    """Machine code for one architecture (`sm_90`). Raises NoCompilerError with the compiler's log."""
    nvrtc = _library()
    program = ctypes.c_void_p()

    def check(status: int) -> None:
        if status == 0:
            return
        size = ctypes.c_size_t()
        log = b""
        if program and nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size)) == 0 and size.value:
            buffer = ctypes.create_string_buffer(size.value)
            nvrtc.nvrtcGetProgramLog(program, buffer)
            log = buffer.value
        raise NoCompilerError(f"nvrtc error {status}: {log.decode(errors='replace').strip()[:2000]}")

    check(nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"visavis.cu", 0, None, None))
    try:
        options = [f"--gpu-architecture={architecture}", "--std=c++17", *(f"-D{k}={v}" for k, v in constants.items())]
        array = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        check(nvrtc.nvrtcCompileProgram(program, len(options), array))
        size = ctypes.c_size_t()
        check(nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size)))
        code = ctypes.create_string_buffer(size.value)
        check(nvrtc.nvrtcGetCUBIN(program, code))
        return code.raw
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


class Kernel:
    """A function of a module loaded into the current context."""

    def __init__(self, cubin: bytes, name: str, shared_bytes: int) -> None:
        self._driver = ctypes.CDLL("libcuda.so.1")
        self._module, self._function = ctypes.c_void_p(), ctypes.c_void_p()
        self.shared_bytes = shared_bytes
        torch.cuda.current_stream()  # the context exists from here on
        self._check(self._driver.cuModuleLoadData(ctypes.byref(self._module), cubin))
        self._check(self._driver.cuModuleGetFunction(ctypes.byref(self._function), self._module, name.encode()))
        self._check(self._driver.cuFuncSetAttribute(self._function, SHARED_BYTES_ATTRIBUTE, shared_bytes))

    def __call__(self, blocks: int, threads: int, arguments: ctypes.Structure) -> None:
        """A cooperative launch on the current stream: all blocks run at once, or the launch fails."""
        pointers = (ctypes.c_void_p * 1)(ctypes.addressof(arguments))
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        launch: Any = self._driver.cuLaunchCooperativeKernel
        self._check(launch(self._function, blocks, 1, 1, threads, 1, 1, self.shared_bytes, stream, pointers))

    def _check(self, status: int) -> None:
        if status:
            text = ctypes.c_char_p()
            self._driver.cuGetErrorString(status, ctypes.byref(text))
            raise RuntimeError(f"CUDA error {status}: {(text.value or b'').decode()}")
