"""Samples of every kind → 8-bit RGB on an opaque background. All arithmetic is exact and rounds to the nearest.

| stored | becomes |
|---|---|
| 1 bit | 0 or 255 |
| 16-bit grey (`I;16…`, `I`) | (v + 128) // 257, the nearest of v / 257 |
| float (`F`, numpy) | values of 0 to 1, times 255, rounded |
| 16-bit colour files | their high byte: all that Pillow hands out, at most one step from v / 257 |
| CMYK | (255 − ink) · (255 − black) / 255, as Pillow converts; Adobe's inverted JPEGs and YCCK are understood |
| alpha | (v · a + background · (255 − a)) / 255 per channel |
| premultiplied alpha (`La`, `RGBa`) | v + background · (255 − a) / 255 |
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from visavis.errors import MediaError
from visavis.pixel_kernels import rgb_of

if TYPE_CHECKING:
    from PIL import Image as PILImage

__all__ = ["WHITE", "Background", "array_to_rgb", "colour_key", "image_to_rgb", "over_background"]

Background: TypeAlias = tuple[int, int, int]
WHITE: Background = (255, 255, 255)

Pixels: TypeAlias = npt.NDArray[np.uint8]


def image_to_rgb(image: PILImage.Image, background: Background, key: Any = None) -> Pixels:
    """A loaded PIL image of any mode → uint8 (height, width, 3). `key`: the transparent colour, see `colour_key`.

    Raises MediaError for samples of unknown range.
    """
    mode = image.mode
    if mode.startswith("I;16") or mode == "I":
        return _deep_grey(image, key, background)
    if mode == "F":
        return _grey_to_rgb(_unit_to_bytes(np.asarray(image)))
    if mode in ("RGBa", "La"):
        return _premultiplied_over(image, background)
    if mode in ("RGBA", "LA", "PA") or (mode == "P" and image.has_transparency_data):
        return over_background(np.asarray(image.convert("RGBA")), background)
    if mode in ("1", "L", "RGB") and key is not None:
        return _keyed(image, key, background)
    if mode in ("P", "1", "L", "RGB", "RGBX", "CMYK", "YCbCr", "HSV"):
        rgb = image.convert("RGB") if mode != "RGB" else image
        pixels = rgb_of(rgb)
        return np.array(rgb) if pixels is None else pixels
    raise MediaError(f"has samples of mode {mode}, which have no rule here; convert it to RGB first")


def colour_key(image: PILImage.Image) -> Any:
    """The colour of a grey or RGB picture that means transparent (PNG's tRNS), on the scale of Pillow's samples.

    Asked before `load()`: Pillow widens samples of 2 and 4 bits and narrows 16-bit colours, but keeps the key as
    the file has it. Of 16-bit colours only the high bytes can be compared.
    """
    key = image.info.get("transparency")
    tiles = getattr(image, "tile", None)
    if key is None or not tiles:
        return key
    args = tiles[0][3]  # (codec, extents, offset, args), a plain tuple in older Pillow
    raw = args if isinstance(args, str) else args[0] if args else ""
    if isinstance(key, int):
        return key * {"L;2": 85, "L;4": 17}.get(raw, 1)
    if isinstance(key, tuple) and raw == "RGB;16B":
        return tuple(sample >> 8 for sample in key)
    return key


def array_to_rgb(array: npt.NDArray[Any], background: Background) -> Pixels:
    """See `visavis.chat.image.decode_array`."""
    shape = " × ".join(map(str, array.shape)) or "no dimensions"
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (1, 3, 4)):
        hint = ""
        if array.ndim == 3 and array.shape[0] in (1, 3, 4):
            hint = "; it looks like channels first: give array.transpose(1, 2, 0)"
        raise MediaError(
            f"is an array of {shape}; an image is (height, width), (height, width, 3) or (height, width, 4){hint}"
        )
    if array.dtype == np.uint8:
        samples = np.array(array, order="C")
    elif array.dtype == np.uint16:
        samples = _deep_to_bytes(array)
    elif array.dtype == np.bool_:
        samples = array.astype(np.uint8) * np.uint8(255)
    elif np.issubdtype(array.dtype, np.floating):
        samples = _unit_to_bytes(array)
    else:
        raise MediaError(f"is an array of {array.dtype}; give uint8 (0 to 255), uint16, bool, or floats of 0 to 1")
    if samples.ndim == 2:
        return _grey_to_rgb(samples)
    if samples.shape[2] == 1:
        return _grey_to_rgb(samples[:, :, 0])
    return over_background(samples, background) if samples.shape[2] == 4 else samples


def over_background(rgba: Pixels, background: Background) -> Pixels:
    """uint8 (…, 4) with straight alpha → (…, 3). 255 is odd, so the nearest integer is never a tie."""
    if (rgba[..., 3] == 255).all():
        return np.ascontiguousarray(rgba[..., :3])
    alpha = rgba[..., 3:].astype(np.uint16)  # the largest sum, 255 · 255 + 127, fits
    behind = np.array(background, dtype=np.uint16)
    return ((rgba[..., :3] * alpha + behind * (255 - alpha) + 127) // 255).astype(np.uint8)


def _premultiplied_over(image: PILImage.Image, background: Background) -> Pixels:
    samples = np.asarray(image).astype(np.uint32)
    colour, alpha = samples[..., :-1], samples[..., -1:]
    behind = np.array(background, dtype=np.uint32)
    mixed = colour + (behind * (255 - alpha) + 127) // 255
    return np.minimum(mixed, 255).astype(np.uint8)


def _keyed(image: PILImage.Image, key: Any, background: Background) -> Pixels:
    """One colour of the picture is transparent."""
    samples = np.array(image.convert("L") if image.mode == "1" else image)
    if image.mode == "RGB":
        clear = (samples == np.array(key)).all(axis=2)
        rgb = samples
    else:
        clear = samples == key
        rgb = _grey_to_rgb(samples)
    rgb[clear] = background
    return rgb


def _deep_grey(image: PILImage.Image, key: Any, background: Background) -> Pixels:
    values = np.asarray(image)
    low, high = int(values.min()), int(values.max())
    if low < 0 or high > 65535:
        raise MediaError(f"has grey values from {low:,} to {high:,}; only 16 bits (0 to 65,535) have a rule here")
    rgb = _grey_to_rgb(_deep_to_bytes(values))
    if key is not None:
        rgb[values == key] = background
    return rgb


def _deep_to_bytes(values: npt.NDArray[Any]) -> Pixels:
    return ((values.astype(np.uint32) + 128) // 257).astype(np.uint8)


def _unit_to_bytes(values: npt.NDArray[Any]) -> Pixels:
    if np.isnan(values).any():
        raise MediaError("has NaN among its float values")
    if values.size and not (values.min() >= 0 and values.max() <= 1):
        raise MediaError(
            f"has float values from {values.min():g} to {values.max():g}; floats mean 0 to 1: scale them, or give uint8"
        )
    return np.rint(values.astype(np.float64) * 255).astype(np.uint8)


def _grey_to_rgb(grey: Pixels) -> Pixels:
    return np.repeat(grey[:, :, None], 3, axis=2)
