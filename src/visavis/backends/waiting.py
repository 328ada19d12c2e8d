"""How torch's threads wait for each other: asleep, not spinning."""

from __future__ import annotations

import os
import sys

__all__ = ["wait_asleep"]


def wait_asleep() -> None:
    """To be called before torch is imported in this process; afterwards, or where the user has chosen, nothing changes.

    OpenMP threads spin at the end of every parallel loop. When another process wants a core, they spin through the time
    slices of the very thread they wait for: with one busy core of two, a first token took 2.5 s instead of 0.1 s, and
    0.35 s with threads that sleep; on a quieter machine 0.09 s spinning and 0.10 s asleep.
    """
    if "torch" not in sys.modules:
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
