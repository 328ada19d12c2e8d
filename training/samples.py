"""Sample screens that ship with the package, from the held-out generator with captions from the interface phrases.

Three seeds were drawn for each size (920000 + 10·number + 0, 1, 2) and one of the three picked by its looks, before any
answer was seen: a natural command, layouts of every kind, two screens with noise.
"""

from __future__ import annotations

import json
import random

from training.config import SAMPLES
from training.questions import ground, read
from training.screen import generate

# (seed, width, height, task): mean near 500 px, two near 896.
PLAN = (
    (920010, 480, 360, "ground"),
    (920020, 360, 640, "ground"),
    (920031, 640, 480, "read"),
    (920041, 400, 400, "ground"),
    (920052, 560, 420, "ground"),
    (920062, 320, 568, "read"),
    (920071, 512, 512, "ground"),
    (920082, 880, 660, "ground"),
    (920092, 300, 240, "read"),
    (920102, 600, 450, "ground"),
    (920111, 500, 700, "read"),
    (920120, 896, 560, "ground"),
)


def main() -> None:
    SAMPLES.mkdir(parents=True, exist_ok=True)
    for old in SAMPLES.glob("*.png"):
        old.unlink()
    samples = []
    for number, (seed, width, height, task) in enumerate(PLAN, 1):
        wanted = max(4, width * height // 26000)
        screen = generate(seed, "eval", width, height, wanted, "interface")
        rng = random.Random(seed)
        if task == "ground":
            question = ground(rng, screen, rng.randrange(len(screen.elements)), plain=True)
        else:
            own = [i for i, e in enumerate(screen.elements) if e.text]
            question = read(rng, screen, rng.choice(own), plain=True)
        name = f"{number:02d}-{screen.layout}"
        screen.image.save(SAMPLES / f"{name}.png", optimize=True)
        content = [{"type": "image", "image": f"{name}.png"}, {"type": "text", "text": question.text}]
        box = list(question.expected_box) if question.expected_box else None
        samples.append(
            {
                "id": name,
                "messages": [{"role": "user", "content": content}],
                "expected": {"text": question.answer, "box": box},
                "task": task,
            }
        )
    (SAMPLES / "samples.json").write_text(json.dumps({"samples": samples}, indent=1) + "\n")
    size = sum(f.stat().st_size for f in SAMPLES.iterdir())
    print(f"{len(samples)} samples, {size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
