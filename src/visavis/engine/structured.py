"""Answers that must match a grammar."""

from __future__ import annotations

__all__ = ["GrammarState"]


class GrammarState:
    """How far one answer has come in its grammar."""
