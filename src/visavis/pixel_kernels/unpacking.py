"""Pillow's own memory of an RGB picture, four bytes a pixel, into an array of three: one pass, not three copies."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, c_int64, c_void_p
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from visavis.pixel_kernels.library import found

if TYPE_CHECKING:
    from PIL import Image as PILImage

__all__ = ["rgb_of"]


class _ArrowArray(Structure):
    """Of the Arrow C data interface."""


_ArrowArray._fields_ = [
    *((name, c_int64) for name in ("length", "null_count", "offset", "n_buffers", "n_children")),
    ("buffers", POINTER(c_void_p)), ("children", POINTER(POINTER(_ArrowArray))),
    ("dictionary", c_void_p), ("release", c_void_p), ("private_data", c_void_p),
]  # fmt: skip


def rgb_of(image: PILImage.Image) -> npt.NDArray[np.uint8] | None:
    """A loaded picture of mode RGB → uint8 (height, width, 3), a copy; None where Pillow's memory cannot be reached:
    before Pillow 11.3, and for pictures it keeps in several pieces (beyond 4 million pixels)."""
    library = found()
    export = getattr(image, "__arrow_c_array__", None)
    if library is None or export is None or image.mode != "RGB":
        return None
    try:
        _, capsule = export()
    except ValueError:  # in several pieces
        return None
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = c_void_p, [ctypes.py_object, ctypes.c_char_p]
    pixels = ctypes.cast(pointer(capsule, b"arrow_array"), POINTER(_ArrowArray)).contents
    count = image.width * image.height
    if pixels.length != count or pixels.n_children != 1:
        return None
    samples = pixels.children[0].contents
    if samples.length != 4 * count or samples.offset or pixels.offset or samples.n_buffers != 2:
        return None
    out = np.empty((image.height, image.width, 3), dtype=np.uint8)
    library.visavis_pack(samples.buffers[1], count, out.ctypes.data)
    return out
