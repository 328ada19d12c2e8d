"""Greedy answers of the exported folder, by transformers, on held-out screens: ``python -m training.evaluate``.

500 screens of held-out fonts and layouts, one grounding question in the usual words, one paraphrased, one reading
question each; tables by screen and element size; also pages rendered by a browser where ``training.browser`` made them.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from training import tokenizer as bpe
from training.browser import load_pages
from training.config import AFTER_IMAGE, ASSETS, CELL, HEAD, MEAN, PATCH, RESULTS, SAMPLES, STD, TURN
from training.questions import ground, read
from training.screen import Screen, generate

SEED = 500_000
BOX = re.compile(r"\((\d+),(\d+)\),\((\d+),(\d+)\)")
NAME = re.compile(r"<\|object_ref_start\|>(.*?)<\|object_ref_end\|>", re.DOTALL)


@dataclass(slots=True)
class Case:
    """One question, its truth and, later, the answer. Boxes in pixels of the original."""

    image: Image.Image
    task: str
    text: str
    truth: str
    box: tuple[int, int, int, int]
    font: int
    layout: str
    answer: str = ""


def cases(count: int, seed: int = SEED) -> list[Case]:
    """Three questions about each of ``count`` held-out screens."""
    out = []
    for i in range(count):
        rng = random.Random(seed + i)
        screen = generate(seed + i, "eval", rng.randint(224, 896), rng.randint(224, 896))
        out += _ask(rng, screen)
    return out


def _ask(rng: random.Random, screen: Screen) -> list[Case]:
    readable = [i for i, e in enumerate(screen.elements) if e.text]
    asked = [("ground", ground(rng, screen, rng.randrange(len(screen.elements)), plain=True))]
    asked.append(("paraphrased", ground(rng, screen, rng.randrange(len(screen.elements)))))
    if readable:
        asked.append(("read", read(rng, screen, rng.choice(readable), plain=True)))
    out = []
    for task, q in asked:
        e = screen.elements[q.element]
        out.append(Case(screen.image, task, q.text, q.answer, e.box, e.size, screen.layout))
    return out


def pixels(image: Image.Image) -> tuple[np.ndarray, int, int]:
    """transformers' slow path: Pillow's bicubic to multiples of 28, scale, normalise, patches.

    Returns float32 (4·rows·columns, 1176) and the rows and columns of 28 px cells. Sizes within 224–896 px only, where
    the pixel bounds do not bite.
    """
    rows, columns = (max(1, round(n / CELL)) for n in (image.height, image.width))
    resized = image.convert("RGB").resize((columns * CELL, rows * CELL), Image.Resampling.BICUBIC)
    x = (np.asarray(resized, np.float32) / 255 - np.array(MEAN, np.float32)) / np.array(STD, np.float32)
    x = x.reshape(rows, 2, PATCH, columns, 2, PATCH, 3).transpose(0, 3, 1, 4, 6, 2, 5)
    x = x.reshape(-1, 3, 1, PATCH, PATCH).repeat(2, 2)
    return x.reshape(len(x), -1), rows, columns


class Answerer:
    """The exported model in transformers."""

    def __init__(self, folder: Path, device: str, dtype: torch.dtype) -> None:
        from transformers import Qwen2VLForConditionalGeneration

        self.model = Qwen2VLForConditionalGeneration.from_pretrained(folder, dtype=dtype).to(device).eval()
        self.vocab = bpe.load(folder)
        self.device, self.dtype = device, dtype
        self.image_id = self.vocab.token_to_id("<|image_pad|>")

    @torch.inference_mode()
    def __call__(self, batch: list[Case], max_new_tokens: int = 64) -> list[str]:
        """Greedy answers to several cases at once (left padding)."""
        rows, grids, patches = [], [], []
        for case in batch:
            values, r, c = pixels(case.image)
            patches.append(values)
            grids.append((1, 2 * r, 2 * c))
            prompt = HEAD + "<|image_pad|>" * (r * c) + AFTER_IMAGE + case.text + TURN
            rows.append(self.vocab.encode(prompt).ids)
        longest = max(map(len, rows))
        ids = torch.zeros(len(rows), longest, dtype=torch.long)
        ids += self.vocab.token_to_id("<|endoftext|>")
        mask = torch.zeros_like(ids)
        for i, row in enumerate(rows):
            ids[i, longest - len(row) :] = torch.tensor(row)
            mask[i, longest - len(row) :] = 1
        ids, mask = ids.to(self.device), mask.to(self.device)
        out = self.model.generate(
            input_ids=ids,
            attention_mask=mask,
            pixel_values=torch.from_numpy(np.concatenate(patches)).to(self.device, self.dtype),
            image_grid_thw=torch.tensor(grids, device=self.device),
            mm_token_type_ids=(ids == self.image_id).int(),
            max_new_tokens=max_new_tokens,
            do_sample=False,
        )
        texts = self.vocab.decode_batch(out[:, longest:].tolist(), skip_special_tokens=False)
        return [re.split(r"<\|im_end\|>|<\|endoftext\|>", t)[0] for t in texts]


def answered(box: str, size: tuple[int, int]) -> tuple[float, float, float, float] | None:
    """The first box of an answer in pixels of an image of this size."""
    match = BOX.search(box)
    if match is None:
        return None
    x1, y1, x2, y2 = (int(g) / 1000 for g in match.groups())
    return x1 * size[0], y1 * size[1], x2 * size[0], y2 * size[1]


def overlap(a: tuple[float, ...], b: tuple[float, ...]) -> float:
    """Intersection over union."""
    wide, high = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    both = max(0.0, wide) * max(0.0, high)
    areas = sum(max(0.0, (r[2] - r[0])) * max(0.0, r[3] - r[1]) for r in (a, b))
    return both / (areas - both) if areas > both else 0.0


def score(items: Iterable[Case]) -> dict[str, float]:
    """hit (centre inside, edges included), iou and name for grounding; exact for reading; n of each."""
    sums: dict[str, list[float]] = {"hit": [], "iou": [], "name": [], "exact": []}
    for case in items:
        if case.task.startswith("read"):
            sums["exact"].append(case.answer == case.truth)
            continue
        box = answered(case.answer, case.image.size)
        x1, y1, x2, y2 = case.box
        middle = ((box[0] + box[2]) / 2, (box[1] + box[3]) / 2) if box else (-1, -1)
        sums["hit"].append(x1 <= middle[0] <= x2 and y1 <= middle[1] <= y2)
        sums["iou"].append(overlap(box, case.box) if box else 0.0)
        said, true = NAME.search(case.answer), NAME.search(case.truth)
        sums["name"].append(bool(said and true and said[1] == true[1]))
    out: dict[str, float] = {k: round(float(np.mean(v)), 4) for k, v in sums.items() if v}
    return out | {"n": len(sums["hit"]) + len(sums["exact"])}


def _bands(edges: tuple[int, ...], value: Callable[[Case], float]) -> Callable[[Case], str]:
    def band(case: Case) -> str:
        v = value(case)
        below = next((e for e in edges if v <= e), None)
        return f"<= {below}" if below is not None else f"> {edges[-1]}"

    return band


GROUPINGS: dict[str, Callable[[Case], str]] = {
    "longest screen side, px": _bands((400, 560, 720), lambda c: max(c.image.size)),
    "element height, px": _bands((18, 26, 40), lambda c: c.box[3] - c.box[1]),
    "text size, px": _bands((11, 13, 16), lambda c: c.font),
    "layout": lambda c: c.layout,
}


def tables(items: list[Case]) -> dict[str, object]:
    """Scores of each task, whole and by group."""
    out: dict[str, object] = {}
    for task in sorted({c.task for c in items}):
        own = [c for c in items if c.task == task]
        groups = {}
        for title, group in GROUPINGS.items():
            keys = sorted({group(c) for c in own}, key=lambda k: (k.startswith(">"), len(k), k))
            groups[title] = {k: score(c for c in own if group(c) == k) for k in keys}
        out[task] = {"all": score(own), **groups}
    return out


def run(answerer: Answerer, items: list[Case], batch: int) -> None:
    """Fill in all answers, similar sizes together."""
    order = sorted(items, key=lambda c: c.image.width * c.image.height)
    for start in range(0, len(order), batch):
        part = order[start : start + batch]
        for case, answer in zip(part, answerer(part), strict=True):
            case.answer = answer


def samples() -> list[Case]:
    """The 12 screens that are shipped."""
    out = []
    for entry in json.loads((SAMPLES / "samples.json").read_text())["samples"]:
        picture, text = entry["messages"][0]["content"]
        image = Image.open(SAMPLES / picture["image"]).convert("RGB")
        expected = entry["expected"]
        box = tuple(expected["box"] or (0, 0, 0, 0))
        out.append(Case(image, entry["task"], text["text"], expected["text"], box, 0, "sample"))
    return out


def agreement(folder: Path, device: str, items: list[Case]) -> list[bool]:
    """Whether the greedy answer is the same in bf16 and float32, each question asked alone."""
    answers = [
        [answerer([case])[0] for case in items]
        for answerer in (Answerer(folder, device, dtype) for dtype in (torch.bfloat16, torch.float32))
    ]
    for case, half, full in zip(items, *answers, strict=True):
        if half != full:
            print(f"DIFFERS {case.task} {case.image.size} | {case.truth} | bf16 {half} | float32 {full}")
    return [half == full for half, full in zip(*answers, strict=True)]


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--folder", type=Path, default=ASSETS)
    p.add_argument("--screens", type=int, default=500)
    p.add_argument("--batch", type=int, default=64)
    p.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    p.add_argument("--dtype", default="bfloat16")
    p.add_argument("--out", type=Path, default=RESULTS / "evaluation.json")
    p.add_argument("--misses", type=int, default=0, help="print so many wrong answers of each task")
    p.add_argument("--agree", type=int, metavar="N", help="only: bf16 against float32 on the samples and N other boxes")
    o = p.parse_args()
    if o.agree is not None:
        boxes = [case for case in cases(o.agree) if case.task == "ground"]
        for name, items in (("samples", samples()), ("other grounding questions", boxes)):
            same = agreement(o.folder, o.device, items)
            print(f"the same in bf16 and float32: {sum(same)} of {len(same)} {name}")
        return
    began = time.time()
    answerer = Answerer(o.folder, o.device, getattr(torch, o.dtype))
    drawn = cases(o.screens)
    pages = [Case(i, t, q, a, b, f, "browser") for i, t, q, a, b, f in load_pages()]
    run(answerer, drawn, o.batch)
    run(answerer, pages, o.batch)
    result = {"seed": SEED, "screens": o.screens, "dtype": o.dtype, "drawn": tables(drawn), "browser": tables(pages)}
    o.out.parent.mkdir(parents=True, exist_ok=True)
    o.out.write_text(json.dumps(result, indent=1) + "\n")
    for name, items in (("drawn", drawn), ("browser", pages)):
        for task, table in tables(items).items():
            for title, rows in table.items():  # type: ignore[attr-defined]
                print(name, task, title, json.dumps(rows))
    for task in ("ground", "read", "browser-ground", "browser-read"):
        pool = pages if task.startswith("browser") else drawn
        own = [c for c in pool if c.task == task.removeprefix("browser-") and c.answer != c.truth]
        own = [c for c in own if c.task == "read" or score([c])["iou"] < 0.5]
        for c in own[: o.misses]:
            print(f"MISS {task} {c.image.size} {c.font}px {c.layout} | {c.text[-60:]} | {c.truth} | {c.answer}")
    print(f"{time.time() - began:.0f} s")


if __name__ == "__main__":
    main()
