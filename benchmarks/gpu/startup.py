"""Process start to first token from safetensors on a local disk, kernel cache cold and warm.

`python -m benchmarks.gpu.startup Qwen2.5-1.5B FOLDER` writes the folder once and prints one JSON line a start.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.gpu.models import CONFIGS, make_engine

ONE_START = """
import json, sys, time
begin = float(sys.argv[2])
from pathlib import Path
import numpy as np
from benchmarks.gpu.models import random_prompt
from visavis.engine import NativeEngine
from visavis.sampling import ResolvedSampling
imported = time.time()
folder = Path(sys.argv[1])
config = json.loads((folder / "config.json").read_text())
engine = NativeEngine(folder, config)
loaded = time.time()
prompt = random_prompt(np.random.default_rng(), 37, config["vocab_size"])
engine.add_request("0", prompt, ResolvedSampling(max_tokens=2))
while not engine.step():
    pass
first = time.time()
while engine.has_work:
    engine.step()
print(json.dumps({"import_s": imported - begin, "load_s": loaded - imported, "first_token_s": first - begin,
                  "second_token_s": time.time() - begin}))
"""


def main(name: str, folder: Path) -> None:
    if not (folder / "config.json").exists():
        from safetensors.torch import save_file

        folder.mkdir(parents=True, exist_ok=True)
        engine = make_engine(name, num_blocks=64)
        weights = {key: tensor.cpu() for key, tensor in engine.runner.model.weights()}
        save_file(weights, folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps(CONFIGS[name]), encoding="utf-8")
        engine.close()
    for run in ("cold", "warm"):  # of Triton's cache; the weights are in the file cache, having just been written
        env = os.environ | {"TRITON_CACHE_DIR": str(folder / "triton")}
        done = subprocess.run(
            [sys.executable, "-c", ONE_START, str(folder), str(time.time())], env=env, capture_output=True, text=True
        )
        if done.returncode:
            print(json.dumps({"row": "start", "error": done.stderr[-600:]}), flush=True)
            continue
        phases = {k: round(v, 2) for k, v in json.loads(done.stdout).items()}
        print(json.dumps({"row": "start", "model": name, "kernels": run, **phases}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
