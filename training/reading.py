"""Reading by kind of caption and dictionary, on a CPU if need be: ``python -m training.reading --lexicon train``.

One forward pass a screen over all its readable elements with the true answers given: every token right there means the
greedy answer is right. Held-out fonts and layouts; ``--lexicon train`` takes captions' words from the dictionary of
training screens, ``--lexicon eval`` (what ``training.evaluate`` uses) takes half of them from words never trained on.
"""

from __future__ import annotations

import argparse
import json
import random
from collections import defaultdict
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file

from training import tokenizer as bpe
from training import words
from training.config import ASSETS, CELL, RESULTS, SHAPE
from training.data import resized
from training.evaluate import SEED
from training.model import Model
from training.packing import Grid, blocks, close_id, head_ids
from training.questions import read
from training.screen import generate


def kind_of(text: str) -> str:
    """What a caption is made of."""
    if text in words.PHRASES or text in words.CONCEPTS:
        return "interface phrase"
    own = "".join(c if c.isalpha() else " " for c in text.lower()).split()
    if any(w in words.dictionary("eval") for w in own):
        return "held-out word"
    return "training words" if any(w in words.dictionary("train") for w in own) else "code or number"


def load(folder: Path) -> Model:
    """The exported weights in the training model, float32."""
    model = Model(SHAPE)
    model.load_state_dict({k: v.float() for k, v in load_file(folder / "model.safetensors").items()})
    return model.eval()


@torch.inference_mode()
def right(model: Model, seed: int, lexicon: str) -> list[tuple[str, int, bool]]:
    """(kind, text size, right) of every readable element of one screen."""
    rng = random.Random(seed)
    width, height = rng.randint(224, 896), rng.randint(224, 896)
    screen = generate(seed, "eval", width, height, lexicon=lexicon)
    rows, columns = round(height / CELL), round(width / CELL)
    grid, vocab = Grid.of(screen, rows, columns), bpe.load()
    asked = [read(rng, screen, i, plain=True) for i, e in enumerate(screen.elements) if e.text]
    if not asked:
        return []
    b = blocks(screen, grid, asked, vocab)
    ids = torch.from_numpy(b.ids[:, : b.stop.max()].astype(np.int64))
    image = torch.from_numpy(resized(screen, rows, columns).copy())[None]
    last, _, _ = model(image, torch.tensor(head_ids(vocab)), close_id(vocab), ids[None], torch.float32)
    guess = model.logits(last)[0].argmax(-1)
    out = []
    for i, q in enumerate(asked):
        start, stop = int(b.start[i]), int(b.stop[i])
        ok = bool((guess[i, start - 1 : stop - 1] == ids[i, start:stop]).all())
        out.append((kind_of(q.answer), screen.elements[q.element].size, ok))
    return out


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--screens", type=int, default=500)
    p.add_argument("--first", type=int, default=0, help="screens to leave out")
    p.add_argument("--lexicon", choices=("train", "eval"), default="train")
    p.add_argument("--folder", type=Path, default=ASSETS)
    p.add_argument("--out", type=Path)
    o = p.parse_args()
    model = load(o.folder)
    groups: dict[str, list[bool]] = defaultdict(list)
    for done in range(1, o.screens + 1):
        i = o.first + done - 1
        for kind, size, ok in right(model, SEED + i, o.lexicon):
            for group in ("all", kind, "up to 11 px" if size <= 11 else "12 px and more"):
                groups[group].append(ok)
        table = {k: {"exact": round(float(np.mean(v)), 4), "right": sum(v), "n": len(v)} for k, v in groups.items()}
        result = {"seed": SEED + o.first, "screens": done, "lexicon": o.lexicon, "read": table}
        (o.out or RESULTS / f"reading-{o.lexicon}.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
