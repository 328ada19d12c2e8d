"""The vision tower's kernels against their twins: norms, sizes of pictures, odd videos."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from benchmarks.gpu.models import CONFIGS
from tests.gpu.conftest import ON_GPU
from visavis.engine.kernels.cuda import vision as vision_module
from visavis.engine.kernels.cuda.kernels import CudaKernels
from visavis.engine.kernels.cuda.vision import CudaVision
from visavis.engine.kernels.torch_kernels import TorchKernels
from visavis.engine.kernels.triton import twins
from visavis.engine.kernels.triton.launch import Launcher
from visavis.engine.kernels.triton.launch_vision import VisionLauncher
from visavis.engine.model_config import ModelConfig
from visavis.engine.models.vision import VisionTower
from visavis.patches import patchify
from visavis.prompt import PatchRule, PreparedMedia, Span

DTYPES = [torch.float32, torch.bfloat16]
RULE = PatchRule(14, 2, 2, (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
OTHER = PatchRule(4, 2, 3, (0.1, 0.2, 0.3), (0.5, 0.25, 0.7), 1 / 127.5)


def item(pixels: np.ndarray[tuple[int, ...], np.dtype[np.uint8]], rule: PatchRule) -> PreparedMedia:
    frames = 1 if pixels.ndim == 3 else -(-len(pixels) // rule.temporal_patch_size)
    height, width = pixels.shape[-3:-1]
    grid = (frames, height // rule.patch_size, width // rule.patch_size)
    return PreparedMedia(
        "image" if pixels.ndim == 3 else "video", pixels, (height, width), (height, width), grid, 0, Span(0, 0),
        Span(0, 0), "",
    )  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=["float32", "bfloat16"])
@pytest.mark.parametrize("rule", [RULE, OTHER], ids=["qwen", "other"])
def test_patches_are_bit_for_bit_the_twins(rule: PatchRule, dtype: torch.dtype, device: torch.device) -> None:
    cell = rule.cell
    rng = np.random.default_rng(3)
    shapes = [(cell, cell, 3), (2 * cell, 5 * cell, 3), (1, cell, cell, 3), (5, 3 * cell, 2 * cell, 3)]
    if ON_GPU:
        shapes += [(26 * cell, 47 * cell, 3), (9, 8 * cell, 11 * cell, 3)]
    media = [item(rng.integers(0, 256, shape, dtype=np.uint8), rule) for shape in shapes]
    media[0].pixels.setflags(write=False)
    found = CudaVision(CudaKernels(device, dtype, "under test")).patches(media, [rule] * len(media))
    expected = torch.cat([patchify(m.pixels, rule) for m in media]).to(dtype)
    assert found.dtype == dtype
    assert torch.equal(found.cpu(), expected)


def test_frames_of_a_size_seen_before_are_attended_to_one_by_one(
    monkeypatch: pytest.MonkeyPatch, device: torch.device
) -> None:
    """Windows and first frames by FlashAttention-2, frames that come again as torch chooses; the same but for bits."""
    flashed: list[int] = []
    real = vision_module.flash_attention if ON_GPU else F.scaled_dot_product_attention

    def flash(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        flashed.append(q.shape[2])
        return real(q, k, v)

    monkeypatch.setattr(vision_module, "flash_attention", flash)
    kernels = CudaKernels(device, torch.bfloat16, "under test")
    kernels.launcher.hopper = True
    ops = CudaVision(kernels)
    cell = RULE.cell
    frames = [item(np.zeros((8 * cell, 9 * cell, 3), dtype=np.uint8), RULE) for _ in range(3)]  # 288 patches each
    for count, expected in ((1, [64, 288]), (2, [64]), (3, [64])):
        ops.patches(frames[:count], [RULE] * count)
        flashed.clear()
        for length, repeats in ((64, 5), (288, count)):
            q, k, v = (torch.randn(repeats, 2, length, 40, device=device).to(torch.bfloat16) for _ in range(3))
            found, wanted = ops.attention(q, k, v), F.scaled_dot_product_attention(q.float(), k.float(), v.float())
            assert found.shape == wanted.shape
            assert (found.float() - wanted).norm() / wanted.norm() < 1e-2
        assert flashed == expected


def test_a_tower_in_bfloat16_sees_the_same_at_first_and_later(device: torch.device) -> None:
    vision = {"depth": 2, "embed_dim": 160, "num_heads": 2, "mlp_ratio": 2, "hidden_size": 64, "patch_size": 14,
              "spatial_merge_size": 2, "temporal_patch_size": 2, "in_channels": 3}  # fmt: skip
    config = ModelConfig.from_dict(CONFIGS["Qwen2-VL-7B"] | {"vision_config": vision}).vision
    assert config is not None
    towers = [VisionTower(config, kind(device, torch.bfloat16, "under test")) for kind in (CudaKernels, TorchKernels)]
    for (_, ours), (_, theirs) in zip(*(tower.weights() for tower in towers), strict=True):
        ours.normal_(std=0.1)
        theirs.copy_(ours)
    picture = item(np.random.default_rng(5).integers(0, 256, (14 * 24, 14 * 20, 3), dtype=np.uint8), RULE)
    grid = (1, 24, 20)
    wanted = towers[1](patchify(picture.pixels, RULE), [grid]).embeddings.float()
    for _ in range(3):
        found = towers[0](towers[0].ops.patches([picture], [RULE]), [grid]).embeddings.float()
        assert (found - wanted).norm() / wanted.norm() < 2e-2


@pytest.mark.parametrize("dtype", DTYPES, ids=["float32", "bfloat16"])
@pytest.mark.parametrize("late", [False, True], ids=["norm", "join_and_norm"])
@pytest.mark.parametrize("rms", [False, True], ids=["layer", "rms"])
@pytest.mark.parametrize("n", [16, 80, 1152, 1280])
def test_norms_equal_twins(n: int, rms: bool, late: bool, dtype: torch.dtype, device: torch.device) -> None:
    x = (torch.randn(5, n, device=device) * 3 + 1).to(dtype)
    more = torch.randn(5, n, device=device).to(dtype)
    weight, bias = (torch.randn(n, device=device).to(dtype) for _ in range(2))
    run = VisionLauncher(Launcher(device))
    expected_x, expected = twins.join_norm(x, more if late else None, weight, None if rms else bias, 1e-6)
    found = run.join_norm(x, more if late else None, weight, None if rms else bias, 1e-6)
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(x, expected_x, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES, ids=["float32", "bfloat16"])
@pytest.mark.parametrize("shape", [(1, 1), (3, 700), (7, 5120)], ids=str)
def test_quick_gelu_equals_twin(shape: tuple[int, int], dtype: torch.dtype, device: torch.device) -> None:
    x = (torch.randn(shape, device=device) * 4).to(dtype)
    expected = twins.quick_gelu(x)
    VisionLauncher(Launcher(device)).quick_gelu_(x)
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(x, expected, rtol=tolerance, atol=tolerance)
