"""Ctrl-C while the command line itself is still being imported."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import sys
from visavis.cli import main

class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == "visavis.cli.parser":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupts())
sys.exit(main(["--version"]))
"""


def test_ctrl_c_during_the_imports_ends_with_130_and_no_traceback() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
