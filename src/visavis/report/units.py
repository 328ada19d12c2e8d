"""Numbers as people read them."""

from __future__ import annotations

__all__ = ["bytes_", "duration", "rate"]


def duration(seconds: float | None) -> str:
    """Three significant digits: `0.42 ms`, `12.3 ms`, `1.24 s`, `81 s`; "–" for None."""
    if seconds is None:
        return "–"
    if seconds < 1e-3:
        return f"{seconds * 1e3:.2f} ms"
    if seconds < 0.9995:
        return f"{_three(seconds * 1e3)} ms"
    return f"{_three(seconds)} s"


def rate(per_second: float | None) -> str:
    """Tokens a second; "–" for None."""
    return "–" if per_second is None else f"{per_second:.1f}" if per_second < 100 else f"{per_second:.0f}"


def bytes_(count: int | None) -> str:
    """In MiB or GiB; "–" for None."""
    if count is None:
        return "–"
    return f"{count / 2**20:.0f} MiB" if count < 2**30 else f"{count / 2**30:.2f} GiB"


def _three(value: float) -> str:
    return f"{value:.2f}" if value < 9.995 else f"{value:.1f}" if value < 99.95 else f"{value:.0f}"
