from __future__ import annotations

import pytest

from tests.gpu.conftest import WITH_TRITON


def test_kernels_can_be_tested_here() -> None:
    if not WITH_TRITON:
        pytest.skip(
            "triton is not installed, so no GPU kernel was compiled or interpreted: pip install 'visavis[triton]'"
        )
