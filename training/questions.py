"""Questions about a screen and their answers, for both tasks.

Grounding: ``<|object_ref_start|>name<|object_ref_end|><|box_start|>(x1,y1),(x2,y2)<|box_end|>``, the box in 0–1000 of
the original image, in steps of ``LATTICE``. Reading: the caption alone. Questions hold no special tokens: a box in a
question is plain text, to the thousandth.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from training.screen import Element, Screen
from training.words import CONCEPTS

GROUND = 'In this UI screenshot, what is the position of the element corresponding to the command "{}" (with bbox)?'
GROUND_OTHERS = (
    'Where is the element for the command "{}"? Answer with a bounding box.',
    'Find the element that matches "{}" and give its box.',
    'Which element should I use to "{}"? Give the bbox.',
    "{} (with bbox)",
    'Locate "{}" in this screenshot.',
    'Where should I click to "{}"?',
    "Give the bounding box of the element for: {}",
    'In this screenshot, where is "{}"?',
    'What is the position of the element "{}" (with bbox)?',
    'Point out the control for "{}".',
    "I want to {}. Where do I click?",
)
READ = "What is the text of the element in the box ({},{}),({},{})?"
READ_OTHERS = (
    "Read the text inside the box ({},{}),({},{}).",
    "What does the element at ({},{}),({},{}) say?",
    "What text is in the box ({},{}),({},{})?",
)
ANY = (
    "{}",
    "{}",
    "click on {}",
    "click {}",
    "open {}",
    "open the {}",
    "go to {}",
    "go to the {}",
    "select {}",
    "choose {}",
    "tap {}",
    "press {}",
    "show {}",
    "find {}",
    "the {}",
    "use {}",
    "please open {}",
    "take me to {}",
    "I need {}",
)
BY_KIND: dict[str, tuple[str, ...]] = {
    "button": ("press the {} button", "push {}", "click the {} button", "hit {}", "the button {}"),
    "field": (
        "type your {}",
        "fill in the {}",
        "enter the {}",
        "write something into {}",
        "the {} field",
        "edit {}",
        "type into {}",
        "enter your {}",
        "click into the {} input",
    ),
    "tab": ("switch to {}", "switch to the {} tab", "show the {} tab", "the tab {}"),
    "menu": ("pick {} from the menu", "go to {} in the menu", "navigate to {}", "show me the {} section"),
    "link": ("follow the {} link", "read about {}", "visit {}", "the link {}"),
    "icon": ("launch {}", "start {}", "tap the {} icon", "open the {} app", "run {}"),
    "row": ("choose the {} entry", "open the {} row", "show details of {}", "pick {} from the list"),
    "check": ("tick {}", "toggle {}", "check {}", "turn on {}", "enable {}", "turn off {}", "switch {} on"),
}


# Answers' coordinates are multiples of this many thousandths: finer digits would be guesses among near equals.
LATTICE = 10


@dataclass(frozen=True, slots=True)
class Question:
    """One supervised pair. ``expected_box`` is in pixels of the original screen, or None for reading."""

    task: str
    text: str
    answer: str
    element: int
    expected_box: tuple[int, int, int, int] | None


def thousandths(box: tuple[int, int, int, int], width: int, height: int) -> tuple[int, int, int, int]:
    """Pixels of the original to 0–1000."""
    x1, y1, x2, y2 = box
    return round(x1 * 1000 / width), round(y1 * 1000 / height), round(x2 * 1000 / width), round(y2 * 1000 / height)


def ground_answer(name: str, box: tuple[int, int, int, int]) -> str:
    """The answer of a grounding question, for a box in 0–1000, which is rounded to the lattice."""
    x1, y1, x2, y2 = ((v + LATTICE // 2) // LATTICE * LATTICE for v in box)
    start, end = "<|object_ref_start|>", "<|object_ref_end|>"
    return f"{start}{name}{end}<|box_start|>({x1},{y1}),({x2},{y2})<|box_end|>"


def command(rng: random.Random, element: Element) -> str:
    """A way of asking for this element."""
    meanings = CONCEPTS.get(element.name)
    if meanings and rng.random() < 0.5:
        return rng.choice(meanings)
    template = rng.choice(ANY if rng.random() < 0.6 else BY_KIND[element.kind])
    name = element.name if rng.random() < 0.45 else element.name.lower()
    return template.format(name)


def ground(rng: random.Random, screen: Screen, index: int, plain: bool = False) -> Question:
    """A grounding question about one element; ``plain`` asks in the usual words only."""
    element = screen.elements[index]
    frame = GROUND if plain or rng.random() < 0.55 else rng.choice(GROUND_OTHERS)
    box = thousandths(element.box, screen.width, screen.height)
    text = frame.format(command(rng, element))
    return Question("ground", text, ground_answer(element.name, box), index, element.box)


def read(rng: random.Random, screen: Screen, index: int, plain: bool = False) -> Question:
    """A reading question about one element that shows its own text."""
    element = screen.elements[index]
    box = list(thousandths(element.box, screen.width, screen.height))
    if not plain and rng.random() < 0.2:
        box = [min(1000, max(0, v + rng.randint(-4, 4))) for v in box]
    frame = READ if plain or rng.random() < 0.7 else rng.choice(READ_OTHERS)
    return Question("read", frame.format(*box), element.text, index, None)


def ask(rng: random.Random, screen: Screen, count: int, reading: float = 0.5) -> list[Question]:
    """``count`` questions about a screen, each element as often as any other; ``reading`` is that task's share."""
    order = list(range(len(screen.elements)))
    rng.shuffle(order)
    out = []
    for i in range(count):
        index = order[i % len(order)]
        readable = bool(screen.elements[index].text)
        if readable and rng.random() < reading:
            out.append(read(rng, screen, index))
        else:
            out.append(ground(rng, screen, index))
    return out
