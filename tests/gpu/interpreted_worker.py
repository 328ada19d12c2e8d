"""The worker of a tensor-parallel rank on the GPU kernels in Triton's interpreter, on CPU memory; run as a module."""

from __future__ import annotations

import sys

import tests.gpu.conftest  # noqa: F401 (which sets and mends the interpreter)
from visavis.engine.kernels.cuda.kernels import CudaKernels
from visavis.engine.parallel import worker

worker.choose_kernels = lambda config, settings: CudaKernels(settings.device, settings.dtype, "interpreted")

if __name__ == "__main__":
    worker.main(sys.argv[1:])
