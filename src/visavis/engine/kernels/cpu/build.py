"""The CPU kernels' library, built with the machine's C++ compiler.

`python -m visavis.engine.kernels.cpu.build` builds ahead of the first start and says where the library is.
"""

from __future__ import annotations

import sys
from pathlib import Path

from visavis.compiling import BuildError, CompiledLibrary

__all__ = ["LIBRARY", "BuildError", "find_library"]

# No -ffast-math: it regroups the sums of fused multiply-adds into more instructions than they save.
LIBRARY = CompiledLibrary(
    Path(__file__).parent / "kernels.cpp",
    "kernels",
    "the CPU kernels",
    ("-pthread", "-fno-math-errno", "-ffp-contract=fast"),
)


def find_library() -> Path:
    """The built library, made now if it is not there yet. Raises BuildError."""
    return LIBRARY.find()


def main() -> int:
    try:
        print(f"CPU kernels of the native engine: {find_library()}")
    except BuildError as error:
        print(f"not built: {error}; the native engine runs on torch alone, slower", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
