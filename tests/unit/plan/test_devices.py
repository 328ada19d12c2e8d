"""What is here: nvidia-smi's listing, hidden cards, memory in use, or the machine itself."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

from tests.unit.plan.configs import GIB
from visavis.errors import OptionError
from visavis.plan import devices
from visavis.plan.speed import NVLINK_SUM, PCIE_SUM, speed_of

# index, uuid, name, memory.free, memory.used, compute_cap: read on an H200 whose memory.total was 143771
H200 = "0, GPU-d2f744ab-1102-2181-df2e-087e34980939, NVIDIA H200, 142536, 621, 9.0\n"
TWO = "0, GPU-aaaa, NVIDIA GeForce RTX 4090, 24000, 210, 8.9\n1, GPU-bbbb, NVIDIA GeForce RTX 3090, 20000, 4200, 8.6\n"


@pytest.fixture
def smi(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets what nvidia-smi answers; None: it is not there."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def answer(text: str | None, code: int = 0) -> None:
        def run(*args: Any, **kwargs: Any) -> subprocess.CompletedProcess[str]:
            if text is None:
                raise FileNotFoundError("nvidia-smi")
            return subprocess.CompletedProcess(args, code, text, "")

        monkeypatch.setattr(devices.subprocess, "run", run)

    return answer


def test_a_card_has_what_programs_see_not_what_the_driver_keeps(smi: Any) -> None:
    smi(H200)
    found = devices.detect()
    assert (found.kind, found.name, found.count) == ("cuda", "NVIDIA H200", 1)
    assert found.total_bytes / GIB == pytest.approx(139.80, abs=0.01)  # torch.cuda.mem_get_info says 139.80
    assert found.used_bytes == 621 * 1024**2
    assert found.compute_capability == (9, 0)


def test_unequal_cards_count_as_the_smallest_and_fullest(smi: Any) -> None:
    smi(TWO)
    found = devices.detect()
    assert found.count == 2
    assert found.total_bytes == 24200 * 1024**2
    assert found.free_bytes == 20000 * 1024**2


@pytest.mark.parametrize(
    ("visible", "name", "count"),
    [("1", "NVIDIA GeForce RTX 3090", 1), ("GPU-aaaa", "NVIDIA GeForce RTX 4090", 1), ("0,1", "", 2)],
)
def test_hidden_cards_do_not_count(
    smi: Any, monkeypatch: pytest.MonkeyPatch, visible: str, name: str, count: int
) -> None:
    smi(TWO)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    found = devices.detect()
    assert found.count == count
    assert found.name == name or count == 2


@pytest.mark.parametrize("listing", [None, "", "No devices were found\n", "0, GPU-x, MIG parent, [N/A], [N/A], 9.0\n"])
def test_without_a_card_it_is_the_machine(smi: Any, listing: str | None) -> None:
    smi(listing)
    found = devices.detect()
    assert found.kind in ("cpu", "mps")
    assert 0 < found.free_bytes <= found.total_bytes


def test_no_visible_card_is_the_machine_too(smi: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    smi(H200)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert devices.detect().kind != "cuda"


def test_a_broken_nvidia_smi_is_no_card(smi: Any) -> None:
    smi(H200, code=9)
    assert devices.detect().kind != "cuda"


def test_a_system_that_does_not_tell_its_memory_is_to_be_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> int:
        raise OSError("no such name")

    monkeypatch.setattr(devices, "total_memory", refuse)
    with pytest.raises(OptionError, match=r"no such name.*--gpu-memory"):
        devices.cpu()


def test_stated_cards_lose_what_the_driver_keeps() -> None:
    assert devices.stated(round(23.99 * GIB)).total_bytes / GIB == pytest.approx(23.64, abs=0.01)  # document 002's card
    assert devices.stated(round(140.40 * GIB)).total_bytes / GIB == pytest.approx(139.80, abs=0.01)
    assert devices.stated(GIB).total_bytes == GIB


def test_more_ranks_than_cards_are_refused_with_the_way_out(smi: Any) -> None:
    smi(TWO)
    assert devices.choose(None, 2).count == 2
    with pytest.raises(OptionError, match=r"--tensor-parallel-size 4: 2 of .* here.*--gpu-memory"):
        devices.choose(None, 4)
    smi(None)
    with pytest.raises(OptionError, match=r"no GPU is here|1 of"):
        devices.choose(None, 2)
    assert devices.choose(24 * GIB, 4).count == 4


def test_speeds_by_name_and_assumptions_said() -> None:
    def named(name: str, gib: float = 24) -> Any:
        return speed_of(devices.Device("cuda", name, round(gib * GIB), round(gib * GIB), 1))

    assert named("NVIDIA H200").bandwidth == 4.8e12
    assert named("NVIDIA H100 PCIe").all_reduce == PCIE_SUM
    assert named("NVIDIA H100 80GB HBM3").all_reduce == NVLINK_SUM
    assert named("NVIDIA L4").bandwidth < named("NVIDIA L40S").bandwidth
    assert "assumed" in named("24.00 GiB card").bandwidth_words
    assert "assumed" not in named("NVIDIA GeForce RTX 4090").bandwidth_words
