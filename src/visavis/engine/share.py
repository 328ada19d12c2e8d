"""`ModelShare`: what one process has of a model on its device; with one process, all of it."""

from __future__ import annotations

from pathlib import Path

from visavis.engine.config import EngineSettings
from visavis.engine.device_step import DeviceStep
from visavis.engine.kernels.base import Kernels
from visavis.engine.kv_cache import KVCache
from visavis.engine.loader import load_weights
from visavis.engine.model_config import ModelConfig
from visavis.engine.models.decoder import Decoder
from visavis.engine.models.rope import RotaryEmbedding
from visavis.engine.models.vision import VisionTower
from visavis.engine.parallel.sharding import vision_places
from visavis.engine.quantization.places import Place

__all__ = ["ModelShare"]


class ModelShare:
    """Loaded when made; `add_cache` then completes it."""

    def __init__(self, folder: Path, config: ModelConfig, settings: EngineSettings, kernels: Kernels) -> None:
        """`config`: of one rank (`sharding.config_of_one`). Raises ModelError for the folder."""
        self.config = config
        self.settings = settings
        self.kernels = kernels
        communicator = kernels.communicator
        self.model = Decoder(config, kernels)
        vision = config.vision
        # A tower that does not divide is rank 0's alone: what comes out of it is sent to the others anyway.
        self.tower = VisionTower(vision, kernels) if vision is not None and communicator.rank < vision.shards else None
        kernels.warm_up(self.model, self.tower)
        places: dict[str, Place] = dict(self.model.weights())
        if self.tower is not None:
            places |= vision_places(self.tower.weights(), self.tower.config, communicator.rank)
        left_out = "visual." if vision is not None and self.tower is None else None
        stored_head = load_weights(folder, places, tied=config.tie_word_embeddings, left_out=left_out)
        if stored_head is not None:
            self.model.lm_head = stored_head[self.model.head_rows]
        kernels.weights_loaded(self.model)
        self.rope = RotaryEmbedding(config.rope, config.head_dim, settings.device, kernels.activation_dtype)
        self.step = DeviceStep(self.model, self.rope, kernels)

    def add_cache(self, num_blocks: int) -> KVCache:
        c, settings = self.config, self.settings
        cache = KVCache(
            c.num_layers,
            num_blocks,
            settings.block_size,
            c.num_kv_heads,
            c.head_dim,
            device=settings.device,
            dtype=settings.dtype,
        )
        self.kernels.bind_cache(cache)
        return cache
