"""The sentence at the end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.unit.compare.conftest import Bench


@pytest.mark.parametrize(
    ("per_token", "said"),
    [
        (0.041, "native was 4.1× faster per token"),
        (0.005, "hf was 2.0× faster per token"),
        (0.0102, "they were equally fast per token (within 5 % or the noise)"),
    ],
)
def test_who_was_faster(bench: Bench, per_token: float, said: str) -> None:
    bench.add("native", answers="Settings", per_token_s=0.01, first_token_s=0.01)
    bench.add("hf", answers="Settings", per_token_s=per_token, first_token_s=0.01)
    assert said in bench.run(batch=False).verdict


def test_all_at_once_is_said_apart(bench: Bench) -> None:
    # 5 tokens: 0.1 + 4 · 0.1 = 0.5 s against 0.5 + 4 · 0.5 = 2.5 s, for all three together: 5×
    bench.add("native", answers=[11, 12, 13, 14, 15], per_token_s=0.1, first_token_s=0.1)
    bench.add("hf", answers=[11, 12, 13, 14, 15], per_token_s=0.5, first_token_s=0.5)
    assert bench.run().verdict == (
        "native and hf gave the same tokens on all 3 prompts; "
        "native was 5.0× faster per token and 5.0× with all 3 at once."
    )


def test_one_backend_alone(bench: Bench) -> None:
    # 2 tokens in 0.1 + 0.1 s
    bench.add("native", answers=[11, 12], first_token_s=0.1, per_token_s=0.1)
    assert bench.run(batch=False).verdict == "native answered 3 prompts at 10 tokens/s, one at a time."


def test_kinds_of_differences_are_counted(bench: Bench) -> None:
    bench.add(
        "native", answers={"alpha": [11, 12], "beta": [11, 12], "gamma": [11]}, tops={12: ((12, -0.1), (22, -2.0))}
    )
    bench.add(
        "hf", answers={"alpha": [11, 22], "beta": [11, 12], "gamma": [11, 12]}, tops={22: ((22, -0.1), (12, -2.0))}
    )
    assert "on 1 of 3 prompts (1 real disagreement, 1 answer ended early)" in bench.run().verdict
