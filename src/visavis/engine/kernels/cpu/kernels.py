"""`CpuKernels`: torch for prompts and mixed steps, the compiled step for pure decodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from visavis.engine.kernels.base import AttentionRow, WholeStep
from visavis.engine.kernels.cpu.arena import Arena
from visavis.engine.kernels.cpu.decode_step import CpuDecodeStep
from visavis.engine.kernels.torch_kernels import TorchKernels, TorchLinear
from visavis.engine.kv_cache import KVCache

if TYPE_CHECKING:
    from visavis.engine.models.decoder import Decoder
    from visavis.engine.models.rope import RotaryEmbedding

__all__ = ["CpuKernels"]

MAX_COMPILED_BATCH = 32
"""Decodes of more requests at once go through torch, whose products of many rows are as good."""


class CpuKernels(TorchKernels):
    def __init__(self, device: torch.device, dtype: torch.dtype, description: str) -> None:
        super().__init__(device, dtype)
        self.description = description
        self.arena = Arena()

    def empty(self, *shape: int) -> torch.Tensor:
        return self.arena.empty(shape, self.dtype)

    def linear(self, in_features: int, out_features: int, *, bias: bool) -> TorchLinear:
        """Row-major on huge pages: one copy of the weights serves both paths."""
        return TorchLinear(
            self.empty(out_features, in_features), torch.empty(out_features, dtype=self.dtype) if bias else None
        )

    def whole_step(self, model: Decoder, rope: RotaryEmbedding, cache: KVCache, max_batch: int) -> WholeStep:
        return _WholeStep(model, rope, cache, min(max_batch, MAX_COMPILED_BATCH))


class _WholeStep(WholeStep):
    def __init__(self, model: Decoder, rope: RotaryEmbedding, cache: KVCache, max_batch: int) -> None:
        self.max_batch = max_batch
        self.embedding = model.embedding
        self.inv_freq = rope.inv_freq
        self.step = CpuDecodeStep(
            model.config, model.layers, model.norm, model.lm_head, cache, torch.get_num_threads(), max_batch
        )

    def __call__(
        self, token_ids: Sequence[int], positions: Sequence[int], rows: Sequence[AttentionRow]
    ) -> torch.Tensor:
        embedded = self.embedding.index_select(0, torch.tensor(token_ids)).float()
        angles = torch.tensor(positions, dtype=torch.float32)[:, None] * self.inv_freq
        return self.step(embedded, angles.cos(), angles.sin(), rows)

    def close(self) -> None:
        self.step.close()
