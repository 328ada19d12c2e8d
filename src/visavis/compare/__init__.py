"""The same prompts on several engines: how fast each was, and whether they said the same."""

from __future__ import annotations
