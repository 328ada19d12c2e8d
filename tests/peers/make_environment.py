"""Makes the environments of the engines that the peer tests run: `python tests/peers/make_environment.py vllm sglang`.

They are kept outside the checkout, in $VISAVIS_TEST_ENVS or ~/.cache/visavis-test-envs, and made once. Each takes
about 3.5 GB and two to ten minutes. Prints the interpreter of each.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from visavis.backends.environments import Environment, Recipe, build, find_environment
from visavis.backends.recipes import sglang_cpu_stub, vllm_cpu
from visavis.errors import VisavisError

HERE = Path(__file__).parent


def root() -> Path:
    return Path(os.environ.get("VISAVIS_TEST_ENVS") or "~/.cache/visavis-test-envs").expanduser()


def recipe(engine: str) -> Recipe:
    if engine == "vllm":
        return vllm_cpu()
    return sglang_cpu_stub(HERE / "sglang_cpu_requirements.txt", HERE / "install_sglang_stub.py")


def find(engine: str) -> Environment | None:
    """The finished environment, if it has been made."""
    return find_environment(engine, root())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("engines", nargs="+", choices=["vllm", "sglang"])
    for engine in parser.parse_args().engines:
        try:
            environment = build(recipe(engine), root(), say=lambda line: print(line, file=sys.stderr, flush=True))
        except VisavisError as error:
            print(error, file=sys.stderr)
            return 1
        print(environment.python)
    return 0


if __name__ == "__main__":
    sys.exit(main())
