"""`DeviceStep`: a step as plain numbers, run on the device. What every rank does, whether it schedules or follows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from visavis.engine.kernels.base import AttentionRow, Kernels, StepLayout
from visavis.engine.models.decoder import Decoder
from visavis.engine.models.rope import RotaryEmbedding
from visavis.engine.transfer import send

if TYPE_CHECKING:
    from visavis.engine.encoder import VisualRows

__all__ = ["Decodes", "DeviceStep", "Mixed", "TakeLogits"]

TakeLogits = Callable[[int, torch.Tensor], None]
"""Takes the logits (rows, vocab) of one of `Mixed.more_logits`, by its number."""


@dataclass(slots=True)
class Decodes:
    """One new token of each request."""

    token_ids: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)  # rotary, the same on every axis
    slots: list[int] = field(default_factory=list)  # of the cache, where the token's keys and values go
    rows: list[AttentionRow] = field(default_factory=list)


@dataclass(slots=True)
class Mixed:
    """Decodes first, then chunks of prompts; lists and `positions` are about all their tokens."""

    token_ids: list[int]
    positions: npt.NDArray[np.int64]  # (axes, tokens)
    slots: list[int]
    decodes: list[AttentionRow]
    prefills: list[AttentionRow]
    sampled_rows: list[int]  # tokens whose logits are wanted for sampling
    more_logits: list[tuple[int, int]]  # ranges of tokens whose logits are wanted beside, one range after the other
    num_visual: int = 0  # visual tokens among them
    num_deepstack: int = 0  # features of each visual token that are added behind layers


class DeviceStep:
    def __init__(self, model: Decoder, rope: RotaryEmbedding, kernels: Kernels) -> None:
        self.model = model
        self.rope = rope
        self.kernels = kernels
        self.device = kernels.device

    def decodes(self, step: Decodes) -> torch.Tensor:
        """→ (requests, vocab) float32."""
        packed = send(torch.tensor([step.token_ids, step.positions, step.slots]), self.device)  # one transfer
        rotation = self.rope.rows(packed[1], max(step.positions))
        plan = self.kernels.plan(StepLayout(packed[2], decodes=step.rows))
        hidden = self.model(self.model.embed(packed[0]), rotation, plan)
        return self.model.logits(hidden)

    def mixed(self, step: Mixed, visual: VisualRows | None, take: TakeLogits) -> torch.Tensor | None:
        """→ (sampled rows, vocab) float32; None where there are none."""
        packed = send(torch.tensor([step.token_ids, step.slots]), self.device)
        rotation = self.rope(send(torch.from_numpy(np.ascontiguousarray(step.positions)), self.device))
        plan = self.kernels.plan(StepLayout(packed[1], step.decodes, step.prefills))
        embedded = self.model.embed(packed[0])
        deepstack = None
        if visual is not None:
            embedded.index_copy_(0, visual.rows, visual.embeddings)
            if visual.deepstack is not None:
                deepstack = (visual.rows, visual.deepstack)
        hidden = self.model(embedded, rotation, plan, deepstack)
        for number, (start, stop) in enumerate(step.more_logits):
            take(number, self.model.logits(hidden[start:stop]))
        if not step.sampled_rows:
            return None
        return self.model.logits(hidden[send(torch.tensor(step.sampled_rows), self.device)])
