"""Test media, made by arithmetic: each maker says what its pixels mean."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

Pixels = npt.NDArray[np.uint8]


def encode(image: Image.Image, fmt: str = "PNG", **options: Any) -> bytes:
    """A PIL image as a file's bytes."""
    out = io.BytesIO()
    image.save(out, fmt, **options)
    return out.getvalue()


def png(size: tuple[int, int] = (4, 3), colour: tuple[int, int, int] = (10, 20, 30)) -> bytes:
    """A plain RGB picture of one colour; `size` is (width, height)."""
    return encode(Image.new("RGB", size, colour))


def png_chunk(kind: bytes, data: bytes) -> bytes:
    body = kind + data
    return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))


def raw_png(
    width: int,
    height: int,
    bit_depth: int,
    colour_type: int,
    rows: Sequence[bytes],
    extra: Sequence[tuple[bytes, bytes]] = (),
) -> bytes:
    """A PNG (ISO/IEC 15948) from packed sample rows, for depths Pillow does not write; `extra` chunks come first."""
    packer = zlib.compressobj()
    data = b"".join(packer.compress(b"\x00" + row) for row in rows) + packer.flush()
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", width, height, bit_depth, colour_type, 0, 0, 0)), *extra]
    chunks += [(b"IDAT", data), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(png_chunk(kind, body) for kind, body in chunks)


def level(index: int) -> int:
    """The grey of frame `index` in `video`: far enough apart to survive any codec, for up to 48 frames."""
    return 10 + 5 * index


def index_of(frame: Pixels) -> int:
    """Which frame of `video` this is, by its grey."""
    return round((float(frame.mean()) - 10) / 5)


def video(
    frames: int = 20,
    *,
    fps: int = 10,
    container: str = "mp4",
    codec: str = "mpeg4",
    size: tuple[int, int] = (64, 48),
    times_ms: Sequence[int] | None = None,
    pictures: Sequence[Pixels] | None = None,
    gop: int | None = None,
    options: dict[str, str] | None = None,
    pix_fmt: str = "yuv420p",
) -> bytes:
    """A video whose frame i is flat grey `level(i)`, or shows `pictures[i]`. `size` is (width, height)."""
    import av

    out = io.BytesIO()
    with av.open(out, "w", format=container) as target:
        stream = target.add_stream(codec, rate=fps, options=options or {})
        stream.width, stream.height, stream.pix_fmt = *size, pix_fmt
        stream.bit_rate = 8_000_000  # enough for every frame to keep its grey
        if gop is not None:
            stream.gop_size = gop
        if times_ms is not None:
            stream.codec_context.time_base = Fraction(1, 1000)
        for i in range(len(pictures) if pictures is not None else frames):
            flat = np.full((size[1], size[0], 3), level(i % 48), dtype=np.uint8)
            frame = av.VideoFrame.from_ndarray(pictures[i] if pictures is not None else flat, format="rgb24")
            if times_ms is not None:
                frame.pts, frame.time_base = times_ms[i], Fraction(1, 1000)
            for packet in stream.encode(frame):
                target.mux(packet)
        for packet in stream.encode():
            target.mux(packet)
    return out.getvalue()
