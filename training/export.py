"""Write the Hugging Face folder: config, tokenizer files, chat template, preprocessor, generation config, weights."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from training import tokenizer as bpe
from training.config import (
    ASSETS,
    CELL,
    MAX_PIXELS,
    MEAN,
    MERGE,
    MIN_PIXELS,
    PATCH,
    SHAPE,
    STD,
    TEMPLATE,
    TEMPORAL,
    Shape,
    config_json,
)
from training.model import Model


def _write(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n")


def write_configs(folder: Path, shape: Shape = SHAPE) -> None:
    """All files but the weights and the model card. ``tokenizer.json`` must be there already."""
    vocab = bpe.load(folder)
    ids = {t: vocab.token_to_id(t) for t in bpe.SPECIAL}
    _write(folder / "config.json", config_json(shape, ids))
    _write(
        folder / "generation_config.json",
        {
            "bos_token_id": ids["<|endoftext|>"],
            "pad_token_id": ids["<|endoftext|>"],
            "eos_token_id": [ids["<|im_end|>"], ids["<|endoftext|>"]],
            "do_sample": False,
        },
    )
    _write(
        folder / "preprocessor_config.json",
        {
            "min_pixels": MIN_PIXELS,
            "max_pixels": MAX_PIXELS,
            "size": {"shortest_edge": MIN_PIXELS, "longest_edge": MAX_PIXELS},
            "patch_size": PATCH,
            "temporal_patch_size": TEMPORAL,
            "merge_size": MERGE,
            "image_mean": list(MEAN),
            "image_std": list(STD),
            "image_processor_type": "Qwen2VLImageProcessor",
            "processor_class": "Qwen2VLProcessor",
        },
    )
    added = {
        str(i): {
            "content": t,
            "lstrip": False,
            "normalized": False,
            "rstrip": False,
            "single_word": False,
            "special": True,
        }
        for t, i in ids.items()
    }
    _write(
        folder / "tokenizer_config.json",
        {
            "add_prefix_space": False,
            "added_tokens_decoder": added,
            "additional_special_tokens": [t for t in bpe.SPECIAL if t != "<|endoftext|>"],
            "bos_token": None,
            "chat_template": TEMPLATE,
            "clean_up_tokenization_spaces": False,
            "eos_token": "<|im_end|>",
            "errors": "replace",
            "model_max_length": 4096,
            "pad_token": "<|endoftext|>",
            "split_special_tokens": False,
            "tokenizer_class": "Qwen2Tokenizer",
            "unk_token": None,
        },
    )
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    _vocab_files(folder)


def _vocab_files(folder: Path) -> None:
    """vocab.json and merges.txt, for loaders that build a Qwen2 tokenizer from its parts."""
    model = json.loads((folder / "tokenizer.json").read_text())["model"]
    (folder / "vocab.json").write_text(json.dumps(model["vocab"], ensure_ascii=False))
    lines = [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(lines) + "\n")


def write_weights(folder: Path, model: Model) -> int:
    """bf16 safetensors in the names of Qwen2-VL checkpoints. Returns the number of parameters."""
    state = {k: v.detach().to("cpu", torch.bfloat16).contiguous() for k, v in model.state_dict().items()}
    save_file(state, str(folder / "model.safetensors"), metadata={"format": "pt"})
    return sum(v.numel() for v in state.values())


def main() -> None:
    """The folder with random weights of the final shape."""
    torch.manual_seed(0)
    write_configs(ASSETS)
    count = write_weights(ASSETS, Model(SHAPE))
    size = sum(f.stat().st_size for f in ASSETS.iterdir())
    print(f"{count / 1e6:.3f} M parameters, folder {size / 1e6:.2f} MB, cell {CELL}")


if __name__ == "__main__":
    main()
