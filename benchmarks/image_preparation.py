"""A screen of 1920 × 1080 from its file to a tower's patches, step by step, against transformers' image processors.

    python benchmarks/image_preparation.py [--out result.json] [--rounds N] [--threads N]

Everything runs in this process, in turn, so that all see the same machine; medians over the rounds. The same resize
bounds for all (1,280 cells of 28²); transformers' processors get the decoded picture, as their users give it.
"torchvision" is its fast processor: other pixels (its resize rounds otherwise) than the Pillow one, which ours equals
bit for bit.
"""

from __future__ import annotations

import argparse
import io
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw

from visavis import pixel_kernels
from visavis.chat.image import decode_bytes
from visavis.compiling import BuildError
from visavis.families import resize as resize_module
from visavis.families.common import media_hash
from visavis.families.resize import resize_pixels, smart_resize
from visavis.machine import usable_cores
from visavis.patches import patchify, patchify_in_torch
from visavis.prompt import PatchRule
from visavis.report.machine import describe

CELL, MAX_PIXELS = 28, 1280 * 28 * 28
RULE = PatchRule(14, 2, 2, (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
BOUNDS = resize_module.PixelBounds(56 * 56, MAX_PIXELS)


def screen(seed: int = 0) -> Image.Image:
    """Flat areas, lines and a photograph's worth of noise in one quarter: what a screenshot is made of."""
    rng = np.random.default_rng(seed)
    image = Image.new("RGB", (1920, 1080), (245, 246, 248))
    draw = ImageDraw.Draw(image)
    for _ in range(180):
        x, y = int(rng.integers(0, 1800)), int(rng.integers(0, 1040))
        colour = tuple(int(v) for v in rng.integers(0, 256, 3))
        draw.rectangle((x, y, x + int(rng.integers(10, 300)), y + int(rng.integers(4, 40))), fill=colour)
        draw.text((x, y), f"Button {seed} of the screen", fill=(20, 20, 20))
    photo = Image.fromarray(rng.integers(0, 256, (68, 120, 3), dtype=np.uint8)).resize((960, 540), 2)
    image.paste(photo, (960, 540))
    return image


def encoded(image: Image.Image, kind: str) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **({"quality": 90} if kind == "JPEG" else {}))
    return buffer.getvalue()


def processors() -> dict[str, Any]:
    """transformers' image processors for Qwen2-VL, by what they compute with."""
    from transformers import Qwen2VLImageProcessor

    try:
        from transformers import Qwen2VLImageProcessorPil
    except ImportError:  # before 5.x: the Pillow one had the plain name
        from transformers import Qwen2VLImageProcessorFast

        named = {"transformers, Pillow": Qwen2VLImageProcessor, "transformers, torchvision": Qwen2VLImageProcessorFast}
    else:
        named = {"transformers, Pillow": Qwen2VLImageProcessorPil, "transformers, torchvision": Qwen2VLImageProcessor}
    size = {"shortest_edge": BOUNDS.min_pixels, "longest_edge": MAX_PIXELS}
    made = {}
    for name, kind in named.items():
        try:
            made[name] = kind(size=size)
        except ImportError as error:
            print(f"{name}: {error}", file=sys.stderr)
    return made


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    begin = time.perf_counter()
    result = call()
    return 1e3 * (time.perf_counter() - begin), result


def one_round(data: bytes, theirs: dict[str, Any]) -> tuple[dict[str, float], dict[str, Any]]:
    """Milliseconds of each step, and the patches everybody made."""
    ms: dict[str, float] = {}
    made: dict[str, Any] = {}
    ms["ours: decode"], pixels = timed(lambda: decode_bytes(data))
    size = smart_resize(*pixels.shape[:2], cell=CELL, bounds=BOUNDS)
    ms["ours: resize"], resized = timed(lambda: resize_pixels(pixels, size))
    ms["ours: hash"], _ = timed(lambda: media_hash("image", resized))
    ms["ours: patches"], made["ours"] = timed(lambda: patchify(resized, RULE).numpy())
    ms["ours, no compiler: resize"], _ = timed(lambda: pillow_resize(pixels, size))
    ms["ours, no compiler: patches"], _ = timed(lambda: patchify_in_torch(resized, RULE))
    picture = Image.open(io.BytesIO(data))
    ms["Pillow: decode"], _ = timed(picture.load)
    for name, processor in theirs.items():
        tensors = "np" if "Pillow" in name else "pt"
        ms[f"{name}: resize and patches"], found = timed(
            lambda processor=processor, tensors=tensors: processor([picture], return_tensors=tensors)  # type: ignore[misc]
        )
        made[name] = np.asarray(found["pixel_values"])
    ms["ours: resize and patches"] = ms["ours: resize"] + ms["ours: patches"]
    ms["ours, no compiler: resize and patches"] = ms["ours, no compiler: resize"] + ms["ours, no compiler: patches"]
    return ms, made


def pillow_resize(pixels: Any, size: tuple[int, int]) -> Any:
    return np.asarray(Image.fromarray(pixels).resize((size[1], size[0]), Image.Resampling.BICUBIC))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="where the record goes")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, help="torch's, and at most so many of ours; default: all cores")
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
        resize_module.resize_rgb = limited(args.threads)
    try:
        pixel_kernels.build()
        compiled = "yes"
    except BuildError as error:
        compiled = str(error)
    theirs = processors()
    record: dict[str, Any] = {
        "machine": describe(),
        "compiled": compiled,
        "threads": args.threads or usable_cores(),
        "rounds": args.rounds,
        "files": [],
    }
    for kind in ("PNG", "JPEG"):
        data = encoded(screen(), kind)
        one_round(data, theirs)
        rows: dict[str, list[float]] = {}
        for _ in range(args.rounds):
            ms, made = one_round(data, theirs)
            for name, value in ms.items():
                rows.setdefault(name, []).append(value)
        equal = {name: bool(np.array_equal(made["ours"], patches)) for name, patches in made.items() if name != "ours"}
        medians = {name: round(statistics.median(values), 2) for name, values in sorted(rows.items())}
        record["files"].append({"format": kind, "bytes": len(data), "median_ms": medians, "equal_to_ours": equal})
    print(json.dumps(record, indent=1))
    if args.out:
        args.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def limited(threads: int) -> Callable[..., Any]:
    def resize_rgb(pixels: Any, size: tuple[int, int], *, threads: int | None = None) -> Any:
        return pixel_kernels.resize_rgb(pixels, size, threads=threads or most)

    most = threads
    return resize_rgb


if __name__ == "__main__":
    main()
