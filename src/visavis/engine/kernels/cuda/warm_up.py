"""`WarmUp`: kernels compiled and loaded by threads of their own while weights come in and the first prompt is computed.

Each piece is launched once as the engine will launch it, on memory whose content does not matter (weights that are not
there yet) and on a stream of its own. With the kernels in Triton's cache on disk that takes a moment, without them some
seconds, in which the device would have nothing to do.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from visavis.engine.kernels.base import AttentionRow, StepLayout
from visavis.engine.kernels.cuda.sampling import GREEDY
from visavis.engine.kv_cache import KVCache
from visavis.engine.models.rope import RotaryEmbedding
from visavis.errors import shorten
from visavis.prompt import PatchRule, PreparedMedia, Span

if TYPE_CHECKING:
    from visavis.engine.kernels.cuda.kernels import CudaKernels
    from visavis.engine.kernels.cuda.step import DecodeStep
    from visavis.engine.models.decoder import Decoder
    from visavis.engine.models.vision import VisionTower

__all__ = ["WarmUp"]

THREADS = 4
PROMPTS = (16, 128)
"""Tokens: attention has one kernel for short chunks and one for long ones."""
CELLS = 8
"""A side of the picture: more than a window, so that attention is launched for windows and for whole frames."""


class WarmUp:
    def __init__(self, device: torch.device, threads: int = THREADS) -> None:
        self.device = device
        self.errors: list[BaseException] = []
        self._pool = ThreadPoolExecutor(threads, "visavis-warm")
        self._jobs: list[Future[None]] = []

    def add(self, job: Callable[[], None]) -> None:
        self._jobs.append(self._pool.submit(self._run, job))

    def wait(self) -> None:
        """Until all is done. A job that failed is told of; what it was to warm will fail, or not, when it is needed."""
        if not self._jobs:
            return
        for job in self._jobs:
            job.result()
        self._jobs.clear()
        self._pool.shutdown()
        for error in self.errors:
            said = shorten(f"{type(error).__name__}: {error}", 200)
            warnings.warn(f"native: a kernel could not be made ready beforehand: {said}", stacklevel=2)

    def _run(self, job: Callable[[], None]) -> None:
        try:
            with torch.inference_mode():
                if self.device.type != "cuda":
                    job()
                    return
                with torch.cuda.device(self.device), torch.cuda.stream(torch.cuda.Stream(self.device)):
                    job()
                    torch.cuda.current_stream().synchronize()
        except Exception as error:
            self.errors.append(error)

    # ---- the jobs ----------------------------------------------------------------------------------------------

    def prompts(self, kernels: CudaKernels, model: Decoder) -> None:
        """One layer over short and long prompts, and the head."""
        for tokens in PROMPTS:
            self.add(lambda tokens=tokens: _prompt(copy.copy(kernels), model, tokens))  # type: ignore[misc]

    def pictures(self, tower: VisionTower) -> None:
        """One layer of the tower, from pixels to embeddings."""
        self.add(lambda: _picture(tower))

    def decoding(self, step: DecodeStep) -> None:
        """The decode step of a single request."""

        def job() -> None:
            step.fill_with_holes(1)
            step(1, GREEDY)

        self.add(job)


def _prompt(kernels: CudaKernels, model: Decoder, tokens: int) -> None:
    c = model.config
    blocks = -(-tokens // 16)
    kernels.bind_cache(KVCache(1, blocks, 16, c.num_kv_heads, c.head_dim, device=kernels.device, dtype=kernels.dtype))
    layer = copy.copy(model.layers[0])
    layer.kernels = kernels
    layer.index = 0
    rope = RotaryEmbedding(c.rope, c.head_dim, kernels.device, kernels.activation_dtype)
    positions = torch.zeros((c.rope.num_axes, tokens), dtype=torch.int64, device=kernels.device)
    slots = torch.arange(tokens, device=kernels.device)
    plan = kernels.plan(StepLayout(slots, prefills=[AttentionRow(0, 0, tokens, list(range(blocks)))]))
    x = model.embed(torch.zeros(tokens, dtype=torch.int64, device=kernels.device))
    model.logits(layer(x, rope(positions), plan)[-1:])


def _picture(tower: VisionTower) -> None:
    config = tower.config
    rule = PatchRule(config.patch_size, config.merge_size, config.temporal_patch_size, (0.5,) * 3, (0.5,) * 3)
    side = CELLS * config.merge_size
    size = (side * config.patch_size, side * config.patch_size)
    pixels = np.zeros((*size, 3), dtype=np.uint8)
    grid = (1, side, side)
    item = PreparedMedia("image", pixels, size, size, grid, CELLS**2, Span(0, 0), Span(0, 0), "")
    short = copy.copy(tower)
    short.blocks = tower.blocks[:1]
    if config.window_size:  # the same layer once within windows, once over the frame
        short.blocks = tower.blocks[:1] * 2
        short.config = replace(config, full_attention_layers=frozenset({1}))
    for _ in range(2):  # a second frame of the same size may be attended to by other means
        short(tower.ops.patches([item], [rule]), [grid])
