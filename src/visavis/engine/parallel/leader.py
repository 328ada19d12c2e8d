"""Rank 0's side of a step: the same as alone, told to the other ranks first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch

from visavis.engine.communicator import Communicator
from visavis.engine.config import EngineSettings
from visavis.engine.device_step import Decodes, DeviceStep, Mixed, TakeLogits
from visavis.engine.encoder import VisualRows
from visavis.engine.model_config import ModelConfig
from visavis.engine.models.vision import VisionOutput, VisionTower
from visavis.engine.models.vision_layout import Grid
from visavis.engine.out_of_memory import first_line, is_out_of_memory
from visavis.engine.parallel.messages import Encode
from visavis.engine.share import ModelShare
from visavis.errors import BackendError

__all__ = ["LeadingStep", "LeadingTower", "receive_visual", "too_late_to_back_off"]


class LeadingStep(DeviceStep):
    def __init__(self, share: ModelShare) -> None:
        super().__init__(share.model, share.rope, share.kernels)
        self.config = share.config
        self.settings = share.settings
        self.communicator = share.kernels.communicator

    def decodes(self, step: Decodes) -> torch.Tensor:
        self.communicator.tell(step)
        with too_late_to_back_off():
            return super().decodes(step)

    def mixed(self, step: Mixed, visual: VisualRows | None, take: TakeLogits) -> torch.Tensor | None:
        if visual is not None:
            deepstack = 0 if visual.deepstack is None else visual.deepstack.shape[1]
            step = replace(step, num_visual=visual.rows.shape[0], num_deepstack=deepstack)
        self.communicator.agree(step, self.settings.tokens_bytes(self.config, len(step.token_ids)))
        with too_late_to_back_off():
            for tensor in visual or ():
                if tensor is not None:
                    self.communicator.broadcast(tensor)
            return super().mixed(step, visual, take)


class LeadingTower(VisionTower):
    """A tower that is divided over the ranks."""

    settings: EngineSettings
    model_config: ModelConfig
    communicator: Communicator

    @classmethod
    def of(cls, share: ModelShare) -> LeadingTower:
        """`share`'s tower, which is this one from now on."""
        tower = share.tower
        assert tower is not None
        leading = cls.__new__(cls)
        leading.__dict__ = tower.__dict__
        leading.settings, leading.model_config = share.settings, share.config
        leading.communicator = share.kernels.communicator
        return leading

    def __call__(self, patches: torch.Tensor, grids: Sequence[Grid]) -> VisionOutput:
        rows, columns = patches.shape
        self.communicator.agree(
            Encode(list(grids), (rows, columns)), self.settings.patches_bytes(self.model_config, rows)
        )
        with too_late_to_back_off():
            mine = patches.to(device=self.device, dtype=self.dtype).contiguous()
            return super().__call__(self.communicator.broadcast(mine), grids)


def receive_visual(step: Mixed, share: ModelShare) -> VisualRows | None:
    """On another rank: what `LeadingStep.mixed` broadcasts."""
    n = step.num_visual
    if n == 0:
        return None
    device, dtype, hidden = share.kernels.device, share.kernels.activation_dtype, share.config.hidden_size
    receive = share.kernels.communicator.broadcast
    rows = receive(torch.empty(n, dtype=torch.int64, device=device))
    embeddings = receive(torch.empty((n, hidden), dtype=dtype, device=device))
    if not step.num_deepstack:
        return VisualRows(rows, embeddings, None)
    return VisualRows(
        rows, embeddings, receive(torch.empty((n, step.num_deepstack, hidden), dtype=dtype, device=device))
    )


@contextmanager
def too_late_to_back_off() -> Iterator[None]:
    """The others are in the middle of this step and wait: it cannot be tried again smaller."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise BackendError(
            f"tensor parallel: memory ran out on rank 0 in the middle of a step, which cannot be undone: "
            f"{first_line(error)}; lower max_num_batched_tokens, max_num_seqs or kv_cache_bytes"
        ) from error
