"""`python -m visavis` is `visavis`."""

from __future__ import annotations

import sys

from visavis.cli import main

if __name__ == "__main__":
    sys.exit(main())
