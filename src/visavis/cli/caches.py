"""Caches of earlier prompts, per backend, and how they are switched off where something is measured."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from visavis.backends.options import EngineOptions

__all__ = ["CACHES_OFF", "switch_off"]

CACHES_OFF: dict[str, dict[str, Any]] = {
    # Only with both off does vLLM also stop using an image's embedding again.
    "vllm": {"enable_prefix_caching": False, "mm_processor_cache_gb": 0},
    "sglang": {"disable_radix_cache": True, "mm_embedding_cache_mb": 0},
    "native": {"enable_prefix_caching": False, "encoder_cache_bytes": 0},
}
"""With them a prompt asked again would cost nothing, and of a new one not its beginning, which the template gives to
all."""


def switch_off(options: EngineOptions, backends: tuple[str, ...]) -> tuple[EngineOptions, tuple[str, ...]]:
    """The options with the caches of these backends off where nothing was said about them; and what was set, in
    words."""
    extra, said = dict(options.extra), []
    for backend in backends:
        for name, value in CACHES_OFF.get(backend, {}).items():
            if name not in options.extra and f"{backend}.{name}" not in options.extra:
                extra[f"{backend}.{name}"] = value
                said.append(f"{backend} {name}={str(value).lower()}")
    return replace(options, extra=extra), tuple(said)
