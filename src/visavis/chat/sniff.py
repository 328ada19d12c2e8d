"""What bytes are, told from the bytes alone: declared MIME types and file names are never believed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

__all__ = ["HEAD_BYTES", "Sniffed", "matroska_size", "sniff"]

HEAD_BYTES = 4096
"""How many leading bytes `sniff` likes to see."""


@dataclass(frozen=True, slots=True)
class Sniffed:
    """`name` is for people; `decoder` is Pillow's format for images and FFmpeg's demuxer for videos ("" for other)."""

    family: Literal["image", "video", "other"]
    name: str
    decoder: str = ""


_SIGNATURES: tuple[tuple[bytes, Sniffed], ...] = (
    (b"\x89PNG\r\n\x1a\n", Sniffed("image", "PNG", "PNG")),
    (b"\xff\xd8\xff", Sniffed("image", "JPEG", "JPEG")),
    (b"GIF87a", Sniffed("image", "GIF", "GIF")),
    (b"GIF89a", Sniffed("image", "GIF", "GIF")),
    (b"II*\x00", Sniffed("image", "TIFF", "TIFF")),
    (b"MM\x00*", Sniffed("image", "TIFF", "TIFF")),
    (b"II+\x00", Sniffed("image", "TIFF", "TIFF")),
    (b"MM\x00+", Sniffed("image", "TIFF", "TIFF")),
    (b"\x00\x00\x00\x0cjP  \r\n\x87\n", Sniffed("image", "JPEG 2000", "JPEG2000")),
    (b"\xff\x4f\xff\x51", Sniffed("image", "JPEG 2000", "JPEG2000")),
    (b"\x1a\x45\xdf\xa3", Sniffed("video", "Matroska/WebM", "matroska")),
    (b"FLV\x01", Sniffed("video", "FLV", "flv")),
    (b"OggS", Sniffed("video", "Ogg", "ogg")),
    (b"\x30\x26\xb2\x75\x8e\x66\xcf\x11", Sniffed("video", "WMV", "asf")),
    (b"\x00\x00\x01\xba", Sniffed("video", "MPEG", "mpeg")),
    (b"\x00\x00\x01\xb3", Sniffed("video", "MPEG", "mpegvideo")),
    (b"\xff\x0a", Sniffed("other", "a JPEG XL image")),
    (b"\x00\x00\x00\x0cJXL \r\n\x87\n", Sniffed("other", "a JPEG XL image")),
    (b"8BPS", Sniffed("other", "a Photoshop file")),
    (b"%PDF", Sniffed("other", "a PDF")),
    (b"PK\x03\x04", Sniffed("other", "a ZIP archive")),
    (b"\x1f\x8b", Sniffed("other", "gzip data")),
    (b"\x93NUMPY", Sniffed("other", "a NumPy file")),
    (b"version https://git-lfs", Sniffed("other", "a Git LFS pointer, not the file itself")),
    (b"#EXTM3U", Sniffed("other", "an HLS playlist")),
    (b"ID3", Sniffed("other", "an MP3 file")),
)

_BMP_HEADERS = {12, 16, 40, 52, 56, 64, 108, 124}
_HEIF_BRANDS = {b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1"}
_QUICKTIME_ATOMS = {b"moov", b"mdat", b"free", b"skip", b"wide", b"pnot"}


def sniff(head: bytes) -> Sniffed:
    """Names the content of the leading bytes (`HEAD_BYTES` of them, or all there are)."""
    if not head:
        return Sniffed("other", "empty")
    for magic, found in _SIGNATURES:
        if head.startswith(magic):
            return found
    return _riff(head) or _iso_media(head) or _weakly_marked(head) or _text(head) or Sniffed("other", "unknown data")


def matroska_size(head: bytes) -> int | None:
    """How many bytes a Matroska or WebM file has to its end, as its leading bytes say; None where they do not, as in
    recordings that were streamed (RFC 8794: an element is its id, its size, its content)."""
    header = _ebml_number(head, 4)
    if header is None or header[0] is None:
        return None
    start = header[1] + header[0]
    if head[start : start + 4] != b"\x18\x53\x80\x67":  # the segment, which holds all the rest
        return None
    segment = _ebml_number(head, start + 4)
    return None if segment is None or segment[0] is None else segment[1] + segment[0]


def _ebml_number(data: bytes, at: int) -> tuple[int | None, int] | None:
    """(an element's size, where its content begins); the size None for "unknown"; None where the bytes end first."""
    length = 9 - data[at].bit_length() if at < len(data) else 9  # as many bytes as zeros lead the first, and one
    if length > 8 or at + length > len(data):
        return None
    unknown = (1 << 7 * length) - 1
    size = int.from_bytes(data[at : at + length], "big") & unknown
    return None if size == unknown else size, at + length


def _riff(head: bytes) -> Sniffed | None:
    if head[:4] != b"RIFF":
        return None
    if head[8:12] == b"WEBP":
        return Sniffed("image", "WebP", "WEBP")
    if head[8:12] == b"AVI ":
        return Sniffed("video", "AVI", "avi")
    return Sniffed("other", "a WAV file") if head[8:12] == b"WAVE" else None


def _iso_media(head: bytes) -> Sniffed | None:
    """MP4 and QuickTime, and the still-image formats that share their boxes (ISO/IEC 14496-12)."""
    if head[4:8] in _QUICKTIME_ATOMS:
        return Sniffed("video", "QuickTime", "mov")
    if head[4:8] != b"ftyp":
        return None
    end = min(int.from_bytes(head[:4], "big"), len(head))
    brands = {head[8:12]} | {head[i : i + 4] for i in range(16, end - 3, 4)}
    if brands & {b"avif", b"avis"}:
        return Sniffed("image", "AVIF", "AVIF")
    if head[8:12] in _HEIF_BRANDS:
        return Sniffed("other", "a HEIC image")
    return Sniffed("video", "QuickTime" if head[8:12] == b"qt  " else "MP4", "mov")


def _weakly_marked(head: bytes) -> Sniffed | None:
    """Formats whose mark is a byte or two, told by more of their structure."""
    if head[:2] == b"BM" and len(head) >= 18 and int.from_bytes(head[14:18], "little") in _BMP_HEADERS:
        return Sniffed("image", "BMP", "BMP")
    if re.match(rb"P[1-6]\s+(#[^\n]*\s+)*\d", head):
        return Sniffed("image", "PNM", "PPM")
    if head[0] == 0x47 and len(head) > 376 and head[188] == 0x47 and head[376] == 0x47:
        return Sniffed("video", "MPEG-TS", "mpegts")
    return None


def _text(head: bytes) -> Sniffed | None:
    if b"\x00" in head:
        return None
    start = head.removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    if start.startswith((b"<!doctype html", b"<html", b"<head", b"<body")):
        return Sniffed("other", "a web page (HTML)")
    if start.startswith((b"<svg", b"<?xml", b"<!--", b"<!doctype svg")):
        if b"<svg" in start:
            return Sniffed("other", "an SVG drawing")
        return Sniffed("other", "a web page (HTML)" if b"<html" in start else "XML text")
    if start.startswith((b"{", b"[")):
        return Sniffed("other", "JSON text")
    try:
        head[:-4].decode("utf-8") if len(head) >= HEAD_BYTES else head.decode("utf-8")
    except UnicodeDecodeError:
        return None
    return Sniffed("other", "plain text")
