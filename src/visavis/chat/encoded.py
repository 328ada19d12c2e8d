"""Bytes inside strings: data URLs (RFC 2397) and base64 in every habit of writing it."""

from __future__ import annotations

import base64
import binascii
import re
from urllib.parse import unquote, unquote_to_bytes

from visavis.chat.sniff import HEAD_BYTES, sniff
from visavis.errors import MediaError, shorten

__all__ = ["decode_base64", "decode_data_url", "looks_like_base64", "media_in_base64"]

_ALPHABET = re.compile(r"[A-Za-z0-9+/_-]+={0,3}")
_WHITESPACE = re.compile(r"\s+")
_SHORTEST_MEDIA = 32  # characters; the smallest GIF takes 48


def decode_base64(text: str, max_bytes: int) -> bytes:
    """Bytes of base64 `text`: standard or url-safe alphabet, padded or not, folded over lines or not.

    Raises MediaError; the text itself is never quoted.
    """
    packed = _WHITESPACE.sub("", text)
    body = packed.rstrip("=")
    size = len(body) * 3 // 4
    if size > max_bytes:
        raise MediaError(f"the base64 holds {size:,} bytes, over the cap of {max_bytes:,}")
    wrong = re.search(r"[^A-Za-z0-9+/_-]", body)
    if wrong:
        raise MediaError(f"the base64 has the character {wrong.group()!r} at {wrong.start()}, which is not base64")
    if len(body) % 4 == 1:
        raise MediaError(f"the base64 is cut short: {len(body)} characters are not a whole number of bytes")
    try:
        return base64.b64decode(body.replace("-", "+").replace("_", "/") + "=" * (-len(body) % 4), validate=True)
    except binascii.Error as error:
        raise MediaError(f"the base64 does not decode: {error}") from None


def decode_data_url(url: str, max_bytes: int) -> tuple[bytes, str]:
    """(bytes, declared MIME type) of a `data:` URL. The type is for people only: content is sniffed.

    Both payload kinds are understood, base64 (percent-encoded or not) and percent-encoded bytes.
    """
    header, comma, payload = url[5:].partition(",")
    if not comma:
        raise MediaError("the data URL has no comma between its header and its data")
    mime, *flags = (piece.strip().lower() for piece in header.split(";"))
    shown = mime if re.fullmatch(r"[a-z0-9.+-]{1,40}/[a-z0-9.+-]{1,40}", mime) else "untyped"
    if "base64" in flags or mime == "base64":
        data = decode_base64(unquote(payload) if "%" in payload else payload, max_bytes)
    else:
        data = unquote_to_bytes(payload)
        if len(data) > max_bytes:
            raise MediaError(f"the data URL holds {len(data):,} bytes, over the cap of {max_bytes:,}")
    if not data:
        raise MediaError(f"the data URL ({shorten(shown)}) is empty")
    return data, shown


def media_in_base64(text: str) -> bool:
    """Whether `text` is base64 of an image or video, judged by the magic bytes it decodes to.

    Safe to ask before looking for a file of that name: a path that is 32 or more base64 characters which decode to
    a known signature does not occur by chance (a JPEG's "/9j/…" does look like an absolute path, hence this order).
    """
    if len(text) < _SHORTEST_MEDIA:
        return False
    head = _WHITESPACE.sub("", text[: 2 * HEAD_BYTES])
    head = head[: len(head) // 4 * 4]
    if not _ALPHABET.fullmatch(head):
        return False
    try:
        return sniff(decode_base64(head.rstrip("="), 2 * HEAD_BYTES)).family != "other"
    except MediaError:
        return False


def looks_like_base64(text: str) -> bool:
    """Whether `text` is long and made of the base64 alphabet alone, so more likely meant as data than as a path."""
    packed = _WHITESPACE.sub("", text)
    return len(packed) >= 2 * _SHORTEST_MEDIA and _ALPHABET.fullmatch(packed) is not None
