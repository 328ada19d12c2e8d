"""A vision tower's patches in one pass over the pixels, each byte looked up in a table."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from visavis.pixel_kernels.library import found
from visavis.prompt import PatchRule

__all__ = ["make_patches"]


def make_patches(
    pixels: npt.NDArray[np.uint8], rule: PatchRule, table: npt.NDArray[np.float32]
) -> npt.NDArray[np.float32] | None:
    """As `visavis.patches.patchify`, with table (3, 256): what each byte becomes in each channel; None where that
    cannot be done here."""
    library = found()
    if library is None:
        return None
    still = pixels.ndim == 3
    source = np.ascontiguousarray(pixels)
    frames = 1 if still else source.shape[0]
    height, width = source.shape[-3:-1]
    temporal = rule.temporal_patch_size
    count = -(-frames // temporal) * (height // rule.patch_size) * (width // rule.patch_size)
    out = np.empty((count, 3 * temporal * rule.patch_size**2), dtype=np.float32)
    library.visavis_patches(
        source.ctypes.data, frames, height, width, rule.patch_size, rule.merge_size, temporal, int(still),
        np.ascontiguousarray(table).ctypes.data, out.ctypes.data,
    )  # fmt: skip
    return out
