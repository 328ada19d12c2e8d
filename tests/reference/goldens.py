"""Recorded facts of transformers, so that parity is tested where transformers (or its torchvision) is not installed.

`bare_folder` makes the text side of a tiny model's folder, without weights and without transformers: what was
recorded there holds for the tiny models too, which have the same tokenizer, template and processor settings.
"""

from __future__ import annotations

import hashlib
import json
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.reference import tiny_tokenizers as tok
from tests.reference.tiny_models import write_processor_files

FILE = Path(__file__).parent / "goldens.json"
QWEN3_FILE = Path(__file__).parent / "goldens_qwen3.json"

_VISION = {"qwen2_vl": "Qwen2VL", "qwen2_5_vl": "Qwen2_5_VL", "qwen3_vl": "Qwen3VL"}
_TEXT_SIDE = {
    "qwen2": (tok.qwen_tokenizer, tok.QWEN2_TEMPLATE),
    "qwen3": (lambda: tok.qwen_tokenizer(thinking=True), tok.QWEN3_TEMPLATE),
    "llama": (tok.llama3_tokenizer, tok.LLAMA3_TEMPLATE),
    "qwen2_vl": (tok.qwen_tokenizer, tok.QWEN2_VL_TEMPLATE),
    "qwen2_5_vl": (tok.qwen_tokenizer, tok.QWEN2_VL_TEMPLATE),
    "qwen3_vl": (lambda: tok.qwen_tokenizer(thinking=True), tok.QWEN3_VL_TEMPLATE),
}


def bare_folder(family: str, folder: Path) -> Path:
    """Config, tokenizer, template and processor settings of a tiny `family`."""
    make, template = _TEXT_SIDE[family]
    llama = family == "llama"
    eos, pad = ("<|eot_id|>", "<|finetune_right_pad_id|>") if llama else ("<|im_end|>", "<|endoftext|>")
    bos = "<|begin_of_text|>" if llama else None
    tok.save_tokenizer(folder, make(), template, eos=eos, pad=pad, bos=bos, template_file="chat_template.jinja")
    config: dict[str, Any] = {"model_type": family, "max_position_embeddings": 8192}
    if family in _VISION:
        config["vision_config"] = {"tokens_per_second": 2}
        write_processor_files(folder, _VISION[family])
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def runs(ids: Any) -> list[list[int]]:
    """[[id, how often in a row], …]: visual tokens take little room this way."""
    return [[int(value), len(list(group))] for value, group in groupby(ids)]


def digest(array: npt.NDArray[Any]) -> str:
    """Of shape, kind of number and content."""
    plain = np.ascontiguousarray(array)
    head = f"{plain.dtype.str} {plain.shape} ".encode()
    return hashlib.blake2b(head + plain.tobytes(), digest_size=12).hexdigest()


def load(file: Path = FILE) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return content
