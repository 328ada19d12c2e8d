"""Streamed tensors are the file's, however it is cut; on the CPU, where the copies are plain ones."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from visavis.engine.weight_stream import DTYPES, stream_tensors

CPU = torch.device("cpu")


def stored(path: Path) -> Path:
    """One tensor of each dtype, 1,234 numbers each, and an empty, a scalar and a large one."""
    torch.manual_seed(0)
    tensors = {f"t.{name}": (torch.rand(2, 617) * 5).to(dtype) for name, dtype in DTYPES.items()}
    tensors |= {"empty": torch.empty(0, 3), "scalar": torch.tensor(2.5), "large": torch.randn(300, 41)}
    save_file(tensors, path / "model.safetensors", {"format": "pt"})
    return path / "model.safetensors"


@pytest.mark.parametrize("chunk_bytes", [7, 1000, 1 << 20])
def test_every_tensor_comes_once_bit_for_bit(tmp_path: Path, chunk_bytes: int) -> None:
    file = stored(tmp_path)
    found = list(stream_tensors(file, CPU, chunk_bytes=chunk_bytes))
    wanted = load_file(file)
    assert sorted(name for name, _ in found) == sorted(wanted)
    for name, tensor in found:
        assert tensor.dtype == wanted[name].dtype
        assert tensor.shape == wanted[name].shape
        assert torch.equal(tensor.view(-1).view(torch.uint8), wanted[name].view(-1).view(torch.uint8)), name


def test_a_tensor_goes_where_its_place_is(tmp_path: Path) -> None:
    file = stored(tmp_path)
    fused = torch.zeros(500, 41)
    found = dict(stream_tensors(file, CPU, lambda name, dtype, shape: fused[100:400] if name == "large" else None))
    assert found["large"].data_ptr() == fused[100:].data_ptr()
    assert torch.equal(fused[100:400], load_file(file)["large"])
    assert not fused[:100].any()
    assert not fused[400:].any()


@pytest.mark.parametrize("chunk_bytes", [7, 1000, 1 << 20])
def test_of_a_tensor_that_is_cut_only_its_rows_come(tmp_path: Path, chunk_bytes: int) -> None:
    file = stored(tmp_path)
    wanted = load_file(file)
    cuts = {"large": (100, 150), "t.BF16": (1, 1), "t.F32": (0, 0)}
    mine = torch.zeros(150, 41)
    found = dict(
        stream_tensors(
            file,
            CPU,
            lambda name, dtype, shape: mine if name == "large" and shape == (150, 41) else None,
            lambda name, shape: cuts.get(name),
            chunk_bytes=chunk_bytes,
        )
    )
    assert found["large"] is mine
    for name, tensor in wanted.items():
        start, count = cuts.get(name, (0, len(tensor) if tensor.dim() else 1))
        part = tensor[start : start + count] if tensor.dim() else tensor
        assert torch.equal(found[name].view(-1).view(torch.uint8), part.reshape(-1).view(torch.uint8)), name


def test_a_tensor_is_whole_when_it_comes(tmp_path: Path) -> None:
    """What is yielded was checked at that moment, before anything after it was copied."""
    file = stored(tmp_path)
    wanted = load_file(file)
    for name, tensor in stream_tensors(file, CPU, chunk_bytes=64):
        assert torch.equal(tensor.view(-1).view(torch.uint8), wanted[name].view(-1).view(torch.uint8)), name


def test_a_file_that_ends_early_says_where(tmp_path: Path) -> None:
    file = stored(tmp_path)
    size = file.stat().st_size
    with file.open("r+b") as open_file:
        open_file.truncate(size - 100)
    with pytest.raises(EOFError, match=f"ends at byte {size - 100}"):
        list(stream_tensors(file, CPU))


def test_an_iteration_that_is_left_closes_the_file(tmp_path: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir())) if Path("/proc/self/fd").exists() else 0
    stream = stream_tensors(stored(tmp_path), CPU, chunk_bytes=64)
    next(stream)
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    if before:
        assert len(list(Path("/proc/self/fd").iterdir())) == before
