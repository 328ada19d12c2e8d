"""Model families: everything about a model that is decided before an engine runs it."""

from __future__ import annotations

from visavis.families.base import CountReport, Family, MediaCount, TextTokenizer

__all__ = ["CountReport", "Family", "MediaCount", "TextTokenizer", "load_family"]


def load_family(model: str | None = None, *, trust_remote_code: bool = False) -> Family:
    """The family of a model folder, a hub id, or (None) the bundled `tiny-screen`."""
    from visavis.families.registry import load

    return load(model, trust_remote_code=trust_remote_code)
