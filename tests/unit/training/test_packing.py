"""Tokenizer and packing: what is supervised, and where attention is sent."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("PIL")

from PIL import Image

from training import tokenizer as bpe
from training.config import END, TURN
from training.packing import LONGEST, SKIP, Grid, blocks, cell_targets, spell
from training.questions import GROUND, Question, ground_answer
from training.screen import Element, Screen, TextAt

GROUND_TEXT = GROUND.format("switch language of current page")


def one_button() -> Screen:
    """224×224 (8×8 cells): a button over columns 2–3 and row 1, "Ab" with one character in each column."""
    at = TextAt((70.0, 98.0), 42.0, 14)
    button = Element("button", "Ab", "Ab", (56, 28, 112, 56), at, at, 14)
    return Screen(Image.new("RGB", (224, 224)), [button], "test", 0, [("Ab", at)], 224, 224)


def question(task: str) -> Question:
    if task == "read":
        return Question("read", "What?", "Ab", 0, None)
    return Question("ground", GROUND_TEXT, ground_answer("Ab", (250, 125, 500, 250)), 0, (56, 28, 112, 56))


@pytest.mark.parametrize("text", [GROUND_TEXT, ground_answer("Save 9", (1, 20, 300, 1000)), "Kx-42: naïve €5 – 漢字\n"])
def test_tokenizer_round_trip(text: str) -> None:
    vocab = bpe.load()
    assert vocab.decode(vocab.encode(text).ids, skip_special_tokens=False) == text


def test_every_digit_is_a_token_and_specials_are_whole() -> None:
    vocab = bpe.load()
    assert vocab.encode("573").tokens == ["5", "7", "3"]
    for token in bpe.SPECIAL:
        assert len(vocab.encode(token).ids) == 1
    assert vocab.get_vocab_size() == 2048


def test_only_answer_tokens_are_supervised() -> None:
    vocab = bpe.load()
    asked = [question("ground"), question("read")]
    b = blocks(one_button(), Grid(8, 8, 1.0, 1.0), asked, vocab)
    for i, q in enumerate(asked):
        ids = b.ids[i].tolist()
        assert vocab.decode(ids[: b.start[i]], skip_special_tokens=False) == q.text + TURN
        assert vocab.decode(ids[b.start[i] : b.stop[i]], skip_special_tokens=False) == q.answer + END
        assert not any(ids[b.stop[i] :])
        assert [j for j in range(len(ids)) if b.letter[i, j] >= 0] == [
            j for j in range(len(ids)) if b.gaze[i, j, 0] >= 0 and vocab.id_to_token(ids[j]) in ("A", "b")
        ]
    np.testing.assert_allclose(b.box[0], (0.25, 0.125, 0.5, 0.25))


def test_gaze_follows_letters_then_corners() -> None:
    vocab = bpe.load()
    b = blocks(one_button(), Grid(8, 8, 1.0, 1.0), [question("ground")], vocab)
    spots = {}
    for j in range(b.start[0], b.stop[0]):
        spots.setdefault(vocab.decode([b.ids[0, j]], skip_special_tokens=False), []).append(
            tuple(b.gaze[0, j].tolist())
        )
    assert spots["<|object_ref_start|>"] == [(-1, -1, -1, -1)]
    assert spots["A"] == [(1, 2, 1, 2)]
    assert spots["b"] == [(1, 3, 1, 3)]
    assert b.letter[0][b.letter[0] >= 0].tolist() == [0, 1]
    # 250,125 look at the top left cell (row 1, column 2), 500,250 at the bottom right one (row 1, column 3)
    assert (1, 2, 1, 2) in spots["1"]
    assert spots["0"][0] == (1, 2, 1, 2)
    assert spots["0"][-1] == (1, 3, 1, 3)


def test_cells_know_their_element_and_characters() -> None:
    cells = cell_targets(one_button(), Grid(8, 8, 1.0, 1.0))
    edges, chars = cells.edges, cells.chars
    on = ~np.isnan(edges[:, 0])
    assert on.nonzero()[0].tolist() == [8 + 2, 8 + 3]
    np.testing.assert_allclose(edges[10], (2, 1, 4, 2))
    # "A" at x = 70: cell 2 starts at 56, so 2 px column 7; y = 42 is the lower half row of row 1
    assert chars[10].reshape(2, 14)[1, 7] == ord("A") - 32
    assert (chars[10] > 0).sum() == 1
    assert (chars > 0).sum() == 2
    # "b" is the second character of its text: first is one more than its place, and ring keeps it in slot 1
    assert cells.first[11].tolist() == [0, 2]
    assert cells.ring[11].reshape(2, 8)[1].tolist() == [0, ord("b") - 32, 0, 0, 0, 0, 0, 0]


def test_the_far_end_of_long_texts_is_not_asked() -> None:
    screen = one_button()
    text = "x" * (LONGEST + 1)
    xs = tuple(3.0 + 6 * i for i in range(len(text)))
    screen.texts = [(text, TextAt(xs, 100.0, 10))]
    cells = cell_targets(screen, Grid(8, 8, 1.0, 1.0))
    assert (cells.ring == SKIP).sum() == 1
    assert (cells.chars > 0).sum() == len(text)


def test_captions_are_spelled_letter_by_letter() -> None:
    vocab = bpe.load()
    text = "Save as PDF (42%) ~"
    ids = spell(text, vocab)
    assert len(ids) == len(text)
    assert vocab.decode(ids) == text
