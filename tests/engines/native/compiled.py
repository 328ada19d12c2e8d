"""Skips a test module where the compiled CPU kernels cannot be had."""

from __future__ import annotations

import pytest

from visavis.engine.kernels.cpu.build import BuildError, find_library

__all__ = ["need_compiled_kernels"]


def need_compiled_kernels() -> None:
    try:
        find_library()
    except BuildError as error:
        pytest.skip(f"no compiled CPU kernels here: {error}", allow_module_level=True)
