"""A block's name changes with everything its keys and values depend on, and with nothing else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.unit.engine.helpers import sequence, text_prompt
from visavis.engine.block_hash import BlockHasher
from visavis.engine.sequence import Sequence
from visavis.prompt import PatchRule, PreparedMedia, Prompt, Span
from visavis.sampling import ResolvedSampling

RULE = PatchRule(14, 2, 2, (0.5,) * 3, (0.5,) * 3)
IMAGE = 900


def names(seq: Sequence, num_tokens: int | None = None, block_size: int = 4) -> list[bytes]:
    BlockHasher(block_size).extend(seq, seq.num_tokens if num_tokens is None else num_tokens)
    return seq.block_hashes


def item(start: int, content: str = "x", **fields: Any) -> PreparedMedia:
    return PreparedMedia(
        **{
            "kind": "image",
            "pixels": np.zeros((56, 84, 3), np.uint8),
            "original_size": (56, 84),
            "size": (56, 84),
            "grid": (1, 4, 6),
            "num_tokens": 6,
            "span": Span(start, 6),
            "canonical_span": Span(1, 1),
            "content_hash": content,
            **fields,
        }
    )


def picture(*contents: str, before: int = 3, rule: PatchRule = RULE, positions: Any = None, **fields: Any) -> Sequence:
    """`before` text tokens, then for each content 6 placeholders and 3 text tokens."""
    ids = list(range(1, before + 1))
    media = []
    for content in contents:
        media.append(item(len(ids), content, **fields))
        ids += [IMAGE] * 6 + [7, 8, 9]
    prompt: Prompt = text_prompt(ids, axes=3, media=tuple(media), patch_rule=rule, image_token_id=IMAGE)
    if positions is not None:
        prompt = replace(prompt, position_ids=positions)
    places = tuple(np.arange(m.span.start, m.span.stop) for m in media)
    return Sequence(0, "r", prompt, ResolvedSampling(max_tokens=9), list(ids), places)


def test_only_full_blocks_have_names_and_a_name_holds_for_all_before_it() -> None:
    base = names(sequence([1, 2, 3, 4, 5, 6, 7, 8, 9]))
    assert len(base) == 2
    assert names(sequence([1, 2, 3, 4, 5, 6, 7, 8])) == base
    last, first = names(sequence([1, 2, 3, 4, 5, 6, 7, 0])), names(sequence([0, 2, 3, 4, 5, 6, 7, 8]))
    assert (last[0] == base[0], last[1] == base[1]) == (True, False)
    assert (first[0] == base[0], first[1] == base[1]) == (False, False)


def test_equal_blocks_at_different_places_have_different_names() -> None:
    a, b = names(sequence([1, 2, 3, 4, 1, 2, 3, 4]))
    assert a != b


def test_names_do_not_depend_on_when_they_are_worked_out_or_on_what_was_prompt_and_what_answer() -> None:
    at_once = names(sequence([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]))
    seq = sequence([1, 2, 3], answer=[4, 5, 6, 7, 8, 9, 10, 11, 12])
    for n in range(13):
        assert names(seq, n) == at_once[: n // 4]


def test_another_image_under_the_same_ids_has_another_name_from_its_block_on() -> None:
    mine, same, other = names(picture("x")), names(picture("x")), names(picture("y"))
    assert mine == same
    assert len(mine) == 3
    assert all(a != b for a, b in zip(mine, other, strict=True))  # the image begins in the first block
    far = [names(picture(content, before=4)) for content in "xy"]
    assert far[0][0] == far[1][0]
    assert far[0][1] != far[1][1]


def test_images_in_another_order_have_other_names() -> None:
    ab, ba = names(picture("a", "b")), names(picture("b", "a"))
    assert ab[0] != ba[0]


def test_a_block_inside_an_image_knows_which_piece_of_it_stands_there() -> None:
    """One image of 12 tokens against two of 6 with the same content hash: ids and hashes agree, pieces do not."""
    whole = picture("x")
    ids = [1, *[IMAGE] * 12]
    one = replace(whole.prompt, token_ids=tuple(ids), position_ids=np.tile(np.arange(13), (3, 1)))
    sampling = ResolvedSampling(max_tokens=1)
    a = Sequence(0, "a", one, sampling, list(ids), (np.arange(1, 13),))
    two = replace(one, media=(item(1), item(7)))
    b = Sequence(0, "b", two, sampling, list(ids), (np.arange(1, 7), np.arange(7, 13)))
    assert names(a)[0] == names(b)[0]
    assert names(a)[1] != names(b)[1]


@pytest.mark.parametrize(
    "change",
    [
        {"grid": (1, 6, 4)},
        {"kind": "video"},
        {"rule": replace(RULE, mean=(0.4, 0.5, 0.5))},
        {"positions": np.add(np.tile(np.arange(12), (3, 1)), [[0], [1], [0]])},
    ],
    ids=["grid", "kind", "normalisation", "positions"],
)
def test_what_changes_an_images_embedding_or_its_place_changes_the_name(change: dict[str, Any]) -> None:
    assert names(picture("x"))[0] != names(picture("x", **change))[0]


def test_a_placeholder_id_that_the_model_itself_wrote_is_no_image() -> None:
    image = picture("x", before=2)
    written = Sequence(0, "w", text_prompt([1, 2], axes=3), ResolvedSampling(max_tokens=9), [1, 2], ())
    written.token_ids += [IMAGE] * 6
    assert names(image)[0] != names(written)[0]


def test_a_text_shares_its_beginning_with_a_prompt_that_goes_on_to_an_image() -> None:
    text = Sequence(
        0, "t", text_prompt(list(range(1, 10)), axes=3), ResolvedSampling(max_tokens=9), list(range(1, 10)), ()
    )
    assert names(text)[0] == names(picture("x", before=5))[0]


def test_from_an_image_of_unknown_content_on_nothing_has_a_name() -> None:
    assert len(names(picture("", before=9))) == 2
    assert len(names(picture("x", "", before=3))) == 3  # 12 tokens before the second image
