"""A comparison as one self-contained page: it opens offline, asks nothing of any server, and runs no script."""

from __future__ import annotations

from visavis.compare.html.page import render, write_report

__all__ = ["render", "write_report"]
