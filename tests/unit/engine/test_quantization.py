"""Layouts of 8- and 4-bit weights: round trips, and matrices that other libraries packed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from visavis.engine.quantization.checkpoints import read_awq, read_gptq
from visavis.engine.quantization.codes import quantize
from visavis.engine.quantization.places import Share, matrix_places
from visavis.engine.quantization.scheme import Scheme
from visavis.engine.quantization.weight import QuantizedWeight, pack_int4, unpack_int4

FILE = Path(__file__).parents[2] / "reference" / "quantized_by_libraries.safetensors"
"""A matrix of 32 outputs and 64 inputs in groups of 32, packed and made dense again by autoawq 0.2.9 and by auto-gptq
0.7.1 (with `desc_act`); the file's metadata names the functions."""


@pytest.mark.parametrize("method", ["awq", "gptq"])
def test_what_other_libraries_packed_is_read_as_they_read_it(method: str) -> None:
    parts = {k.partition(".")[2]: v for k, v in load_file(FILE).items() if k.startswith(method)}
    dense = parts.pop("dense")
    codes = read_awq(parts, 32) if method == "awq" else read_gptq(parts, 4, 32, less_one=True)
    assert torch.equal(codes.dequantize(), dense)
    weight = QuantizedWeight.empty(32, 64, bits=4, group=32, scale_dtype=torch.float32, device=torch.device("cpu"))
    weight.store(codes)
    weight.set_order(codes.order)
    assert torch.equal(weight.dequantize(), dense)
    assert (codes.order is not None) == (method == "gptq")


def test_nibbles_of_a_number_are_a_quarter_of_a_unit_apart() -> None:
    values = torch.randint(0, 16, (3, 256))
    packed = pack_int4(values)
    assert packed.shape == (3, 32)
    numbers = packed.view(torch.int16).int() & 0xFFFF
    for row, column in ((0, 0), (1, 37), (2, 127), (1, 128), (0, 255)):
        unit, within = divmod(column, 128)
        quarter, number = divmod(within, 32)
        assert numbers[row, unit * 32 + number] >> 4 * quarter & 15 == values[row, column]
    assert torch.equal(unpack_int4(packed), values)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(("k", "group"), [(256, 128), (96, 32), (192, 64), (96, 96), (512, 256)])
def test_codes_come_back_as_they_were_stored(k: int, group: int, bits: int) -> None:
    codes = quantize(torch.randn(6, k), bits, group)
    weight = QuantizedWeight.empty(
        6, k, bits=bits, group=group, scale_dtype=codes.scales.dtype, device=torch.device("cpu")
    )
    for part, start in zip(weight.split([2, 4]), (0, 2), strict=True):
        part.store(codes.narrow(0, start, part.shape[0]))
    assert torch.equal(weight.dequantize(), codes.dequantize())


@pytest.mark.parametrize("bits", [4, 8])
def test_rounding_errs_by_half_a_step_and_keeps_zeros(bits: int) -> None:
    dense = torch.randn(5, 256)
    dense[1] = 0
    dense[2, :128] = dense[2, :128].abs()
    codes = quantize(dense, bits, 128)
    step = codes.scales.float().repeat_interleave(128, dim=1)
    assert ((codes.dequantize() - dense).abs() <= step * (0.5 if bits == 8 else 1) + 1e-6).all()  # 4: and a zero's half
    assert torch.equal(codes.dequantize()[1], dense[1])


def test_shares_of_a_matrix_are_those_of_the_whole() -> None:
    """Rows, and whole groups of columns, of codes made at load; of a checkpoint's likewise."""
    dense = torch.randn(8, 256)
    scheme = Scheme.at_load("int4")
    for share, expected in ((Share(0, 2, 8), dense[2:6]), (Share(1, 128, 256), dense[:, 128:])):
        n, k = expected.shape
        weight = QuantizedWeight.empty(n, k, bits=4, group=128, scale_dtype=torch.float16, device=torch.device("cpu"))
        ((name, place),) = matrix_places(weight, None, ["up"], [n], scheme, [share])
        assert (name, tuple(place.shape)) == ("up.weight", (8, 256))
        place.copy_(dense)
        assert torch.equal(weight.dequantize(), quantize(expected, 4, 128).dequantize())
    codes = quantize(dense, 4, 128)
    assert torch.equal(codes.narrow(1, 128, 128).dequantize(), codes.dequantize()[:, 128:])
    with pytest.raises(ValueError, match="no whole groups"):
        codes.narrow(1, 64, 128)
