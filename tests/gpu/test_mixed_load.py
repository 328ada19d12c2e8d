"""The row of prompts that arrive while others decode, on a tiny model."""

from __future__ import annotations

import pytest

from benchmarks.gpu.mixed_load import floors
from benchmarks.gpu.run import ROWS, run_row, start


def test_decoders_and_arrivals_are_told_apart() -> None:
    row = ROWS["tiny-mixed"]
    assert row.arrivals is not None
    engine = start(row)
    try:
        found = run_row("tiny-mixed", row, engine, {"read_gb_s": 1.0, "bf16_tflop_s": 1.0})
        assert not engine.has_work
        assert engine.pool.num_free == engine.pool.num_blocks
    finally:
        engine.close()
    assert 0 < found["before_ms"] <= found["before_p99_ms"]
    assert 0 < found["during_ms"] <= found["during_p99_ms"] <= found["during_longest_ms"]
    assert 0 < found["first_token_ms"] <= found["first_token_p99_ms"]
    assert len(found["seconds"]) == 3
    assert all(seconds >= 2 * row.arrivals.every_s for seconds in found["seconds"])  # the third comes after two pauses


def test_floors_are_bytes_and_operations_over_the_ceilings() -> None:
    """The tiny model by hand: 2 layers of 64 × (64 + 2·32 + 64 + 3·96) weights, a head of 300 × 64; keys and values of
    2 × 2 × 2 × 16 numbers a token."""
    layers, head = 2 * 64 * (64 + 64 + 64 + 288), 300 * 64
    read = 2 * (layers + head) + 2 * 10 * 2 * 2 * 2 * 16 * 2
    operations = 2 * layers * (30 + 2) + 4 * 2 * 64 * (30**2 / 2 + 2 * 10) + 2 * head * 3
    found = floors("tiny", 2, 10, 30, {"read_gb_s": 1e-3, "bf16_tflop_s": 1e-6})
    assert found["floor_decode_ms"] == pytest.approx(read / 1e6 * 1e3, abs=1e-3)
    assert found["floor_mixed_ms"] == pytest.approx(operations / 1e6 * 1e3, abs=1e-3)
    assert floors("tiny", 2, 10, 30, {})["floor_decode_ms"] is None
