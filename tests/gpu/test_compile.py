"""Every launch of the engine compiles for the cards people have, within their shared memory, and spills little."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

SMALL = 99 << 10
"""Bytes of shared memory a block may have on compute capability 8.6 and 8.9; 8.0 has 163 KiB, 9.0 has 227."""


@pytest.mark.parametrize("capability", [80, 86, 89, 90])
def test_kernels_compile_for(capability: int) -> None:
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "tests.gpu.compile_targets", str(capability), "--quick"]
    run = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    assert run.returncode == 0, run.stderr[-3000:]
    kernels = [json.loads(line) for line in run.stdout.splitlines()]
    names = {k["kernel"] for k in kernels}
    assert {"gemv_kernel", "skinny_kernel", "decode_attention_kernel", "prefill_attention_kernel"} <= names
    assert {"patch_kernel", "join_norm_kernel", "quick_gelu_kernel"} <= names
    assert {"gemv_rows_kernel", "tile_kernel", "dequantize_kernel"} <= names
    assert "gemv_joined_kernel" in names
    folds = [k["constants"] for k in kernels if k["kernel"] == "skinny_kernel"]
    assert any(c["FOLD"] for c in folds)
    assert any(c["FOLDED"] for c in folds)
    assert {c["M_PAD"] for c in folds} == {16, 64}
    for kernel in kernels:
        assert capability == 90 or kernel["shared"] <= SMALL, kernel
        assert capability == 90 or not kernel["constants"].get("PDL"), kernel
