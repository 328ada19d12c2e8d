"""A plan as one self-contained page: it opens offline, asks nothing of any server, and runs no script."""

from __future__ import annotations

from visavis.plan.html.page import to_html

__all__ = ["to_html"]
