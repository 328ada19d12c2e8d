"""`DecodeGraphs`: a CUDA graph of the decode step for each batch size and way of sampling, captured when needed."""

from __future__ import annotations

from contextlib import suppress

import torch

from visavis.engine.kernels.cuda.sampling import Mode
from visavis.engine.kernels.cuda.step import DecodeStep

__all__ = ["DecodeGraphs"]

SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)


class DecodeGraphs:
    """Without `capture`, and in Triton's interpreter, every step is launched piece by piece."""

    def __init__(self, step: DecodeStep, *, capture: bool = True) -> None:
        self.step = step
        self.sizes = [*(size for size in SIZES if size < step.seats), step.seats]
        self._graphs: dict[tuple[int, Mode], torch.cuda.CUDAGraph] = {}
        self._captures = capture and step.launcher.gpu
        if self._captures:
            self._stream = torch.cuda.Stream(step.launcher.device)
            self._pool = torch.cuda.graph_pool_handle()

    def size_for(self, requests: int) -> int:
        return next(size for size in self.sizes if size >= requests)

    def prepare(self, size: int, mode: Mode) -> None:
        """Captures the graph where there is none. Disturbs the step's inputs, not what is kept between steps."""
        if not self._captures or (size, mode) in self._graphs:
            return
        step = self.step
        held = step.sampled.clone()
        step.fill_with_holes(size)
        step(size, mode)  # compiles and loads whatever is new, which a capture may not
        graph = torch.cuda.CUDAGraph()
        # By hand: `torch.cuda.graph` collects garbage and empties the allocator's cache each time.
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            # Other threads (NCCL's, those that make patches) may call the driver meanwhile.
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                step(size, mode)
            except BaseException:
                with suppress(RuntimeError):  # of the capture that broke off; what broke it is raised
                    graph.capture_end()
                raise
            graph.capture_end()
        torch.cuda.current_stream().wait_stream(self._stream)
        step.sampled.copy_(held)
        self._graphs[size, mode] = graph

    def run(self, size: int, mode: Mode) -> None:
        """The step, for the inputs that are in place."""
        if self._captures:
            self._graphs[size, mode].replay()
        else:
            self.step(size, mode)
