"""The command line: one file per command."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["main"]

INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """`visavis`, as `visavis.cli.app.main`; a Ctrl-C while that is still being imported ends it as quietly."""
    try:
        from visavis.cli.app import main as run

        return run(argv)
    except KeyboardInterrupt:
        return INTERRUPTED
