"""What goes over the pipe between rank 0 and a worker. `Decodes` and `Mixed` of `device_step` go as they are."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from visavis.engine.config import EngineSettings
from visavis.engine.model_config import ModelConfig
from visavis.engine.models.vision_layout import Grid

if TYPE_CHECKING:
    from visavis.engine.kernels.cuda.sampling import Mode

__all__ = ["Cache", "Close", "Encode", "Enter", "Failed", "Go", "Join", "Launch", "Loaded", "Ready", "Start"]


# ---- to a worker -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Start:
    """The first one: load this model. `config` and `settings` are of one rank."""

    folder: Path
    config: ModelConfig
    settings: EngineSettings
    rank: int
    threads: int


@dataclass(frozen=True, slots=True)
class Join:
    """Everybody is there: meet the others at this port of this machine."""

    port: int
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Cache:
    num_blocks: int
    max_model_len: int


@dataclass(frozen=True, slots=True)
class Encode:
    """The vision tower over items of these grids; their patches (rows, columns) are broadcast."""

    grids: list[Grid]
    patches: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Enter:
    """Decoding ahead begins for a batch with these block tables: (requests, blocks) int32."""

    tables: Any


@dataclass(frozen=True, slots=True)
class Launch:
    """A decode step ahead of the host: `columns` is what `kernels.cuda.step.COLUMNS` names, int32, flat."""

    size: int
    mode: Mode
    columns: Any


@dataclass(frozen=True, slots=True)
class Go:
    """After work that was agreed on: whether all have the memory for it."""

    go: bool


@dataclass(frozen=True, slots=True)
class Close:
    pass


# ---- from a worker -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ready:
    """Imports are done and the device is there."""


@dataclass(frozen=True, slots=True)
class Loaded:
    kv_blocks: int


@dataclass(frozen=True, slots=True)
class Failed:
    """`kind` is the name of an error of ours, or "" for any other."""

    kind: str
    text: str
