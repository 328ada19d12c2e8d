"""The native engine: paged KV cache, continuous batching, chunked prefill, its own models. Knows nothing above it."""

from visavis.engine.async_engine import AsyncNativeEngine
from visavis.engine.config import EngineConfig, EngineSettings
from visavis.engine.engine import NativeEngine, StepOutput
from visavis.engine.model_config import ModelConfig
from visavis.engine.statistics import EngineStatistics
from visavis.engine.stream import RequestStream

__all__ = [
    "AsyncNativeEngine",
    "EngineConfig",
    "EngineSettings",
    "EngineStatistics",
    "ModelConfig",
    "NativeEngine",
    "RequestStream",
    "StepOutput",
]
