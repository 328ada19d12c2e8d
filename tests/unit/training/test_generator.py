"""The screen generator: deterministic, well-formed, training and evaluation apart."""

from __future__ import annotations

import random

import pytest

pytest.importorskip("PIL")

from training import fonts, held_out, layouts, words
from training.questions import ask, ground_answer, thousandths
from training.screen import Screen, generate

needs_fonts = pytest.mark.skipif(
    bool(fonts.missing()),
    reason="font files are not kept in git: run python -m training.fonts on a machine that has them",
)


def draw(split: str, seed: int) -> Screen:
    rng = random.Random(seed)
    return generate(seed, split, rng.randint(224, 896), rng.randint(224, 896))


@needs_fonts
@pytest.mark.parametrize("split", ["train", "eval"])
def test_same_seed_draws_the_same_screen(split: str) -> None:
    first, second = draw(split, 5), draw(split, 5)
    assert first.image.tobytes() == second.image.tobytes()
    assert first.elements == second.elements
    assert draw(split, 6).image.tobytes() != first.image.tobytes()


@needs_fonts
@pytest.mark.parametrize("split", ["train", "eval"])
def test_boxes_lie_inside_and_apart(split: str) -> None:
    for seed in range(6):
        screen = draw(split, seed)
        assert 3 <= len(screen.elements) <= 25
        for i, e in enumerate(screen.elements):
            x1, y1, x2, y2 = e.box
            assert 0 <= x1 < x2 <= screen.width
            assert 0 <= y1 < y2 <= screen.height
            assert 10 <= e.size <= 24
            for other in screen.elements[:i]:
                a1, b1, a2, b2 = other.box
                assert x2 <= a1 or a2 <= x1 or y2 <= b1 or b2 <= y1


@needs_fonts
def test_captions_on_a_screen_cannot_be_confused() -> None:
    for seed in range(6):
        keys = [words.key(e.name) for e in draw("train", seed).elements]
        for i, a in enumerate(keys):
            assert not any(a <= b or b <= a for b in keys[:i])


def test_fonts_layouts_and_held_out_words_are_disjoint() -> None:
    own, other = ({n for f in fonts.families(s) for n in f.files} for s in ("train", "eval"))
    assert own
    assert other
    assert not own & other
    assert not {n for n, _ in layouts.TEMPLATES} & {n for n, _ in held_out.TEMPLATES}
    assert not {f for _, f in layouts.TEMPLATES} & {f for _, f in held_out.TEMPLATES}
    assert not set(words.dictionary("train")) & set(words.dictionary("eval"))


def test_boxes_are_thousandths_of_the_original() -> None:
    box = thousandths((573, 12, 591, 39), 1000, 500)
    assert box == (573, 24, 591, 78)


def test_answers_give_boxes_in_steps_of_ten_thousandths() -> None:
    assert ground_answer("language switch", (572, 24, 596, 1000)) == (
        "<|object_ref_start|>language switch<|object_ref_end|><|box_start|>(570,20),(600,1000)<|box_end|>"
    )
    assert ground_answer("a", (0, 5, 14, 994)).endswith("(0,10),(10,990)<|box_end|>")  # halves go up


@needs_fonts
def test_questions_hold_no_special_tokens_and_cover_both_tasks() -> None:
    asked = ask(random.Random(3), draw("train", 3), 40)
    assert {q.task for q in asked} == {"ground", "read"}
    assert {q.task for q in ask(random.Random(3), draw("train", 3), 40, reading=0.0)} == {"ground"}
    assert not any("<|" in q.text for q in asked)


def test_invented_words_are_short_new_and_off_by_default() -> None:
    rng = random.Random(1)
    made = [words.invented(rng) for _ in range(2000)]
    assert all(w.isascii() and w.isalpha() and w.islower() and len(w) <= 13 for w in made)
    assert not set(made) & set(words.dictionary("eval"))
    known = set(words.dictionary("train"))
    assert sum(w in known for w in made) < 400  # some short ones are words all the same
    assert words.invented_share == 0.0
    assert words.word(rng, "train") in known


def test_interface_captions_hold_no_dictionary_words() -> None:
    rng = random.Random(1)
    known = {*words.PHRASES, *words.CONCEPTS}
    made = [words.caption(rng, "interface") for _ in range(300)]
    assert all(c in known or any(x.isdigit() for x in c) for c in made)
    said = {w for p in words.PHRASES for w in p.lower().split()} | set(words.BODY)
    assert set(words.sentence(rng, "interface", 50).lower().split()) <= said


@needs_fonts
def test_samples_are_drawn_as_shipped() -> None:
    import json

    from PIL import Image

    from training.config import SAMPLES
    from training.samples import PLAN

    shipped = json.loads((SAMPLES / "samples.json").read_text())["samples"]
    assert len(shipped) == len(PLAN) == 12
    for (seed, width, height, task), sample in zip(PLAN, shipped, strict=True):
        screen = generate(seed, "eval", width, height, max(4, width * height // 26000), "interface")
        with Image.open(SAMPLES / f"{sample['id']}.png") as image:
            assert image.tobytes() == screen.image.tobytes()
        assert sample["task"] == task
