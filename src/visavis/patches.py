"""uint8 pixels → the float32 patches a Qwen-VL vision tower takes, bit for bit as transformers' PIL processor.

That processor computes `float32(float64(v) · rescale)`, then `(x − mean) / std` in float32. For `rescale` = 1/255 the
first step equals the float32 quotient v / 255 for all 256 values, so the arithmetic runs in place in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import torch

from visavis.pixel_kernels import make_patches
from visavis.prompt import PatchRule, PreparedMedia

__all__ = ["byte_values", "patchify", "patchify_all", "patchify_in_torch"]


def patchify(pixels: npt.NDArray[np.uint8], rule: PatchRule, *, device: torch.device | str = "cpu") -> torch.Tensor:
    """(H, W, 3) or (T, H, W, 3) uint8 → (n_patches, 3 · temporal · patch · patch) float32 on `device`, where the bytes
    are sent before they become floats.

    H and W are multiples of `rule.cell`. Patches come frame group by frame group, row by row of cells, the
    `merge_size`² patches of a cell together; inside a patch the order is channel, frame, row, column. A still image
    fills all frames of its patches; a video whose length is no multiple of `temporal_patch_size` is padded with its
    last frame.
    """
    if torch.device(device).type == "cpu" and (made := make_patches(pixels, rule, _table(rule))) is not None:
        return torch.from_numpy(made)
    return patchify_in_torch(pixels, rule, device=device)


def patchify_in_torch(
    pixels: npt.NDArray[np.uint8], rule: PatchRule, *, device: torch.device | str = "cpu"
) -> torch.Tensor:
    """The same where there is no compiled code for it."""
    patch, merge, temporal = rule.patch_size, rule.merge_size, rule.temporal_patch_size
    still = pixels.ndim == 3
    array = np.require(pixels[None] if still else pixels, requirements=["C", "W"])  # torch warns about read-only ones
    frames = torch.from_numpy(array).to(device)
    count, height, width, channels = frames.shape
    if not still and (missing := -count % temporal):
        frames = torch.cat([frames, frames[-1:].expand(missing, -1, -1, -1)])
    distinct = 1 if still else temporal  # frames of a patch that differ
    steps, rows, columns = frames.shape[0] // distinct, height // patch, width // patch
    cells = frames.view(
        steps, distinct, rows // merge, merge, patch, columns // merge, merge, patch, channels
    )  # (t, T, gh, mh, p, gw, mw, p, c) → (t, gh, gw, mh, mw, c, T, p, p), still bytes
    values = cells.permute(0, 2, 5, 3, 6, 8, 1, 4, 7).reshape(-1, channels, distinct, patch * patch)
    floats = _normalise(values, rule)
    if distinct == temporal:
        return floats.view(len(floats), -1)
    patches = floats.new_empty((len(floats), channels, temporal, patch * patch))
    patches[:] = floats
    return patches.view(len(patches), -1)


def patchify_all(
    media: Sequence[PreparedMedia], rule: PatchRule, *, device: torch.device | str = "cpu"
) -> torch.Tensor:
    """The patches of several items, one after the other."""
    parts = [patchify(item.pixels, rule, device=device) for item in media]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def byte_values(rule: PatchRule) -> torch.Tensor:
    """(3, 256) float32: what each byte becomes in each channel, by the same arithmetic."""
    bytes_ = torch.arange(256, dtype=torch.uint8).view(256, 1, 1, 1).expand(256, 3, 1, 1)
    return _normalise(bytes_, rule).view(256, 3).t().contiguous()


@lru_cache(maxsize=8)
def _table(rule: PatchRule) -> npt.NDArray[np.float32]:
    table: npt.NDArray[np.float32] = byte_values(rule).numpy()
    return table


def _normalise(values: torch.Tensor, rule: PatchRule) -> torch.Tensor:
    """(n, C, T, p²) uint8 → float32, scaled and normalised per channel."""
    device = values.device

    def per_channel(numbers: Sequence[float]) -> torch.Tensor:
        return torch.tensor(numbers, dtype=torch.float32, device=device).view(1, -1, 1, 1)

    if rule.rescale == 1 / 255:
        # By a tensor: CUDA divides by a plain number as a product with its reciprocal, which rounds differently.
        floats = values.to(torch.float32).div_(per_channel([255.0]))
    else:
        table = torch.arange(256, dtype=torch.float64).mul_(rule.rescale).to(torch.float32).to(device)
        floats = table[values.to(torch.int32)]
    return floats.sub_(per_channel(rule.mean)).div_(per_channel(rule.std))
