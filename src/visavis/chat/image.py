"""The one decoder of still images: whatever comes in, upright RGB comes out, by rules that are written down.

1. Bytes are sniffed; declared types and file names are ignored. Size limits are checked before decoding.
2. Of several frames or pages the first is taken (of a PIL image handed in: the one it stands at).
3. Samples become 8 bits (`visavis.chat.samples`), transparency is composited on `background` (white).
4. The EXIF orientation, all eight of them, is applied, so boxes mean the picture as people see it.
5. Colour profiles and gamma marks are ignored, as in every engine's own processor.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from visavis.chat.fetch import PERMISSIVE, FetchPolicy
from visavis.chat.samples import WHITE, Background, array_to_rgb, colour_key, image_to_rgb
from visavis.chat.sniff import HEAD_BYTES, Sniffed, sniff
from visavis.errors import MediaError, shorten

if TYPE_CHECKING:
    from PIL import Image as PILImage
    from PIL import ImageFile

__all__ = [
    "WHITE",
    "Background",
    "check_is_image",
    "decode_array",
    "decode_bytes",
    "decode_pil",
    "guarded",
    "open_encoded",
]

ORIENTATION_TAG = 0x0112
_ADVICE = {
    "a web page (HTML)": "the link leads to a page, not to the picture itself",
    "an SVG drawing": "it has no pixels; render it to PNG first",
    "a HEIC image": "convert it to JPEG or PNG first",
    "a JPEG XL image": "convert it to JPEG or PNG first",
    "a PDF": "render its pages to PNG first",
    "a Git LFS pointer, not the file itself": "run git lfs pull",
}


def decode_bytes(
    data: bytes, *, policy: FetchPolicy = PERMISSIVE, background: Background = WHITE
) -> npt.NDArray[np.uint8]:
    """An encoded image (PNG, JPEG, GIF, WebP, BMP, TIFF, PNM, JPEG 2000, AVIF) → uint8 (height, width, 3).

    Raises MediaError for anything else, for broken or cut-off data, and over the policy's caps.
    """
    if len(data) > policy.max_bytes:
        raise MediaError(f"is {len(data):,} bytes, over the cap of {policy.max_bytes:,}")
    kind = sniff(data[:HEAD_BYTES])
    check_is_image(kind)
    return decode_pil(open_encoded(data, kind, policy), policy=policy, background=background)


def decode_pil(
    image: PILImage.Image, *, policy: FetchPolicy = PERMISSIVE, background: Background = WHITE
) -> npt.NDArray[np.uint8]:
    """A PIL image by the same rules, its EXIF orientation included → uint8 (height, width, 3), a copy."""
    _check_pixels(image.size, policy)
    return _upright(image, background)


def decode_array(
    array: npt.NDArray[Any], *, policy: FetchPolicy = PERMISSIVE, background: Background = WHITE
) -> npt.NDArray[np.uint8]:
    """A numpy image → uint8 (height, width, 3), a copy.

    Shapes (h, w), (h, w, 1), (h, w, 3) and (h, w, 4) with straight alpha. uint8 is taken as it is, uint16 over its
    whole range, bool as black and white, floats as 0 to 1. Raises MediaError for other shapes, types and ranges.
    """
    if array.ndim in (2, 3):
        _check_pixels((array.shape[1], array.shape[0]), policy)
    return array_to_rgb(array, background)


def check_is_image(kind: Sniffed) -> None:
    """Raises MediaError unless `kind` is an image, with the way out where there is a usual one."""
    if kind.family == "image":
        return
    if kind.name == "empty":
        raise MediaError("is empty (0 bytes)")
    if kind.family == "video":
        raise MediaError(f"is a video ({kind.name}), not an image; give it as a video part")
    advice = _ADVICE.get(kind.name)
    raise MediaError(f"is {kind.name}, not an image" + (f": {advice}" if advice else ""))


def open_encoded(data: bytes, kind: Sniffed, policy: FetchPolicy) -> ImageFile.ImageFile:
    """The image with only its header read.

    The decoder is called by name: `Image.open` would offer the bytes to every format it knows, and judges size by
    a global of its own.
    """
    from PIL import Image

    Image.preinit()  # PNG, JPEG, GIF, BMP, PPM; `init` imports all of some forty formats
    if kind.decoder not in Image.OPEN:
        Image.init()
    if kind.decoder not in Image.OPEN:
        raise MediaError(f"is {kind.name}, which the installed Pillow cannot read; convert it to PNG first")
    if kind.decoder == "WEBP":
        _check_pixels(_webp_size(data), policy)  # its decoder makes room for the whole canvas when it is opened
    factory, _accept = Image.OPEN[kind.decoder]
    with guarded(kind.name):
        image: ImageFile.ImageFile = factory(io.BytesIO(data), "")
    _check_pixels(image.size, policy)
    return image


def _webp_size(data: bytes) -> tuple[int, int]:
    """(width, height) out of a WebP header (RFC 9649)."""
    if data[12:16] == b"VP8X":
        return 1 + int.from_bytes(data[24:27], "little"), 1 + int.from_bytes(data[27:30], "little")
    if data[12:16] == b"VP8L":
        bits = int.from_bytes(data[21:25], "little")
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    return int.from_bytes(data[26:28], "little") & 0x3FFF, int.from_bytes(data[28:30], "little") & 0x3FFF


def _check_pixels(size: tuple[int, int], policy: FetchPolicy) -> None:
    width, height = size
    if width < 1 or height < 1:
        raise MediaError(f"has no pixels ({width}×{height})")
    if width * height > policy.max_pixels:
        raise MediaError(
            f"is {width}×{height} = {width * height:,} pixels, over the cap of {policy.max_pixels:,}; make it smaller"
        )


@contextmanager
def guarded(name: str) -> Iterator[None]:
    """Around calls into Pillow's decoders: turns whatever they throw at broken data into a MediaError."""
    try:
        yield
    except (MediaError, MemoryError):
        raise
    except Exception as error:  # hostile bytes make decoders raise struct, zlib, index, key and other errors
        # struct's own words count bytes of a buffer nobody has heard of; it means that the data ends early
        ends_early = isinstance(error.__cause__ or error, struct.error)
        text = "its data is cut off" if ends_early else str(error) or type(error).__name__
        reason = shorten(text, 100).strip("'\"")
        raise MediaError(f"is a broken {name}: {reason}") from None


def _upright(image: PILImage.Image, background: Background) -> npt.NDArray[np.uint8]:
    key = colour_key(image)
    with guarded(image.format or "PIL image"):
        image.load()  # cut-off data shows only here; PNG may carry its EXIF after the pixels
    pixels = image_to_rgb(image, background, key)
    return np.ascontiguousarray(_oriented(pixels, _orientation(image)))


def _orientation(image: PILImage.Image) -> int:
    try:
        value = image.getexif().get(ORIENTATION_TAG, 1)
    except Exception:  # a picture with broken EXIF is still a picture: shown as stored, as browsers do
        return 1
    return value if isinstance(value, int) else 1


def _oriented(pixels: npt.NDArray[np.uint8], orientation: int) -> npt.NDArray[np.uint8]:
    """Undoes an EXIF orientation (CIPA DC-008, tag 0x0112): where row 0 and column 0 of the stored picture belong."""
    match orientation:
        case 2:  # top right
            return pixels[:, ::-1]
        case 3:  # bottom right
            return pixels[::-1, ::-1]
        case 4:  # bottom left
            return pixels[::-1]
        case 5:  # left top
            return pixels.transpose(1, 0, 2)
        case 6:  # right top
            return pixels.transpose(1, 0, 2)[:, ::-1]
        case 7:  # right bottom
            return pixels.transpose(1, 0, 2)[::-1, ::-1]
        case 8:  # left bottom
            return pixels.transpose(1, 0, 2)[::-1]
    return pixels
