"""Makes a CUDA build of torchvision importable beside a CPU build of torch. Run as a script by an environment's
interpreter; does nothing where torchvision imports. Standard library only.

A package index may serve one torchvision wheel a platform, the CUDA one. Its compiled part cannot load beside a CPU
torch, and the import then fails only because fake kernels are registered for two operators that nobody declared.
Declaring them is enough: the transforms that processors use are pure Python.
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
CHECK = [sys.executable, "-c", "import torchvision.transforms.v2"]


def main() -> int:
    if importlib.util.find_spec("torchvision") is None:
        return 0  # nothing to mend
    if subprocess.run(CHECK, capture_output=True).returncode == 0:
        return 0
    torch = importlib.util.find_spec("torch")
    if torch is None or torch.origin is None:
        print("torch is not installed in this interpreter", file=sys.stderr)
        return 2
    extension = Path(torch.origin).parent.parent / "torchvision" / "extension.py"
    text = extension.read_text("utf-8")
    if MARK not in text:
        extension.write_text(text + PATCH, "utf-8")
    return subprocess.run(CHECK).returncode


if __name__ == "__main__":
    sys.exit(main())
