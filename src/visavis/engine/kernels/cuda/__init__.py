"""The engine on an NVIDIA GPU: torch and Triton for prompts, one CUDA graph for a decode step with its sampling."""
