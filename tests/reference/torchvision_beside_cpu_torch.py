"""Makes a CUDA build of torchvision importable beside a CPU build of torch, in this interpreter's environment.

The package index serves one torchvision wheel a platform. Its compiled part cannot load beside a CPU torch, and the
import then fails only because fake kernels are registered for two operators that nobody declared. Declaring them is
enough: the transforms that transformers' processors use are pure Python. Idempotent; for test environments only.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

MARK = "# declared for use beside a CPU build of torch"
PATCH = f"""
if not _has_ops():  {MARK}
    _declared = torch.library.Library("torchvision", "DEF")
    for _name in ("nms", "qnms"):
        _declared.define(_name + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
"""


def main() -> int:
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        print("torch is not installed in this interpreter", file=sys.stderr)
        return 2
    extension = Path(spec.origin).parent.parent / "torchvision" / "extension.py"
    if not extension.exists():
        print(f"no torchvision in {extension.parent.parent}", file=sys.stderr)
        return 2
    text = extension.read_text("utf-8")
    if MARK not in text and "cpu-shim" not in text:
        extension.write_text(text + PATCH, "utf-8")
    return subprocess.run([sys.executable, "-c", "import torchvision.transforms.v2"]).returncode


if __name__ == "__main__":
    sys.exit(main())
