"""Prompts of exact length, no two alike."""

from __future__ import annotations

import pytest

from visavis.backends.remote_family import RemoteFamily
from visavis.bench.prompts import PromptMaker
from visavis.errors import OptionError
from visavis.families import Family


@pytest.mark.parametrize("tokens", [36, 37, 50, 127, 500])
@pytest.mark.parametrize("image", [None, (448, 280)])
def test_the_text_has_exactly_so_many_tokens(family: Family, tokens: int, image: tuple[int, int] | None) -> None:
    prompt = PromptMaker(family, 0).make("key", tokens, image)
    assert len(prompt) - prompt.num_image_tokens == tokens
    # 448×280 is a whole number of 28 pixel cells each way: 16 · 10 tokens
    assert prompt.num_image_tokens == (160 if image else 0)
    assert [m.original_size for m in prompt.media] == ([(280, 448)] if image else [])


def test_equal_keys_make_equal_prompts_and_others_do_not(family: Family) -> None:
    one, same, other = (PromptMaker(family, 0).make(key, 64, (56, 56)) for key in ("a", "a", "b"))
    assert one.token_ids == same.token_ids
    assert one.media[0].content_hash == same.media[0].content_hash
    assert one.text != other.text
    assert one.media[0].content_hash != other.media[0].content_hash
    assert PromptMaker(family, 1).make("a", 64, None).text != PromptMaker(family, 0).make("a", 64, None).text


def test_prompts_differ_from_their_first_words_on(family: Family) -> None:
    maker = PromptMaker(family, 0)
    ids = [maker.make(str(i), 64, None).token_ids for i in range(8)]
    template = len(family.prepare_messages("x")) - 1
    assert len({i[:template] for i in ids}) >= 7  # the template's head alone is shared, its tail stands at the end


def test_shorter_than_the_template_is_refused_with_the_number_that_works(family: Family) -> None:
    template = len(family.prepare_messages("x")) - 1
    with pytest.raises(OptionError, match=f"template takes {template}; give --prompt-tokens {template + 4} or more"):
        PromptMaker(family, 0).make("a", template + 3, None)
    assert len(PromptMaker(family, 0).make("a", template + 4, None)) == template + 4


def test_without_a_tokenizer_lengths_are_words() -> None:
    maker = PromptMaker(RemoteFamily("served"), 0)
    assert not maker.counts_tokens
    prompt = maker.make("a", 40, None)
    assert len(prompt.text.split()) == 40
    assert prompt.chat is not None
