"""Decoding ahead with several ranks: the same launches with sums over ranks among them, and rank 0's tokens for all."""

from __future__ import annotations

from typing import Any

import torch

from visavis.engine.communicator import Communicator
from visavis.engine.kernels.cuda.ahead import AheadDecoder
from visavis.engine.kernels.cuda.sampling import Mode
from visavis.engine.kernels.cuda.step import DecodeStep
from visavis.engine.kernels.triton.launch import Launcher
from visavis.engine.kv_cache import KVCache
from visavis.engine.models.decoder import Decoder
from visavis.engine.models.rope import RotaryEmbedding
from visavis.engine.parallel.leader import too_late_to_back_off
from visavis.engine.parallel.messages import Enter, Launch

__all__ = ["ParallelAhead", "ParallelDecodeStep"]


class ParallelDecodeStep(DecodeStep):
    def __init__(
        self,
        model: Decoder,
        rope: RotaryEmbedding,
        cache: KVCache,
        launcher: Launcher,
        seats: int,
        max_model_len: int,
        communicator: Communicator,
    ) -> None:
        super().__init__(model, rope, cache, launcher, seats, max_model_len)
        self.communicator = communicator
        count = model.lm_head.shape[0]
        device = launcher.device
        self.part = torch.empty((seats, count), device=device)  # logits of this rank's tokens, and of all ranks
        self.parts = torch.empty((communicator.size * seats, count), device=device)
        if self.rounded is not None:
            self.rounded = torch.empty((seats, count), device=device, dtype=self.rounded.dtype)
        self.sampling = _FirstSamples(self.sampling, communicator)  # type: ignore[assignment]

    def _product(
        self,
        kind: str,
        x: torch.Tensor,
        weight: Any,
        bias: torch.Tensor | None,
        out: torch.Tensor,
        *,
        residual: bool = False,
        then: Any = None,
        **rest: Any,
    ) -> None:
        """`then`: not of use, as a result is whole only after its sum."""
        collectives = self.communicator.collectives
        assert collectives is not None
        if residual:  # as `SummedLinear`
            first = self.communicator.rank == 0
            super()._product(kind, x, weight, bias if first else None, out, residual=first, **rest)
            collectives.all_reduce(out)
        elif kind == "lm_head":
            rows = out.shape[0]
            part = self.part[:rows]
            super()._product(kind, x, weight, bias, part, **rest)
            first_only = out if self.communicator.rank == 0 else None
            collectives.join_into(first_only, part, self.parts[: self.communicator.size * rows])
        else:
            super()._product(kind, x, weight, bias, out, **rest)


class _FirstSamples:
    """Rank 0 samples, and the tokens go to all, on the device."""

    def __init__(self, sampling: Any, communicator: Communicator) -> None:
        self._sampling = sampling
        self._communicator = communicator
        self.enter = sampling.enter

    def __call__(self, logits: torch.Tensor, sampled: torch.Tensor, *rest: Any) -> None:
        if self._communicator.rank == 0:
            self._sampling(logits, sampled, *rest)
        self._communicator.broadcast(sampled)


class ParallelAhead(AheadDecoder):
    """Rank 0 tells the others what it launches; they are told, and launch the same."""

    step: ParallelDecodeStep

    def enter(self, tables: torch.Tensor) -> None:
        self.step.communicator.tell(Enter(tables.numpy()))
        super().enter(tables)

    def start(self, size: int, mode: Mode, columns: torch.Tensor) -> None:
        self.step.communicator.tell(Launch(size, mode, columns.numpy()))
        with too_late_to_back_off():
            super().start(size, mode, columns)
