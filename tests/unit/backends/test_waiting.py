"""torch's threads sleep while they wait, unless the user said otherwise."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SCRIPT = (
    "import visavis, os\nvisavis.load(backend='native', warmup=False).close()\nprint(os.environ['OMP_WAIT_POLICY'])"
)


@pytest.mark.parametrize(("chosen", "holds"), [(None, "PASSIVE"), ("ACTIVE", "ACTIVE")])
def test_threads_sleep_unless_the_user_chose(chosen: str | None, holds: str) -> None:
    environment = {k: v for k, v in os.environ.items() if k != "OMP_WAIT_POLICY"}
    if chosen is not None:
        environment["OMP_WAIT_POLICY"] = chosen
    out = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True, env=environment)
    assert out.stdout.split() == [holds]
