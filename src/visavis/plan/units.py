"""Amounts of memory and image sizes as people write them, and back."""

from __future__ import annotations

import difflib
import math
import re

from visavis.errors import OptionError, shorten

__all__ = ["GIB", "MIB", "format_bytes", "format_count", "parse_bytes", "parse_images"]

MIB = 1024**2
GIB = 1024**3

_UNITS = {
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 1024,
    "MIB": MIB,
    "GIB": GIB,
    "TIB": 1024**4,
    # As for --kv-cache: without the i, decimal.
    "K": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "KI": 1024,
    "MI": MIB,
    "GI": GIB,
    "TI": 1024**4,
}
_SPELLINGS = ("B", "KiB", "MiB", "GiB", "TiB", "KB", "MB", "GB", "TB")
_AMOUNT = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([A-Za-z]*)")
_IMAGES = re.compile(r"(?:([0-9]+)\s*[x×*]\s*)?([0-9]+)\s*[x×*]\s*([0-9]+)", re.IGNORECASE)


def parse_bytes(text: str, *, where: str = "--gpu-memory") -> int:
    """Bytes of an amount with a unit: `24GiB`, `24 GB` (10⁹), `24G` (the same), `24564MiB`. Case does not matter.

    Raises OptionError naming `where` and, for a typing error, the spelling that was probably meant.
    """
    given = text.strip().strip("\"'“”‘’„").strip()
    match = _AMOUNT.fullmatch(given.replace("_", ""))
    if match is None:
        raise OptionError(f"{where}: {shorten(text)} is not an amount of memory{_meant(given)}; write e.g. 24GiB")
    number, unit = match.groups()
    if not unit:
        raise OptionError(f"{where}: {shorten(text)} has no unit; did you mean {number}GiB?")
    factor = _UNITS.get(unit.upper())
    if factor is None:
        near = difflib.get_close_matches(unit.upper(), [s.upper() for s in _SPELLINGS], n=1, cutoff=0.5)
        spelled = next((s for s in _SPELLINGS if near and s.upper() == near[0]), None)
        hint = f"did you mean {number}{spelled}?" if spelled else f"known: {', '.join(_SPELLINGS)}"
        raise OptionError(f"{where}: unknown unit {shorten(unit)}; {hint}")
    value = float(number) * factor
    if not math.isfinite(value) or value < 1:
        raise OptionError(f"{where}: {shorten(text)} is not a usable amount; write e.g. 24GiB")
    return round(value)


def _meant(given: str) -> str:
    """The nearest well-formed spelling of a malformed amount, as a hint, or nothing."""
    tidy = re.sub(r"(?<=[0-9]),(?=[0-9])", ".", given).replace(" ", "")
    if tidy != given and _AMOUNT.fullmatch(tidy) and tidy[-1:].isalpha():
        return f"; did you mean {tidy}?"
    if re.fullmatch(r"[0-9]+\s*[x×*]\s*[0-9.]+\s*[A-Za-z]+", given):
        count, amount = re.split(r"\s*[x×*]\s*", given, maxsplit=1)
        return f"; for several devices: --gpu-memory {amount} --tensor-parallel-size {count}"
    return ""


def parse_images(text: str, *, where: str = "--image") -> tuple[tuple[int, int], ...]:
    """(height, width) of each image of `WxH` or `nxWxH` (also with ×): `2x1920x1080` is two of 1080 × 1920.

    Raises OptionError naming `where`.
    """
    match = _IMAGES.fullmatch(text.strip())
    if match is None:
        raise OptionError(f"{where}: {shorten(text)} is not a size; write WIDTHxHEIGHT, e.g. 1920x1080 or 2x1920x1080")
    count, width, height = int(match[1] or 1), int(match[2]), int(match[3])
    if min(count, width, height) < 1 or count > 4096 or max(width, height) > 1_000_000:
        raise OptionError(f"{where}: {shorten(text)} is out of range: sides of 1 to 1000000 pixels, 1 to 4096 images")
    return ((height, width),) * count


def format_bytes(amount: float) -> str:
    """`16.29 GiB`, `448 KiB`, `28 B`: binary units, two decimals from MiB on."""
    size = float(amount)
    sign, size = ("-", -size) if size < 0 else ("", size)
    for unit, factor in (("TiB", 1024**4), ("GiB", GIB), ("MiB", MIB)):
        if size >= factor:
            return f"{sign}{size / factor:.2f} {unit}"
    if size >= 1024:
        return f"{sign}{size / 1024:.4g} KiB"
    return f"{sign}{size:.0f} B"


def format_count(number: float) -> str:
    """`235.1 B`, `1.54 B`, `7.3 M`: parameters for people."""
    for unit, factor in (("B", 1e9), ("M", 1e6), ("K", 1e3)):
        if number >= factor:
            return f"{number / factor:.4g} {unit}"
    return f"{number:.0f}"
