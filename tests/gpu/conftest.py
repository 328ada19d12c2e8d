"""The same tests run on a GPU, or, without one, in Triton's interpreter on small shapes."""

from __future__ import annotations

import importlib.util
import os
from typing import Any

import pytest
import torch

ON_GPU = torch.cuda.is_available()
if not ON_GPU:
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when triton is first imported

WITH_TRITON = importlib.util.find_spec("triton") is not None
if not WITH_TRITON:  # their imports would fail; test_triton.py says so as a skip
    names = ("ahead", "attention", "compile", "engine", "parallel", "products", "quantized", "vision")
    collect_ignore = [f"test_{name}.py" for name in names]


def _mend_interpreter() -> None:
    """What Triton 3.6's interpreter lacks: numpy 2.4 refuses int() of an array of one element, which it does for loop
    bounds, and it multiplies bfloat16 matrices as the integers it keeps them in."""
    import triton.language as tl
    from triton.runtime import interpreter

    original = interpreter._patch_lang_tensor

    def patched(tensor: Any, scope: Any) -> None:
        original(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patched
    builder = interpreter.InterpreterBuilder
    create_dot = builder.create_dot

    def dot(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        a, b = (self.cast_impl(x, tl.float32) if x.dtype.scalar == tl.bfloat16 else x for x in (a, b))
        return create_dot(self, a, b, *rest)

    builder.create_dot = dot


if WITH_TRITON and not ON_GPU:
    _mend_interpreter()


@pytest.fixture(scope="session")
def device() -> torch.device:
    return torch.device("cuda" if ON_GPU else "cpu")


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)
