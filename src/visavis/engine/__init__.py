"""The native engine: paged KV cache, continuous batching, chunked prefill, its own models. Knows nothing above it."""

from visavis.engine.config import EngineConfig, EngineSettings
from visavis.engine.engine import NativeEngine, StepOutput
from visavis.engine.model_config import ModelConfig

__all__ = ["EngineConfig", "EngineSettings", "ModelConfig", "NativeEngine", "StepOutput"]
