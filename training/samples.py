"""Sample screens that ship with the package, drawn by seed from the held-out generator before any answer is seen."""

from __future__ import annotations

import json
import random

from training.config import SAMPLES
from training.questions import ground, read
from training.screen import generate

SEED = 910_000
# (width, height, task): mean near 500 px, two near 896.
PLAN = (
    (480, 360, "ground"),
    (360, 640, "ground"),
    (640, 480, "read"),
    (400, 400, "ground"),
    (560, 420, "ground"),
    (320, 568, "read"),
    (512, 512, "ground"),
    (880, 660, "ground"),
    (300, 240, "read"),
    (600, 450, "ground"),
    (500, 700, "read"),
    (896, 560, "ground"),
)


def main() -> None:
    SAMPLES.mkdir(parents=True, exist_ok=True)
    for old in SAMPLES.glob("*.png"):
        old.unlink()
    samples = []
    for number, (width, height, task) in enumerate(PLAN, 1):
        screen = generate(SEED + number, "eval", width, height, wanted=max(4, width * height // 26000))
        rng = random.Random(SEED + number)
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
