"""The command line: one file per command."""

from __future__ import annotations

from visavis.cli.main import main

__all__ = ["main"]
